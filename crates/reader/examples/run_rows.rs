//! Every row of every table of a run, then everything added up: the same text on every
//! machine. `tests/attach/aarch64.py` compares what it prints on two of them.
//!
//! `cargo run --release -p reader --example run_rows RUN`

use std::{
    error::Error,
    io::{self, BufWriter, Write},
    path::Path,
};

use reader::{
    Log, Seen, Visitor,
    rows::{self, Cell},
    summary::summarise,
};
use rundir::Run;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: run_rows RUN")?;
    let run = Run::open(Path::new(&path))?;
    let mut printer = Printer {
        out: BufWriter::new(io::stdout().lock()),
    };
    writeln!(printer.out, "{:?} {:?}", run.condition(), run.warning())?;
    let walked = Log::new(&run.log_directory()).walk(&mut printer)?;
    for tensor in walked.tensors.all() {
        printer.row("tensor", &rows::tensor(tensor))?;
    }
    let summary = summarise(&run.log_directory(), &mut |_| {})?;
    writeln!(printer.out, "{summary:#?}")?;
    Ok(printer.out.flush()?)
}

struct Printer<W: Write> {
    out: W,
}

impl<W: Write> Printer<W> {
    fn row(&mut self, table: &str, cells: &[Cell]) -> io::Result<()> {
        write!(self.out, "{table}")?;
        for cell in cells {
            match cell {
                Cell::Null => write!(self.out, "\t-")?,
                Cell::Int(value) => write!(self.out, "\t{value}")?,
                Cell::Float(value) => write!(self.out, "\t{value}")?,
                Cell::Text(text) => write!(self.out, "\t{text:?}")?,
            }
        }
        writeln!(self.out)
    }
}

impl<W: Write> Visitor for Printer<W> {
    type Error = Box<dyn Error>;

    fn evaluation(&mut self, seen: &Seen) -> Result<(), Self::Error> {
        self.row("eval", &rows::eval(seen, &seen.sums()))?;
        for token in rows::tokens(seen) {
            self.row("token", &token)?;
        }
        let mut result = Ok(());
        for executed in seen.steps() {
            self.row("node", &rows::node(seen, &executed))?;
            seen.for_each_access(executed.number, |access| {
                if result.is_ok() {
                    result = self.row("access", &rows::access(seen, &executed, &access));
                }
            });
        }
        rows::routing(seen, |route| {
            if result.is_ok() {
                result = self.row("route", &route);
            }
        });
        Ok(result?)
    }
}
