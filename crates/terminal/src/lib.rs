//! What every program of ours says to people, and how.
//!
//! - [`progress`]: bars on terminals;
//! - [`text`]: numbers, sizes and times as people write them;
//! - [`signals`]: Ctrl-C, by which people ask a command to stop;
//! - [`runs`]: runs opened for a command, with what they lack said on stderr;
//! - [`manual`]: man pages, from the definition of the arguments.
//!
//! Results go to stdout, everything else to stderr.

pub mod manual;
pub mod progress;
pub mod runs;
pub mod signals;
pub mod text;

use std::{
    fs::File,
    io::{self, Write as _},
    path::Path,
};

use rundir::error::reason;

/// Prints results; a reader that has seen enough (`| head`) is no error.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{}", text.trim_end()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Creates an output file, which must not exist.
pub fn create_new(path: &Path) -> anyhow::Result<File> {
    File::create_new(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => anyhow::anyhow!(
            "{}: exists already and is not overwritten; remove it, or give another name",
            path.display()
        ),
        _ => anyhow::anyhow!("{}: cannot create: {}", path.display(), reason(&error)),
    })
}
