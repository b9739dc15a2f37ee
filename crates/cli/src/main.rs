//! The filch command.
fn main() {}
