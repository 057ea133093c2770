//! How far the kernel reads ahead on a model's disk: found, changed for a run, put back
//! ([`Leftover`]: also when we are killed).

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use kernelio::{KernelError, leftover::Leftover};

/// The setting of one disk.
pub struct ReadAhead {
    file: PathBuf,
    as_found_kibibytes: Option<u32>,
}

impl ReadAhead {
    /// Of the disk that the file lies on, if it can be told and may be changed.
    pub fn of(model: &Path) -> io::Result<ReadAhead> {
        let device = fs::metadata(model)?.dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        let block = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        // A partition has its queue at the disk that it is part of.
        let candidates = ["queue/read_ahead_kb", "../queue/read_ahead_kb"];
        let files = candidates.map(|name| block.join(name));
        let file = files.into_iter().find(|file| file.exists());
        let file = file.ok_or(io::ErrorKind::NotFound)?;
        let as_found = fs::read_to_string(&file)?.trim().to_owned();
        // Changing it to what is there shows whether we may, and whether somebody else does.
        drop(Leftover::setting(&file, &as_found).map_err(io::Error::other)?);
        Ok(ReadAhead {
            file,
            as_found_kibibytes: as_found.parse().ok(),
        })
    }

    pub fn as_found_kibibytes(&self) -> Option<u32> {
        self.as_found_kibibytes
    }

    /// Until the result is dropped.
    pub fn change(&self, kibibytes: u32) -> Result<Leftover, KernelError> {
        Leftover::setting(&self.file, &kibibytes.to_string())
    }
}
