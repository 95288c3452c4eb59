//! Tests of the whole gateway against a double of the servers: a function from request to response.

mod bench;
mod http;
mod openapi;
mod refusals;
mod routes;

use crate::backend::CallError;
use core::future::pending;
use overtake_wire::message::{Refusal, Request, Response};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// What the double does with a request.
pub(crate) enum Answer {
    /// Answers.
    Response(Response),
    /// Fails.
    Fails(CallError),
    /// Waits until the caller gives up, and says so.
    Never(Arc<Notify>),
}

type Answers = dyn Fn(&Request) -> Answer + Send + Sync;

/// The double: answers by a function, and remembers what it was asked.
#[derive(Clone)]
pub(crate) struct Canned {
    answers: Arc<Answers>,
    /// The only token that is good, where any is.
    token: Option<&'static str>,
    asked: Arc<Mutex<Vec<(String, Request)>>>,
}

impl Canned {
    pub(crate) fn new(answers: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        Self { answers: Arc::new(answers), token: None, asked: Arc::default() }
    }

    pub(crate) fn response(response: Response) -> Self {
        Self::new(move |_| Answer::Response(response.clone()))
    }

    pub(crate) fn with_token(self, token: &'static str) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Tokens and requests, in order.
    pub(crate) fn asked(&self) -> Vec<(String, Request)> {
        self.asked.lock().unwrap().clone()
    }

    pub(crate) fn hello(&self, token: &str) -> Result<(), CallError> {
        match self.token {
            Some(good) if good != token => Err(CallError::Refused(Refusal::unauthorized("unknown token"))),
            _ => Ok(()),
        }
    }

    pub(crate) async fn answer(&self, token: &str, request: Request) -> Result<Response, CallError> {
        let answer = (self.answers)(&request);
        self.asked.lock().unwrap().push((token.to_owned(), request));
        match answer {
            Answer::Response(response) => Ok(response),
            Answer::Fails(error) => Err(error),
            Answer::Never(dropped) => {
                struct OnDrop(Arc<Notify>);
                impl Drop for OnDrop {
                    fn drop(&mut self) {
                        self.0.notify_one();
                    }
                }
                let _guard = OnDrop(dropped);
                pending().await
            }
        }
    }
}
