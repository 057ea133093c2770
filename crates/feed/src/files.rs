//! The model's files: found by where they are mapped, opened for direct reads, and
//! watched for changes.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use support::{direct::Alignment, proc};

use crate::error::FeedError;

const MAGIC: &[u8; 4] = b"GGUF";

/// A file that is mapped into this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: usize,
    pub end: usize,
    pub file_offset: u64,
    pub device: (u32, u32),
    pub inode: u64,
    pub path: PathBuf,
}

/// Mappings of regular files that are not programs, and that nobody writes to: memory that a
/// program shares with a device is mapped from a file, too.
pub fn mappings() -> io::Result<Vec<Mapping>> {
    let maps = proc::own_maps()?;
    Ok(proc::mappings(&maps).filter_map(data_of).collect())
}

fn data_of(mapping: proc::Mapping<'_>) -> Option<Mapping> {
    let is_read_only = mapping.protection & (libc::PROT_EXEC | libc::PROT_WRITE) == 0;
    let is_device = mapping.path.starts_with(b"/dev/") && !mapping.path.starts_with(b"/dev/shm/");
    let is_data =
        mapping.is_of_file() && is_read_only && mapping.path.starts_with(b"/") && !is_device;
    is_data.then(|| Mapping {
        start: mapping.start as usize,
        end: mapping.end as usize,
        file_offset: mapping.file_offset,
        device: mapping.device,
        inode: mapping.inode,
        path: PathBuf::from(OsStr::from_bytes(mapping.path)),
    })
}

/// Whether a file is a model, by its beginning. Devices are not opened.
pub fn is_gguf(path: &Path) -> bool {
    let is_file = path.metadata().is_ok_and(|about| about.is_file());
    let mut magic = [0; 4];
    let mut read = || File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    is_file && read().is_ok() && magic == *MAGIC
}

/// How bytes get from the disk to memory.
pub use support::direct::Method;

/// One file of the model, opened for reading.
#[derive(Debug)]
pub struct ModelFile {
    pub path: PathBuf,
    file: File,
    len_bytes: u64,
    modified: (i64, i64),
}

/// All files, opened the same way.
#[derive(Debug)]
pub struct Files {
    files: Vec<ModelFile>,
    pub is_direct: bool,
    /// Offsets, lengths and addresses of reads are multiples of this.
    pub alignment_bytes: u64,
}

/// Whether reads may pass the page cache by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    PassedBy,
    Used,
}

impl Files {
    /// Opens the files that `mappings` are of. Why direct reads are not possible is
    /// answered beside.
    pub fn open(mappings: &[&Mapping], cache: Cache) -> Result<(Files, Option<String>), FeedError> {
        let mut refused = None;
        if cache == Cache::PassedBy {
            match Files::open_as(mappings, libc::O_DIRECT) {
                Ok(files) if files.alignment_bytes > 0 => return Ok((files, None)),
                Ok(_) => refused = Some("the file system has no direct reads".to_owned()),
                Err(error) => refused = Some(error.to_string()),
            }
        }
        let mut files = Files::open_as(mappings, 0)?;
        files.alignment_bytes = 1;
        Ok((files, refused))
    }

    fn open_as(mappings: &[&Mapping], flags: i32) -> Result<Files, FeedError> {
        let mut files = Vec::new();
        let mut alignment_bytes = 1;
        for mapping in mappings {
            let path = &mapping.path;
            let failed = |cause| FeedError::Open {
                path: path.clone(),
                cause,
            };
            let file = OpenOptions::new()
                .read(true)
                .custom_flags(flags)
                .open(path)
                .map_err(failed)?;
            let about = file.metadata().map_err(failed)?;
            if about.ino() != mapping.inode {
                return Err(FeedError::Changed { path: path.clone() });
            }
            alignment_bytes = match (flags, Alignment::of(&file)) {
                (0, _) => 1,
                (_, Some(alignment)) if alignment_bytes > 0 => {
                    alignment_bytes.max(u64::from(alignment.max_bytes()))
                }
                _ => 0,
            };
            files.push(ModelFile {
                path: path.clone(),
                file,
                len_bytes: about.len(),
                modified: (about.mtime(), about.mtime_nsec()),
            });
        }
        Ok(Files {
            files,
            is_direct: flags != 0,
            alignment_bytes,
        })
    }

