//! Why the viewer cannot be served, as one error enum.

use std::io;

use rundir::error::reason;

/// Variants differ by what the user can do.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Give another port, or none.
    #[error(
        "127.0.0.1:{port}: cannot listen: {}; leave out the port to get a free one",
        reason(cause)
    )]
    Bind {
        port: u16,
        /// Not named `source`: the message has it already, and a chain of sources
        /// would print it twice.
        cause: io::Error,
    },
    /// Without a secret in the address every user of the machine could look in.
    #[error(
        "the system gave no random bytes: {}; the viewer needs some for the secret in its address",
        reason(cause)
    )]
    Random { cause: io::Error },
    /// Free some memory, or raise the limit on threads.
    #[error("the viewer's threads could not be started: {}", reason(cause))]
    Threads { cause: io::Error },
    /// The listening socket failed.
    #[error("the viewer stopped listening: {}; start it again", reason(cause))]
    Listen { cause: io::Error },
}
