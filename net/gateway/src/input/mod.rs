//! Reading requests: everything that turns bytes and texts from outside into checked values. Each refusal is a
//! [`Fault`] that names the field and what is allowed.

pub(crate) mod config;
pub(crate) mod dlq;
pub(crate) mod fault;
pub(crate) mod message;
pub(crate) mod number;
pub(crate) mod object;
pub(crate) mod query;
pub(crate) mod raw_message;
pub(crate) mod receive;
pub(crate) mod settle;
pub(crate) mod time;

pub use fault::Fault;
