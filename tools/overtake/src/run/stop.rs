//! SIGINT and SIGTERM for commands that run until they are told to stop: the first asks, the second insists.

use crate::exit::{Exit, Failure};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How often the process was asked to stop.
#[derive(Clone, Debug)]
pub struct Stop {
    asked: watch::Receiver<u32>,
}

impl Stop {
    /// Listens from now on; the signals' default, ending the process, no longer applies.
    pub fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind)
                .map_err(|error| Failure::new(Exit::Failed, format!("cannot listen for signals: {error}")))
        };
        let (mut interrupt, mut terminate) =
            (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
        let (sender, asked) = watch::channel(0);
        tokio::spawn(async move {
            while !sender.is_closed() {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    () = sender.closed() => return,
                }
                sender.send_modify(|times| *times += 1);
            }
        });
        Ok(Self { asked })
    }

    /// True after the first request.
    pub fn is_asked(&self) -> bool {
        *self.asked.borrow() > 0
    }

    /// Waits for the first request.
    pub async fn asked(&self) {
        self.times(1).await;
    }

    /// Waits for the second request.
    pub async fn insisted(&self) {
        self.times(2).await;
    }

    async fn times(&self, times: u32) {
        let mut asked = self.asked.clone();
        if asked.wait_for(|so_far| *so_far >= times).await.is_err() {
            // The listening task is gone, so no request can come any more.
            std::future::pending::<()>().await;
        }
    }
}
