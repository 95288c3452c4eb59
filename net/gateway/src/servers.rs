//! The servers behind the gateway: one client of the binary protocol for each token.

use crate::backend::CallError;
use crate::pool::{Pool, PoolError};
use overtake_client::{Client, ClientError, ConnectOptions};
use overtake_wire::message::{Request, Response};

/// New tokens that may be shown to the servers at a time.
const NEW_TOKENS_MAX: usize = 32;

/// Where requests go.
pub(crate) enum Servers {
    /// Over QUIC.
    Quic(Quic),
    /// To a function: the tests' double.
    #[cfg(test)]
    Canned(crate::tests::Canned),
}

/// Clients by token.
pub(crate) struct Quic {
    options: ConnectOptions,
    clients: Pool<Client>,
}

/// One caller's way to the servers.
pub(crate) struct Session {
    token: String,
    way: Way,
}

enum Way {
    Quic(Client),
    #[cfg(test)]
    Canned(crate::tests::Canned),
}

impl Servers {
    /// Servers reached as `options` say, whose token each client replaces by its own; clients of the `tokens_max`
    /// tokens used last are kept.
    pub(crate) fn quic(options: ConnectOptions, tokens_max: usize) -> Self {
        Self::Quic(Quic { options, clients: Pool::new(tokens_max, NEW_TOKENS_MAX) })
    }

    /// A session of this token; connects, and so has the token checked, where there is no client of it yet.
    pub(crate) async fn session(&self, token: String) -> Result<Session, CallError> {
        let way = match self {
            Self::Quic(quic) => Way::Quic(quic.client(&token).await?),
            #[cfg(test)]
            Self::Canned(canned) => {
                canned.hello(&token)?;
                Way::Canned(canned.clone())
            }
        };
        Ok(Session { token, way })
    }

    /// Ends the connections, so that no server waits for a client that is gone.
    pub(crate) async fn close(&self) {
        match self {
            Self::Quic(quic) => {
                for client in quic.clients.drain() {
                    client.close().await;
                }
            }
            #[cfg(test)]
            Self::Canned(_) => {}
        }
    }

    /// Drops the client of the session's token: it is no longer one that the servers know.
    pub(crate) fn forget(&self, session: &Session) {
        match self {
            Self::Quic(quic) => quic.clients.forget(&session.token),
            #[cfg(test)]
            Self::Canned(_) => {}
        }
    }
}

impl Quic {
    async fn client(&self, token: &str) -> Result<Client, CallError> {
        let connect = || Client::connect(ConnectOptions { token: token.to_owned(), ..self.options.clone() });
        // Callers of one token connect one after the other while it fails: the wait of the last one is bounded here.
        let got = tokio::time::timeout(self.options.request_timeout, self.clients.get(token, connect)).await;
        match got {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(PoolError::Busy)) => {
                Err(CallError::Unreachable("too many new tokens at once; try again".into()))
            }
            Ok(Err(PoolError::Connect(error))) => Err(error.into()),
            Err(_) => Err(CallError::Unreachable("connecting takes too long".into())),
        }
    }
}

impl Session {
    /// Sends a request and waits for its response.
    pub(crate) async fn request(&self, request: Request) -> Result<Response, CallError> {
        match &self.way {
            Way::Quic(client) => client.request(request).await.map_err(CallError::from),
            #[cfg(test)]
            Way::Canned(canned) => canned.answer(&self.token, request).await,
        }
    }
}

impl From<ClientError> for CallError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused(refusal) => Self::Refused(refusal),
            unknown if unknown.fate_unknown() => Self::FateUnknown(match unknown {
                ClientError::ConnectionLost => "the connection to the server was lost".into(),
                ClientError::TimedOut => "no server answered in time".into(),
                other => other.to_string(),
            }),
            not_sent => Self::Unreachable(not_sent.to_string()),
        }
    }
}
