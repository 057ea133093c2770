//! How far the kernel reads ahead on a model's disk: found, changed for a run, put back.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// The setting of one disk.
pub struct ReadAhead {
    file: PathBuf,
    as_found: String,
}

/// A changed setting; dropping it puts back what was found.
#[must_use]
pub struct Changed<'a>(&'a ReadAhead);

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
        // Writing what is there shows whether we may.
        fs::write(&file, &as_found)?;
        Ok(ReadAhead { file, as_found })
    }

    pub fn as_found_kibibytes(&self) -> Option<u32> {
        self.as_found.parse().ok()
    }

    pub fn change(&self, kibibytes: u32) -> io::Result<Changed<'_>> {
        let changed = Changed(self);
        fs::write(&self.file, kibibytes.to_string())?;
        Ok(changed)
    }
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.0.file, &self.0.as_found) {
            eprintln!(
                "tensorscope: {}: cannot put back {}: {error}",
                self.0.file.display(),
                self.0.as_found
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_put_back() {
        let folder = tempfile::tempdir().unwrap();
        let read_ahead = ReadAhead {
            file: folder.path().join("read_ahead_kb"),
            as_found: "128".into(),
        };
        let changed = read_ahead.change(1024).unwrap();
        assert_eq!(fs::read_to_string(&read_ahead.file).unwrap(), "1024");
        drop(changed);
        assert_eq!(fs::read_to_string(&read_ahead.file).unwrap(), "128");
    }
}
