//! The overtake command: server and operator tool.

fn main() {}
