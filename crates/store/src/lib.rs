//! The log as Parquet tables, and SQL on them.
//!
//! - [`schema`]: the tables and what their columns mean;
//! - [`ingest()`]: log → `RUN/tables/*.parquet`, in one pass;
//! - [`query`], [`output`]: SQL over the tables of one or several runs;
//! - [`views`]: the common questions, as SQL;
//! - [`docs`]: `docs/trace-schema.md`, from the two before.
//!
//! The way of a row: `template` works out the columns of a graph once,
//! `expand` appends an evaluation to a `row_group`, `table_file` encodes full
//! groups (`pages`) into files. What the kernel did underneath has its rows from
//! `kernel`.
//!
//! This is the only crate that knows Arrow, Parquet and DataFusion. What it
//! deliberately does not do: analyse, or print anything.

pub mod docs;
mod error;
mod expand;
pub mod ingest;
mod kernel;
pub mod output;
mod pages;
pub mod query;
mod row_group;
mod rows;
pub mod schema;
mod table_file;
mod template;
pub mod views;

pub use error::StoreError;
pub use ingest::{IngestReport, TableReport, ingest};
pub use output::{Format, Rows, Written, query_rows, write_query};
pub use query::{Session, TablesState, table_path, tables_state};
