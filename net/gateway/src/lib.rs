//! The HTTP front end: a client of the binary protocol.