    pub fn fd(&self, file: u32) -> RawFd {
        self.files[file as usize].file.as_raw_fd()
    }

    pub fn path(&self, file: u32) -> &Path {
        &self.files[file as usize].path
    }

    pub fn len_bytes(&self, file: u32) -> u64 {
        self.files[file as usize].len_bytes
    }

    /// Whether the files are still those that were mapped. A model that somebody
    /// writes to would give wrong numbers without a word.
    pub fn check(&self) -> Result<(), FeedError> {
        for file in &self.files {
            let about = file.file.metadata().map_err(|cause| FeedError::Open {
                path: file.path.clone(),
                cause,
            })?;
            let now = (about.mtime(), about.mtime_nsec());
            if about.len() != file.len_bytes || now != file.modified {
                return Err(FeedError::Changed {
                    path: file.path.clone(),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_files_that_are_no_programs_are_found() {
        let data = |line: &str| proc::mappings(line.as_bytes()).find_map(data_of);
        let line = "7f0a00000000-7f0a10000000 r--s 00001000 fd:01 131  /models/a b.gguf";
        let mapping = data(line).unwrap();
        assert_eq!(mapping.path, Path::new("/models/a b.gguf"));
        assert_eq!(
            (mapping.start, mapping.end),
            (0x7f0a00000000, 0x7f0a10000000)
        );
        assert_eq!((mapping.file_offset, mapping.inode), (0x1000, 131));
        assert_eq!(mapping.device, (0xfd, 1));
        let in_memory = "7f0a00000000-7f0a10000000 r--s 00000000 00:1a 9 /dev/shm/a.gguf";
        assert_eq!(data(in_memory).unwrap().inode, 9);
        for line in [
            "7f0a00000000-7f0a10000000 r-xp 00000000 fd:01 7 /usr/lib/libc.so.6",
            "7f0a00000000-7f0a10000000 rw-s 00000000 00:01 7 /dev/zero (deleted)",
            "7f0a00000000-7f0a10000000 r--s 00000000 00:05 600 /dev/nvidia-uvm",
            "7f0a00000000-7f0a10000000 rw-s 00001000 fd:01 131 /models/written.gguf",
            "7f0a00000000-7f0a10000000 rw-p 00000000 00:00 0 ",
            "7f0a00000000-7f0a10000000 rw-p 00000000 00:00 0 [heap]",
            "nonsense",
            "",
        ] {
            assert_eq!(data(line), None, "{line}");
        }
    }

    #[test]
    fn model_files_are_known_by_their_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blob");
        assert!(!is_gguf(&path));
        std::fs::write(&path, "GGU").unwrap();
        assert!(!is_gguf(&path));
        std::fs::write(&path, "GGUF and more").unwrap();
        assert!(is_gguf(&path));
        assert!(!is_gguf(folder.path()));
    }

    #[test]
    fn a_file_that_changes_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        std::fs::write(&path, [1; 4096]).unwrap();
        let mapping = Mapping {
            start: 0,
            end: 4096,
            file_offset: 0,
            device: (0, 0),
            inode: std::fs::metadata(&path).unwrap().ino(),
            path: path.clone(),
        };
        let (files, _) = Files::open(&[&mapping], Cache::Used).unwrap();
        files.check().unwrap();
        std::fs::write(&path, [1; 4095]).unwrap();
        let text = files.check().unwrap_err().to_string();
        assert!(text.contains("changed while it was read"), "{text}");
        std::fs::rename(&path, folder.path().join("gone")).unwrap();
        assert!(Files::open(&[&mapping], Cache::Used).is_err());
        std::fs::write(&path, "another").unwrap();
        assert!(Files::open(&[&mapping], Cache::Used).is_err());
    }
}
