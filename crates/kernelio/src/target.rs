//! The file that is read: its size, what direct reads of it must be aligned to,
//! and what about it would make a figure too high.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use support::direct::Alignment;

use crate::error::CeilingError;

/// A regular file with something in it, opened for reading only.
pub(crate) struct Target {
    pub path: PathBuf,
    pub file: File,
    pub size_bytes: u64,
    /// `None` where the kernel says that direct reads of this file are impossible.
    pub direct: Option<Alignment>,
    pub is_in_memory: bool,
    pub has_holes: bool,
}

impl Target {
    pub fn open(path: &Path) -> Result<Target, CeilingError> {
        let failed = |doing, cause| CeilingError::Open {
            path: path.to_owned(),
            doing,
            cause,
        };
        let unsuitable = |what| CeilingError::Unsuitable {
            path: path.to_owned(),
            what,
        };
        // Asked before opening: opening a pipe would wait for a writer.
        let is_file = |metadata: std::fs::Metadata| metadata.is_file();
        match std::fs::metadata(path).map(is_file) {
            Ok(true) => {}
            Ok(false) => return Err(unsuitable("not a regular file")),
            Err(cause) => return Err(failed("cannot be opened", cause)),
        }
        let file = File::open(path).map_err(|cause| failed("cannot be opened", cause))?;
        let metadata = file
            .metadata()
            .map_err(|cause| failed("its size cannot be asked", cause))?;
        if metadata.len() == 0 {
            return Err(unsuitable("the file is empty"));
        }
        Ok(Target {
            path: path.to_owned(),
            size_bytes: metadata.len(),
            direct: Alignment::of(&file),
            is_in_memory: is_in_memory(&file),
            // `blocks` counts units of 512 bytes whatever the block size.
            has_holes: metadata.blocks().saturating_mul(512) < metadata.len(),
            file,
        })
    }

    /// The same file once more, for reads that pass the page cache by.
    pub fn open_direct(&self) -> io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(&self.path)?;
        let (ours, now) = (self.file.metadata()?, file.metadata()?);
        if (ours.dev(), ours.ino()) != (now.dev(), now.ino()) {
            return Err(io::Error::other("the file was replaced by another one"));
        }
        Ok(file)
    }
}

fn is_in_memory(file: &File) -> bool {
    // SAFETY: `statfs` is made of integers, for which zero is a value.
    let mut answer: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `answer` lives through the call and the descriptor is open.
    let result = unsafe { libc::fstatfs(file.as_raw_fd(), &mut answer) };
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    // The width of the field differs between architectures.
    #[allow(clippy::unnecessary_cast)]
    let kind = answer.f_type as i64;
    result == 0 && [TMPFS_MAGIC, RAMFS_MAGIC, HUGETLBFS_MAGIC].contains(&kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_measured_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let check = |path: &Path, expect: &str| {
            let text = Target::open(path).err().unwrap().to_string();
            assert!(text.starts_with(&path.display().to_string()), "{text}");
            assert!(text.contains(expect), "{text}");
        };
        check(folder.path(), "not a regular file");
        check(&folder.path().join("missing"), "no such file");
        check(Path::new("/dev/null"), "not a regular file");
        let empty = folder.path().join("empty");
        std::fs::write(&empty, "").unwrap();
        check(&empty, "the file is empty");
    }

    #[test]
    fn holes_are_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        assert!(Target::open(&path).unwrap().has_holes);
    }

    #[test]
    fn a_file_replaced_by_another_is_not_mixed_up_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        std::fs::write(&path, "one").unwrap();
        let target = Target::open(&path).unwrap();
        std::fs::write(folder.path().join("other"), "two").unwrap();
        std::fs::rename(folder.path().join("other"), &path).unwrap();
        assert!(target.open_direct().is_err());
    }
}
