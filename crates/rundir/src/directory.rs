//! The writing side: making a run directory and ending it.

use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use gguf::{HeadRows, Model};

use crate::error::RunError;
use crate::metadata::{self, Metadata, ModelFile, ModelMetadata, RunStatus, Statistics};
use crate::open::{Run, log_bytes};
use crate::time::Moment;
use crate::{LOG, METADATA, METADATA_TEMPORARY, STRUCTURE, TENSOR_NAMES, names};

/// The directory of a run that is being recorded.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    metadata: Metadata,
    folder: Folder,
}

/// How a run ended, in the words of whoever ended it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    Complete,
    /// With the reason, as it reads after "stopped early:".
    StoppedEarly(String),
}

impl RunDirectory {
    /// Makes the directory with everything but the log's files.
    ///
    /// `path` must not exist, or be an empty directory; its parent must exist.
    /// When something fails, what was made is removed again, so that the same
    /// command can be repeated. `model` is `None` for a program that loads its
    /// own; there is no structure map and no table of names then.
    pub fn create(
        path: &Path,
        metadata: &Metadata,
        model: Option<&Model>,
    ) -> Result<RunDirectory, RunError> {
        let folder = make_folder(path)?;
        let run = RunDirectory {
            path: path.to_owned(),
            metadata: metadata.clone(),
            folder,
        };
        match run.fill(model) {
            Ok(()) => Ok(run),
            Err(error) => {
                run.discard();
                Err(error)
            }
        }
    }

