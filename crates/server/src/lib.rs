//! Local HTTP for the viewer.
//!
//! ```text
//! request ──> guard ──> routes ──> views, results, map ──> crate index, Answers
//!             who may    which  └─> model ────────────────> ModelAnswers
//!                                   what exactly            the numbers
//! ```
//!
//! ```text
//! let server = Server::bind(Options::default())?;
//! println!("{}", server.address());
//! server.run(Viewer::of_runs(runs, comparisons), &shutdown)?;   // until shutdown.stop()
//! ```
//!
//! **Only this machine, only with the token**: it listens on 127.0.0.1, and
//! [`guard`] turns away whoever does not know the random token in the address,
//! whoever comes under another name, and whatever another site's page could send.
//! **No path becomes a file name**: the page is inside the program, and everything
//! else is computed. **Nothing of a model is ever put into HTML**: answers are
//! JSON or numbers, and say so.
//!
//! What it deliberately does not do: aggregate (crate `index`), analyse, speak
//! SQL (both through [`Answers`]), estimate (through [`ModelAnswers`]), open a browser, or
//! print.

#![forbid(unsafe_code)]

pub mod answers;
pub mod assets;
pub mod error;
pub mod guard;
mod live;
mod map;
mod model;
mod pages;
pub mod parameters;
mod reply;
mod results;
mod routes;
pub mod serve;
mod token;
pub mod viewer;
mod views;

pub use answers::{
    Answers, Comparisons, MAX_SQL_ROWS, MachineName, ModelAnswers, ModelFacts, ModelFile,
    ModelStructure, ModelTensor, SqlAnswer, SqlColumn,
};
pub use assets::Page;
pub use error::ServerError;
pub use model::ESTIMATE_KEYS;
pub use routes::MAX_SQL_BYTES;
pub use serve::{Options, Server, Shutdown};
pub use viewer::{ViewedRun, Viewer};
