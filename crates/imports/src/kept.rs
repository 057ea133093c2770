//! Imports that stay with a run: `imported.json` in its directory, their numbers and notes.
//! (Events go into the run's log, with its clock.)

use std::io;
use std::path::Path;

use rules::Subject;
use serde::{Deserialize, Serialize};

use crate::Import;

const FILE: &str = "imported.json";

/// What one file said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    pub file: String,
    pub tool: String,
    pub subjects: Vec<Subject>,
    pub notes: Vec<String>,
}

impl Import {
    /// Adds this one to those of a run; one of the same file is replaced.
    pub fn keep(&self, run: &Path) -> io::Result<()> {
        let mut all = kept(run)?;
        all.retain(|kept| kept.file != self.file);
        all.push(Kept {
            file: self.file.clone(),
            tool: self.format.name().to_owned(),
            subjects: self.subjects.clone(),
            notes: self.notes.clone(),
        });
        let scratch = run.join(format!(".{FILE}-{}", std::process::id()));
        let written = std::fs::write(&scratch, serde_json::to_vec(&all)?)
            .and_then(|()| std::fs::rename(&scratch, run.join(FILE)));
        if written.is_err() {
            let _ = std::fs::remove_file(&scratch);
        }
        written
    }
}

/// Those of a run; none where nothing was imported.
pub fn kept(run: &Path) -> io::Result<Vec<Kept>> {
    match std::fs::read(run.join(FILE)) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
            let text = format!("{FILE}: {error}; remove it and import again");
            io::Error::new(io::ErrorKind::InvalidData, text)
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
