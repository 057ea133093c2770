//! The tables of a trace as CSV or as JSON lines.
//!
//! Columns and rows are those of crate `reader`, from which the Parquet tables are made as
//! well: names, order and numbers are the same in all formats. Only steps that were executed
//! have rows in `nodes` and `accesses`, so that their sums are those of `reader::summary`.

mod sink;

use std::io::Write;

use reader::{
    Log, Seen, SeenCopy, Visitor,
    rows::{self, Cell},
    tables,
};

use crate::{error::RenderError, log::Stats};
use sink::Sink;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Tensors,
    Evals,
    Tokens,
    Nodes,
    Accesses,
    Routing,
    Devices,
    Kernels,
    Copies,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// With a header line; what is not known is empty.
    Csv,
    /// One object a line; what is not known is `null`.
    Json,
}

impl Table {
    pub const ALL: [Table; 9] = [
        Table::Tensors,
        Table::Evals,
        Table::Tokens,
        Table::Nodes,
        Table::Accesses,
        Table::Routing,
        Table::Devices,
        Table::Kernels,
        Table::Copies,
    ];

    /// What its columns are.
    pub fn schema(self) -> &'static tables::Table {
        match self {
            Table::Tensors => &tables::TENSORS,
            Table::Evals => &tables::EVALS,
            Table::Tokens => &tables::TOKENS,
            Table::Nodes => &tables::NODES,
            Table::Accesses => &tables::ACCESSES,
            Table::Routing => &tables::ROUTING,
            Table::Devices => &tables::DEVICES,
            Table::Kernels => &tables::KERNELS,
            Table::Copies => &tables::COPIES,
        }
    }

    pub fn name(self) -> &'static str {
        self.schema().name
    }
}

/// Writes all rows of one table.
pub fn write_rows(
    log: &Log,
    table: Table,
    format: Format,
    out: &mut dyn Write,
) -> Result<Stats, RenderError> {
    let columns: Vec<&str> = table.schema().column_names().collect();
    let mut rows = Rows {
        table,
        sink: Sink::new(format, &columns, out)?,
    };
    let walked = log.walk(&mut rows)?;
    match table {
        Table::Tensors => {
            let mut tensors = walked.tensors.all().iter();
            tensors.try_for_each(|tensor| rows.sink.row(&rows::tensor(tensor)))?;
        }
        Table::Devices => {
            let mut devices = walked.devices.iter();
            devices.try_for_each(|device| rows.sink.row(&rows::device(device)))?;
        }
        _ => {}
    }
    Ok(Stats::new(walked, rows.sink.finish()?))
}

struct Rows<'a> {
    table: Table,
    sink: Sink<'a>,
}

impl Visitor for Rows<'_> {
    type Error = RenderError;

    fn evaluation(&mut self, seen: &Seen) -> Result<(), RenderError> {
        match self.table {
            Table::Tensors | Table::Devices | Table::Copies => Ok(()),
            Table::Kernels => rows::kernels(seen).try_for_each(|row| self.sink.row(&row)),
            Table::Evals => self.sink.row(&rows::eval(seen, &seen.sums())),
            Table::Tokens => rows::tokens(seen).try_for_each(|row| self.sink.row(&row)),
            Table::Nodes => seen
                .steps()
                .try_for_each(|executed| self.sink.row(&rows::node(seen, &executed))),
            Table::Accesses => self.accesses(seen),
            Table::Routing => {
                let mut result = Ok(());
                rows::routing(seen, |row| self.row_unless_failed(&row, &mut result));
                result
            }
        }
    }

    fn copy(&mut self, copy: &SeenCopy) -> Result<(), RenderError> {
        match self.table {
            Table::Copies => self.sink.row(&rows::copy(copy)),
            _ => Ok(()),
        }
    }
}

impl Rows<'_> {
    fn accesses(&mut self, seen: &Seen) -> Result<(), RenderError> {
        let mut result = Ok(());
        for executed in seen.steps() {
            seen.for_each_access(executed.number, |access| {
                self.row_unless_failed(&rows::access(seen, &executed, &access), &mut result);
            });
        }
        result
    }

    fn row_unless_failed<const N: usize>(
        &mut self,
        row: &[Cell; N],
        result: &mut Result<(), RenderError>,
    ) {
        if result.is_ok() {
            *result = self.sink.row(row);
        }
    }
}
