//! Clients by token: each token's requests go over connections that said `Hello` with it. Bounded: the tokens
//! least recently used make room, and tokens nobody has accepted yet never push out those that were.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OnceCell;

/// The client of one token, made when first needed. Callers that come while it is being made wait for the same one;
/// if the caller that makes it goes away, another one makes it.
type Entry<C> = Arc<OnceCell<C>>;

/// Clients of many tokens.
pub(crate) struct Pool<C> {
    tokens: Mutex<Tokens<C>>,
}

struct Tokens<C> {
    /// Tokens that a server accepted, with the time of their last use.
    accepted: HashMap<String, (u64, Entry<C>)>,
    /// Tokens whose client is being made.
    pending: HashMap<String, Entry<C>>,
    uses: u64,
    accepted_max: usize,
    pending_max: usize,
}

/// Why there is no client.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum PoolError<E> {
    /// Too many new tokens at once; later there is room.
    Busy,
    /// It could not be made.
    Connect(E),
}

impl<C: Clone> Pool<C> {
    /// A pool of up to `accepted_max` tokens; `pending_max` new ones at a time.
    pub(crate) fn new(accepted_max: usize, pending_max: usize) -> Self {
        let tokens = Tokens {
            accepted: HashMap::new(),
            pending: HashMap::new(),
            uses: 0,
            accepted_max: accepted_max.max(1),
            pending_max: pending_max.max(1),
        };
        Self { tokens: Mutex::new(tokens) }
    }

    /// The client of this token, made by `connect` where there is none yet.
    pub(crate) async fn get<E, F: Future<Output = Result<C, E>>>(
        &self,
        token: &str,
        connect: impl FnOnce() -> F,
    ) -> Result<C, PoolError<E>> {
        let known = self.lock().accepted(token);
        if let Some(entry) = known {
            return entry.get_or_try_init(connect).await.cloned().map_err(PoolError::Connect);
        }
        let entry = self.lock().pending(token).ok_or(PoolError::Busy)?;
        let pending = Pending { pool: self, token, entry };
        let client = pending.entry.get_or_try_init(connect).await.cloned().map_err(PoolError::Connect)?;
        self.lock().accept(token, &pending.entry);
        Ok(client)
    }

    /// Forgets a token: its next request connects anew, and is told whether the token is still good.
    pub(crate) fn forget(&self, token: &str) {
        self.lock().accepted.remove(token);
    }

    /// Forgets every token and gives back the clients that were made.
    pub(crate) fn drain(&self) -> Vec<C> {
        let accepted = core::mem::take(&mut self.lock().accepted);
        accepted.into_values().filter_map(|(_, entry)| entry.get().cloned()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Tokens<C>> {
        // Nothing panics while it holds the lock; what it guards is whole at every step.
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clone> Tokens<C> {
    fn accepted(&mut self, token: &str) -> Option<Entry<C>> {
        self.uses += 1;
        let (used, entry) = self.accepted.get_mut(token)?;
        *used = self.uses;
        Some(entry.clone())
    }

    fn pending(&mut self, token: &str) -> Option<Entry<C>> {
        if let Some(entry) = self.pending.get(token) {
            return Some(entry.clone());
        }
        if self.pending.len() >= self.pending_max {
            return None;
        }
        let entry = Entry::default();
        self.pending.insert(token.to_owned(), entry.clone());
        Some(entry)
    }

    fn accept(&mut self, token: &str, entry: &Entry<C>) {
        self.uses += 1;
        if self.accepted.contains_key(token) {
            return;
        }
        if self.accepted.len() >= self.accepted_max {
            let oldest =
                self.accepted.iter().min_by_key(|(_, (used, _))| *used).map(|(token, _)| token.clone());
            oldest.and_then(|token| self.accepted.remove(&token));
        }
        self.accepted.insert(token.to_owned(), (self.uses, entry.clone()));
    }
}

/// Takes a token off the pending ones when its last caller is done with it, also when the caller is dropped.
struct Pending<'p, C: Clone> {
    pool: &'p Pool<C>,
    token: &'p str,
    entry: Entry<C>,
}

impl<C: Clone> Drop for Pending<'_, C> {
    fn drop(&mut self) {
        let mut tokens = self.pool.lock();
        // This one, the map's, and possibly that of the accepted tokens: whoever else holds it still waits.
        let ours = 2 + usize::from(
            tokens.accepted.get(self.token).is_some_and(|(_, e)| Arc::ptr_eq(e, &self.entry)),
        );
        let same = tokens.pending.get(self.token).is_some_and(|e| Arc::ptr_eq(e, &self.entry));
        if same && Arc::strong_count(&self.entry) <= ours {
            tokens.pending.remove(self.token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().unwrap()
    }

    struct Server {
        pool: Pool<u32>,
        made: AtomicU32,
    }

    impl Server {
        fn new(accepted: usize, pending: usize) -> Self {
            Self { pool: Pool::new(accepted, pending), made: AtomicU32::new(0) }
        }

        async fn get(&self, token: &str) -> Result<u32, PoolError<&'static str>> {
            let connect = || async {
                tokio::task::yield_now().await;
                if token.starts_with("bad") {
                    return Err("refused");
                }
                Ok(self.made.fetch_add(1, Ordering::Relaxed))
            };
            self.pool.get(token, connect).await
        }

        fn sizes(&self) -> (usize, usize) {
            let tokens = self.pool.lock();
            (tokens.accepted.len(), tokens.pending.len())
        }
    }

    #[test]
    fn callers_that_come_together_share_one_connection() {
        runtime().block_on(async {
            let server = Server::new(8, 1);
            let (a, b, c) = tokio::join!(server.get("a"), server.get("a"), server.get("a"));
            assert_eq!((a, b, c), (Ok(0), Ok(0), Ok(0)));
            assert_eq!(server.sizes(), (1, 0));
        });
    }

    #[test]
    fn unknown_tokens_push_nobody_out_and_leave_nothing_behind() {
        runtime().block_on(async {
            let server = Server::new(2, 1);
            assert_eq!((server.get("a").await, server.get("b").await), (Ok(0), Ok(1)));
            for i in 0..9 {
                assert_eq!(server.get(&format!("bad{i}")).await, Err(PoolError::Connect("refused")));
            }
            let (one, two) = tokio::join!(server.get("bad1"), server.get("bad2"));
            assert_eq!((one, two), (Err(PoolError::Connect("refused")), Err(PoolError::Busy)));
            assert_eq!(server.sizes(), (2, 0));
            assert_eq!((server.get("a").await, server.get("b").await), (Ok(0), Ok(1)));
        });
    }

    #[test]
    fn the_least_recently_used_makes_room_and_forgotten_ones_connect_anew() {
        runtime().block_on(async {
            let server = Server::new(2, 4);
            for token in ["a", "b", "a", "c"] {
                server.get(token).await.unwrap();
            }
            assert_eq!(server.get("a").await, Ok(0));
            assert_eq!(server.get("b").await, Ok(3));
            server.pool.forget("b");
            assert_eq!(server.get("b").await, Ok(4));
            assert_eq!(server.sizes(), (2, 0));
        });
    }

    #[test]
    fn a_caller_that_goes_away_leaves_no_pending_token() {
        runtime().block_on(async {
            let server = Server::new(2, 1);
            tokio::select! {
                biased;
                _ = server.get("a") => unreachable!("it yields first"),
                () = core::future::ready(()) => {}
            }
            assert_eq!(server.sizes(), (0, 0));
            assert_eq!(server.get("a").await, Ok(0));
        });
    }
}
