//! The journal on a simulated disk that loses power.
