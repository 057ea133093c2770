//! The log as Parquet tables, and SQL on them.
//!
//! - [`schema`]: the tables and what their columns mean, from crate `reader`;
//! - [`ingest()`]: log → `RUN/tables/*.parquet`, in one pass;
//! - [`query`], [`output`]: SQL over the tables of one or several runs;
//! - [`views`]: the common questions, as SQL;
//! - [`docs`]: `docs/trace-schema.md`, from the two before.
//!
//! The way of a row: `reader` says what is in it, `columns` numbers what a graph fixes
//! once, `expand` appends an evaluation to a `row_group`, `table_file` encodes full groups
//! (`pages`) into files. What the kernel did underneath has its rows from `kernel`.
//!
//! This is the only crate that knows Arrow, Parquet and DataFusion. What it
//! deliberately does not do: analyse, or print anything.

pub mod arrow;
mod checksums;
mod columns;
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
mod table_file;
pub mod views;

pub use error::StoreError;
pub use ingest::{IngestReport, TableReport, ingest};
pub use output::{Format, Rows, Written, query_rows, write_query};
pub use query::{Session, TablesState, table_path, tables_state};
pub use reader::tables as schema;
