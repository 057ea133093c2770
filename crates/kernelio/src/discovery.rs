//! Which of the files that a program maps may be its model, when nobody can say yet.
//!
//! Any file named `.gguf` is taken, and any large one that is mapped to be read only:
//! models are blobs without an extension in some programs. Each gets a provisional
//! number, in the order of discovery. What was no model is sorted out at the end, when
//! the run knows ([`Session::finish`](crate::session::Session::finish)).

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use support::proc;

use crate::devices::Device;
use crate::files::{Files, RegisteredFile};

/// Files smaller than this are not models, unless their name says so.
const LARGE_BYTES: u64 = 16 << 20;

/// How deep a tree of processes is followed.
const GENERATIONS: u32 = 8;

/// A file in memory, as the kernel reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileMapping<'a> {
    pub device: Device,
    pub inode: u64,
    pub path: &'a [u8],
    /// `PROT_READ` and its like.
    pub protection: u32,
}

impl<'a> FileMapping<'a> {
    /// `None`: memory.
    pub fn of(mapping: proc::Mapping<'a>) -> Option<FileMapping<'a>> {
        let (major, minor) = mapping.device;
        mapping.is_of_file().then_some(FileMapping {
            device: Device { major, minor },
            inode: mapping.inode,
            path: mapping.path,
            protection: mapping.protection as u32,
        })
    }
}

/// Files found so far. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    files: Arc<Mutex<Files>>,
}

impl Discovery {
    /// Those found so far; later ones come behind them.
    pub fn files(&self) -> Files {
        self.lock().clone()
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Looks at what a process, and those that it has started, have mapped now.
    pub fn look_at(&self, pid: u32) {
        self.look_below(pid, GENERATIONS);
    }

    fn look_below(&self, pid: u32, generations: u32) {
        let maps = proc::maps(pid).unwrap_or_default();
        for file in proc::mappings(&maps).filter_map(FileMapping::of) {
            self.find(&file);
        }
        if generations == 0 {
            return;
        }
        let tasks = fs::read_dir(format!("/proc/{pid}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            for child in children.split_ascii_whitespace() {
                if let Ok(child) = child.parse() {
                    self.look_below(child, generations - 1);
                }
            }
        }
    }

    /// The number of the file, a new one where it may be a model.
    fn find(&self, mapping: &FileMapping<'_>) -> Option<u32> {
        let mut files = self.lock();
        if let Some(number) = files.find(mapping.device, mapping.inode, mapping.path) {
            return Some(number);
        }
        if !mapping.path.starts_with(b"/") {
            return None;
        }
        let is_named = mapping.path.ends_with(b".gguf");
        if !is_named && !is_read_only(mapping) {
            return None;
        }
        let path = Path::new(OsStr::from_bytes(mapping.path));
        let file = RegisteredFile::at(path).ok()?;
        if !is_named && file.bytes < LARGE_BYTES {
            return None;
        }
        // The kernel may name another device, or another link to the file.
        let bytes = file.path.as_os_str().as_bytes();
        let known = files.find(file.device, file.inode, bytes);
        known.or_else(|| files.add(file))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Neither code nor what a program writes to. Libraries are read first and made
/// executable later.
fn is_read_only(mapping: &FileMapping<'_>) -> bool {
    let access = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as u32;
    let is_library =
        mapping.path.ends_with(b".so") || mapping.path.windows(4).any(|w| w == b".so.");
    mapping.protection & access == libc::PROT_READ as u32 && !is_library
}

/// The files of a recording: given, or found on the way.
#[derive(Clone, Debug)]
pub enum Known {
    Given(Files),
    Found(Discovery),
}

impl Known {
    pub(crate) fn find(&self, mapping: &FileMapping<'_>) -> Option<u32> {
        match self {
            Known::Given(files) => files.find(mapping.device, mapping.inode, mapping.path),
            Known::Found(discovery) => discovery.find(mapping),
        }
    }

    /// How many are known by now.
    pub(crate) fn len(&self) -> usize {
        match self {
            Known::Given(files) => files.len(),
            Known::Found(discovery) => discovery.len(),
        }
    }

    /// Those known by now.
    pub fn files(&self) -> Files {
        match self {
            Known::Given(files) => files.clone(),
            Known::Found(discovery) => discovery.files(),
        }
    }
}

impl From<&Files> for Known {
    fn from(files: &Files) -> Known {
        Known::Given(files.clone())
    }
}

impl From<&Discovery> for Known {
    fn from(discovery: &Discovery) -> Known {
        Known::Found(discovery.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::Device;

    #[test]
    fn what_may_be_a_model_gets_a_number() {
        let folder = tempfile::tempdir().unwrap();
        let folder = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir_all(&folder).unwrap();
        let discovery = Discovery::default();
        let check = |name: &str, bytes: u64, protection: i32, expect: Option<u32>| {
            let path = folder.join(name);
            fs::File::create(&path).unwrap().set_len(bytes).unwrap();
            let mapping = FileMapping {
                device: Device { major: 0, minor: 7 },
                inode: 1,
                path: path.as_os_str().as_bytes(),
                protection: protection as u32,
            };
            assert_eq!(discovery.find(&mapping), expect, "{name}");
        };
        let (read, write, exec) = (libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC);
        check("a.gguf", 10, read, Some(0));
        check("small", LARGE_BYTES - 1, read, None);
        check("sha256-1", LARGE_BYTES, read, Some(1));
        check("a.gguf", 10, read | write, Some(0));
        check("data", LARGE_BYTES, read | write, None);
        check("program", LARGE_BYTES, read | exec, None);
        check("libcuda.so.1", LARGE_BYTES, read, None);
        assert_eq!(discovery.len(), 2);
        fs::remove_dir_all(folder).unwrap();
    }
}
