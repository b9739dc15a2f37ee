//! Workers with a coordinator made of nothing but sockets.
