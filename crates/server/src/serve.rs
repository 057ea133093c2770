//! Listening: one address on loopback, one runtime, an end when asked.
//!
//! # Order
//! 1. [`Server::bind`] takes the port and makes the token: a port in use fails
//!    before a log of gigabytes is read.
//! 2. [`Server::address`] is what the user opens.
//! 3. [`Server::run`] answers until [`Shutdown::stop`].
//!
//! # Shutdown
//! Requests in flight get a second; then their threads are left behind, as the
//! program is about to end and they only compute answers nobody waits for.

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::Arc,
    time::Duration,
};

use tokio::{runtime, sync::watch, time::sleep};

use crate::{
    assets::Page, error::ServerError, guard::Guard, live, routes, token::Token, viewer::Viewer,
};

const GRACE: Duration = Duration::from_secs(1);

/// Threads that read requests and write answers; the work itself is done by
/// blocking threads.
const EVENT_THREADS: usize = 2;

/// How to listen.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `None`: a free one.
    pub port: Option<u16>,
    pub page: Page,
}

/// A bound port with its secret.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    page: Page,
    guard: Guard,
}

/// Ends [`Server::run`] from any thread; all clones are one.
#[derive(Clone, Debug)]
pub struct Shutdown(Arc<watch::Sender<bool>>);

impl Server {
    pub fn bind(options: Options) -> Result<Server, ServerError> {
        let wanted = options.port.unwrap_or(0);
        let bind = |cause| ServerError::Bind {
            port: wanted,
            cause,
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, wanted)).map_err(bind)?;
        listener.set_nonblocking(true).map_err(bind)?;
        let port = listener.local_addr().map_err(bind)?.port();
        Ok(Server {
            listener,
            page: options.page,
            guard: Guard {
                token: Token::random()?,
                port,
            },
        })
    }

    /// `http://127.0.0.1:PORT/TOKEN/`
    pub fn address(&self) -> String {
        format!(
            "http://127.0.0.1:{}/{}/",
            self.guard.port,
            self.guard.token.as_str()
        )
    }

    /// Answers until `shutdown`; blocks.
    pub fn run(self, viewer: Viewer, shutdown: &Shutdown) -> Result<(), ServerError> {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(EVENT_THREADS)
            .thread_name("viewer")
            .enable_all()
            .build()
            .map_err(|cause| ServerError::Threads { cause })?;
        let result = runtime.block_on(self.listen(viewer, shutdown.clone()));
        runtime.shutdown_background();
        result
    }

    async fn listen(self, viewer: Viewer, shutdown: Shutdown) -> Result<(), ServerError> {
        let listen = |cause| ServerError::Listen { cause };
        let listener = tokio::net::TcpListener::from_std(self.listener).map_err(listen)?;
        let host = Arc::new(viewer.into_host());
        live::follow(&host);
        let asked = shutdown.clone();
        let serving = axum::serve(listener, routes::router(host, self.page, self.guard))
            .with_graceful_shutdown(async move { asked.asked().await });
        let too_late = async {
            shutdown.asked().await;
            sleep(GRACE).await;
        };
        tokio::select! {
            result = async { serving.await } => result.map_err(listen),
            () = too_late => Ok(()),
        }
    }
}

impl Shutdown {
    pub fn new() -> Shutdown {
        Shutdown(Arc::new(watch::Sender::new(false)))
    }

    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    pub fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    async fn asked(&self) {
        // The sender is in `self`, so that the channel cannot be closed.
        let _ = self.0.subscribe().wait_for(|asked| *asked).await;
    }
}

impl Default for Shutdown {
    fn default() -> Shutdown {
        Shutdown::new()
    }
}
