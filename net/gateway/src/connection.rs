//! One connection: hyper drives it, and a watch closes it when nothing has happened on it for too long.
//!
//! hyper bounds the time of an HTTP/1.1 head. What it does not bound is watched here: a client that says too little
//! for the protocol to be known, one that reads its answer too slowly or not at all, an idle HTTP/2 connection.

use crate::options::GatewayOptions;
use axum::Router;
use core::pin::{Pin, pin};
use core::task::{Context, Poll};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;

/// Makes connections of streams: hyper's settings, made once.
#[derive(Clone)]
pub(crate) struct Connections {
    builder: Builder<TokioExecutor>,
    router: TowerToHyperService<Router>,
    idle_timeout: Duration,
}

/// How long a connection has to end after it was told to.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(1);

impl Connections {
    pub(crate) fn new(options: &GatewayOptions, router: Router) -> Self {
        // hyper refuses a smaller buffer with a panic.
        const BUFFER_BYTES_MIN: usize = 8_192;
        let head_bytes_max = options.head_bytes_max.max(BUFFER_BYTES_MIN);
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(options.head_timeout)
            .max_headers(options.headers_max)
            .max_buf_size(head_bytes_max);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(options.streams_max)
            .max_header_list_size(u32::try_from(head_bytes_max).unwrap_or(u32::MAX));
        Self { builder, router: TowerToHyperService::new(router), idle_timeout: options.idle_timeout }
    }

    /// Serves one connection to its end. Told to stop, it takes no further request and ends after those under way.
    pub(crate) async fn serve(self, stream: TcpStream, mut stopping: watch::Receiver<bool>) {
        let activity = Activity::new();
        let io = TokioIo::new(Watched { stream, activity: activity.clone() });
        let service = Tracked { router: self.router, activity: activity.clone() };
        let mut connection = pin!(self.builder.serve_connection(io, service));
        let mut stop = pin!(stopping.wait_for(|stopping| *stopping));
        let mut stopped = false;
        loop {
            let deadline = activity.idle_since().unwrap_or_else(Instant::now) + self.idle_timeout;
            tokio::select! {
                // An error is the client's: it went away, or does not speak HTTP and was told so.
                _ = connection.as_mut() => return,
                _ = stop.as_mut(), if !stopped => {
                    stopped = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = tokio::time::sleep_until(deadline) => {
                    if activity.idle_since().is_some_and(|since| since + self.idle_timeout <= Instant::now()) {
                        break;
                    }
                }
            }
        }
        connection.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(CLOSING_TIMEOUT, connection).await;
    }
}

/// When something last happened on a connection.
#[derive(Clone)]
struct Activity(Arc<Mutex<State>>);

struct State {
    requests: usize,
    last: Instant,
}

impl Activity {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(State { requests: 0, last: Instant::now() })))
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Since when the connection is idle; `None` while a request is under way.
    fn idle_since(&self) -> Option<Instant> {
        self.with(|state| (state.requests == 0).then_some(state.last))
    }

    fn touch(&self) {
        self.with(|state| state.last = Instant::now());
    }
}

/// Counts a request as under way while it lives.
struct UnderWay(Activity);

impl UnderWay {
    fn new(activity: Activity) -> Self {
        activity.with(|state| state.requests += 1);
        Self(activity)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.with(|state| {
            state.requests -= 1;
            state.last = Instant::now();
        });
    }
}

/// The router, counting its requests.
struct Tracked {
    router: TowerToHyperService<Router>,
    activity: Activity,
}

impl Service<hyper::Request<Incoming>> for Tracked {
    type Response = axum::response::Response;
    type Error = core::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, request: hyper::Request<Incoming>) -> Self::Future {
        let under_way = UnderWay::new(self.activity.clone());
        let answer = self.router.call(request);
        Box::pin(async move {
            let answer = answer.await;
            drop(under_way);
            answer
        })
    }
}

/// The stream, noting when the client takes bytes. Bytes that it sends are no sign of life: a head that trickles in
/// must not keep a connection.
struct Watched {
    stream: TcpStream,
    activity: Activity,
}

impl Watched {
    fn noted(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(written, Poll::Ready(Ok(bytes)) if bytes > 0) {
            self.activity.touch();
        }
        written
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.noted(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.noted(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
