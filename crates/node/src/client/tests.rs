//! Clients with a coordinator made of nothing but a door.