    /// Removes what `create` and a log that was just started made, and nothing
    /// else: nothing was recorded. Errors are not reported, the one that led here
    /// is.
    pub fn discard(self) {
        let log = self.log_directory();
        for entry in fs::read_dir(&log).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_of_a_launcher = |name: &str| {
                name == trace::control::CONTROL
                    || [crate::MODELS, crate::MODEL_SIZES].contains(&name)
                    || [
                        "tokens",
                        "faults",
                        "io",
                        "residency",
                        "cpu",
                        "stacks",
                        "machine",
                    ]
                    .contains(&name)
                    || [crate::PROCESS, "touched-", "turns-"]
                        .iter()
                        .any(|prefix| name.starts_with(prefix))
            };
            let name = path.file_name().and_then(|name| name.to_str());
            if name == Some("status")
                || path.extension() == Some("tslog".as_ref())
                || name.is_some_and(is_of_a_launcher)
            {
                let _ = fs::remove_file(path);
            }
        }
        let _ = fs::remove_dir(&log);
        for name in [TENSOR_NAMES, STRUCTURE, METADATA] {
            let _ = fs::remove_file(self.path.join(name));
        }
        if self.folder == Folder::Made {
            let _ = fs::remove_dir(&self.path);
        }
    }

    /// The directory of a run that this process records, for the thread that ends it where
    /// the one that has made it cannot.
    pub fn again(path: &Path) -> Result<RunDirectory, RunError> {
        let run = Run::open(path)?;
        let metadata = run.metadata().cloned();
        let metadata = metadata.ok_or_else(|| RunError::Io {
            path: path.join(METADATA),
            doing: "cannot read",
            cause: ErrorKind::InvalidData.into(),
        })?;
        Ok(RunDirectory {
            path: path.to_owned(),
            metadata,
            folder: Folder::Made,
        })
    }

    /// A name in the current directory that is not taken:
    /// `tensorscope-run-YYYYMMDD-HHMMSS` (UTC), with `-2`, `-3`… where needed.
    pub fn default_path() -> PathBuf {
        free_name(Path::new(""), Moment::now())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where `trace` puts `status` and the segments.
    pub fn log_directory(&self) -> PathBuf {
        self.path.join(LOG)
    }

    /// What the metadata says now; may be changed until [`RunDirectory::finish`].
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Adds the models that a program turned out to load: the metadata describe
    /// the largest, its structure map and table of names are written, and the
    /// files are those of all models, in the order in which the trace counts them.
    pub fn add_models(&mut self, models: &[Model], files: &[PathBuf]) -> Result<(), RunError> {
        let Some(main) = models.iter().max_by_key(|model| model.len_bytes()) else {
            return Ok(());
        };
        let files = files.iter().map(|path| ModelFile {
            path: path.display().to_string(),
            size_bytes: fs::metadata(path).map_or(0, |about| about.len()),
        });
        self.metadata.model = Some(ModelMetadata {
            files: files.collect(),
            ..ModelMetadata::of(main)
        });
        self.write_model(main)
    }

    /// Writes what the metadata says now; the run goes on.
    pub fn update(&self) -> Result<(), RunError> {
        self.write_metadata()
    }

    /// Bytes of all files of the log.
    pub fn log_bytes(&self) -> u64 {
        log_bytes(&self.log_directory())
    }

    /// Replaces `metadata.json` by its final state, in one step. Call it after
    /// the log is closed: the log's size is measured here.
    pub fn finish(mut self, ending: Ending, statistics: Statistics) -> Result<(), RunError> {
        let now = Moment::now();
        (self.metadata.status, self.metadata.stopped_reason) = match ending {
            Ending::Complete => (RunStatus::Complete, None),
            Ending::StoppedEarly(reason) => (RunStatus::StoppedEarly, Some(reason)),
        };
        self.metadata.finished_utc = Some(now.rfc3339());
        self.metadata.finished_monotonic_nanos = Some(now.monotonic_nanos);
        self.metadata.statistics = Some(Statistics {
            log_bytes: self.log_bytes(),
            ..statistics
        });
        self.write_metadata()
    }

    fn fill(&self, model: Option<&Model>) -> Result<(), RunError> {
        let log = self.log_directory();
        fs::create_dir(&log).map_err(io_error(&log, "cannot create the log folder"))?;
        self.write_metadata()?;
        model.map_or(Ok(()), |model| self.write_model(model))
    }

    fn write_model(&self, model: &Model) -> Result<(), RunError> {
        self.write_file(STRUCTURE, |out| {
            model.write_structure_csv(HeadRows::With, out)
        })?;
        self.write_file(TENSOR_NAMES, |out| {
            names::write(model.tensors().iter().map(|t| &*t.name), out)
        })
    }

    /// Writes aside, syncs, renames, syncs the folder: at every moment, also
    /// after a power failure, `metadata.json` is whole, old or new.
    fn write_metadata(&self) -> Result<(), RunError> {
        let temporary = self.path.join(METADATA_TEMPORARY);
        let path = self.path.join(METADATA);
        let written = (|| {
            let mut file = File::create(&temporary)?;
            let text = serde_json::to_string_pretty(&self.metadata)?;
            file.write_all(metadata::with_checksum(text)?.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            match File::open(&self.path)?.sync_all() {
                // Some file systems cannot sync a folder; the rename stands.
                Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
                synced => synced,
            }
        })();
        written.map_err(|source| {
            // Half a file helps nobody; if even removing fails, the first error
            // is the one to report.
            let _ = fs::remove_file(&temporary);
            io_error(&path, "cannot write")(source)
        })
    }

    fn write_file(
        &self,
        name: &str,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<(), RunError> {
        let path = self.path.join(name);
        let written = File::create_new(&path).and_then(|file| {
            let mut out = BufWriter::new(file);
            write(&mut out)?;
            // The last buffer can be the one that does not fit.
            out.flush()
        });
        written.map_err(io_error(&path, "cannot write"))
    }
}

/// Whether the folder of a run is ours to remove again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Folder {
    Made,
    WasThere,
}

fn make_folder(path: &Path) -> Result<Folder, RunError> {
    let doing = "cannot create the run directory";
    match fs::create_dir(path) {
        Ok(()) => Ok(Folder::Made),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => match what_exists(path)? {
            None => Ok(Folder::WasThere),
            Some(what) => Err(RunError::Exists {
                path: path.to_owned(),
                what,
            }),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => match path.parent() {
            // File systems that make no folders (/proc) say "not found" as well.
            Some(parent) if !parent.as_os_str().is_empty() && !parent.exists() => {
                Err(RunError::NoParent {
                    path: path.to_owned(),
                    parent: parent.to_owned(),
                })
            }
            _ => Err(io_error(path, doing)(error)),
        },
        Err(error) => Err(io_error(path, doing)(error)),
    }
}

/// What stands in the way at `path`; `None` for an empty directory.
fn what_exists(path: &Path) -> Result<Option<String>, RunError> {
    let Ok(about) = fs::metadata(path) else {
        return Ok(Some("a symbolic link that leads nowhere".to_owned()));
    };
    if about.is_file() {
        let what = if is_model(path) { "a model" } else { "a file" };
        return Ok(Some(what.to_owned()));
    }
    if !about.is_dir() {
        return Ok(Some("a device, pipe or socket".to_owned()));
    }
    let mut entries = fs::read_dir(path).map_err(io_error(path, "cannot look into the folder"))?;
    if entries.next().is_none() {
        return Ok(None);
    }
    Ok(Some(match Run::open(path) {
        Ok(run) => match run.metadata().map(|m| m.started_utc.as_str()) {
            Some(started) => format!("a run, started {started},"),
            None => "a run".to_owned(),
        },
        Err(_) => "a folder that is not empty".to_owned(),
    }))
}

/// Whether the file starts as a GGUF model does.
pub(crate) fn is_model(path: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(path).is_ok_and(|mut file| file.read_exact(&mut magic).is_ok()) && magic == *b"GGUF"
}

pub(crate) fn io_error(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> RunError {
    move |cause| RunError::Io {
        path: path.to_owned(),
        doing,
        cause,
    }
}

fn free_name(folder: &Path, now: Moment) -> PathBuf {
    let name = format!("tensorscope-run-{}", now.compact());
    let numbered = (2..).map(|number| folder.join(format!("{name}-{number}")));
    std::iter::once(folder.join(&name))
        .chain(numbered)
        // Not `exists`, which takes a dangling link for nothing.
        .find(|path| fs::symlink_metadata(path).is_err())
        .expect("names do not run out")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_names_count_up_where_taken() {
        let folder = tempfile::tempdir().unwrap();
        let now = Moment {
            unix_nanos: 1_767_268_800_000_000_000,
            monotonic_nanos: 0,
        };
        let expect =
            ["", "-2", "-3"].map(|suffix| format!("tensorscope-run-20260101-120000{suffix}"));
        for name in expect {
            let path = free_name(folder.path(), now);
            assert_eq!(path.file_name().unwrap().to_str(), Some(name.as_str()));
            // A link that leads nowhere takes a name too.
            std::os::unix::fs::symlink("nowhere", path).unwrap();
        }
    }

    #[test]
    fn default_path_lies_in_the_current_directory() {
        let path = RunDirectory::default_path();
        assert_eq!(path.parent(), Some(Path::new("")));
        assert!(!path.exists());
    }
}
