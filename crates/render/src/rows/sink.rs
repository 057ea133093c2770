//! Rows of cells, written as one format or the other.

use std::io::{self, Write};

use reader::rows::Cell;

use crate::{error::RenderError, json::quote, rows::Format};

pub struct Sink<'a> {
    rows: u64,
    writer: Writer<'a>,
}

enum Writer<'a> {
    Csv(Box<csv::Writer<&'a mut dyn Write>>),
    /// With the columns as `"name":`.
    Json(&'a mut dyn Write, Vec<String>),
}

impl<'a> Sink<'a> {
    pub fn new(
        format: Format,
        columns: &[&str],
        out: &'a mut dyn Write,
    ) -> Result<Sink<'a>, RenderError> {
        let writer = match format {
            Format::Csv => {
                let mut writer = Box::new(csv::Writer::from_writer(out));
                writer.write_record(columns).map_err(io_error)?;
                Writer::Csv(writer)
            }
            Format::Json => {
                let keys = columns.iter().map(|name| format!("{}:", quote(name)));
                Writer::Json(out, keys.collect())
            }
        };
        Ok(Sink { rows: 0, writer })
    }

    pub fn row<const N: usize>(&mut self, cells: &[Cell; N]) -> Result<(), RenderError> {
        self.rows += 1;
        match &mut self.writer {
            Writer::Csv(writer) => {
                for cell in cells {
                    let field = match cell {
                        Cell::Null => writer.write_field(""),
                        Cell::Int(n) => writer.write_field(n.to_string()),
                        Cell::Float(f) => writer.write_field(f.to_string()),
                        Cell::Text(t) => writer.write_field(&**t),
                    };
                    field.map_err(io_error)?;
                }
                writer.write_record(None::<&[u8]>).map_err(io_error)?;
            }
            Writer::Json(out, keys) => {
                for (i, (key, cell)) in keys.iter().zip(cells).enumerate() {
                    out.write_all(if i == 0 { b"{" } else { b"," })?;
                    out.write_all(key.as_bytes())?;
                    match cell {
                        Cell::Null => out.write_all(b"null")?,
                        Cell::Int(n) => write!(out, "{n}")?,
                        // JSON has no infinity and no NaN.
                        Cell::Float(f) if !f.is_finite() => out.write_all(b"null")?,
                        Cell::Float(f) => write!(out, "{f}")?,
                        Cell::Text(t) => out.write_all(quote(t).as_bytes())?,
                    }
                }
                out.write_all(b"}\n")?;
            }
        }
        Ok(())
    }

    /// Flushes; the number of rows.
    pub fn finish(self) -> Result<u64, RenderError> {
        match self.writer {
            Writer::Csv(mut writer) => writer.flush()?,
            Writer::Json(out, _) => out.flush()?,
        }
        Ok(self.rows)
    }
}

/// The error below: a caller must be able to tell a broken pipe from a full disk.
fn io_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}
