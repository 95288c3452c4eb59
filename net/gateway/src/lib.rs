//! The HTTP front end: a stateless client of the binary protocol, HTTP/1.1 and HTTP/2 on one plain listener.
//!
//! A request passes `server` (listener), `connection` (hyper and its bounds), `routes`, one function of `handlers`,
//! which reads it with `input`, sends it through `state` and `servers`, and prints the answer with [`json`]. Whatever
//! goes wrong becomes a `problem`.

mod backend;
mod body;
mod connection;
mod handlers;
mod input;
pub mod json;
mod metrics;
mod openapi;
mod options;
mod pool;
mod problem;
mod reply;
mod routes;
mod server;
mod servers;
mod state;
#[cfg(test)]
mod tests;

pub use input::{read_as_any_request, read_as_raw_request};
pub use options::GatewayOptions;
pub use server::{GatewayError, GatewayHandle, serve, spawn};

/// The interface's description (OpenAPI 3.1) as JSON text; what `GET /openapi.json` answers.
#[must_use]
pub fn openapi() -> &'static str {
    openapi::text()
}
