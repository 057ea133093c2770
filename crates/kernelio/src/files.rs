//! The files whose pages matter: those of the model, known to the kernel by device
//! and inode, and to a log by their place in this list.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::devices::Device;
use crate::error::KernelError;

/// A byte of a registered file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which file, in the order of registration.
    pub file: u32,
    pub file_offset: u64,
}

/// One of [`Files`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredFile {
    /// Absolute, without links.
    pub path: PathBuf,
    pub device: Device,
    pub inode: u64,
    pub bytes: u64,
}

/// The files of a recording, in a fixed order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    list: Vec<RegisteredFile>,
}

impl Files {
    pub fn register<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
    ) -> Result<Files, KernelError> {
        let mut list = Vec::new();
        for path in paths {
            let path = path.as_ref();
            let absolute = fs::canonicalize(path).map_err(KernelError::io(path, "cannot open"))?;
            let metadata = fs::metadata(path).map_err(KernelError::io(path, "cannot stat"))?;
            if !metadata.is_file() {
                return Err(KernelError::Unsuitable {
                    path: path.to_owned(),
                    what: "not a regular file".to_owned(),
                });
            }
            list.push(RegisteredFile {
                path: absolute,
                device: Device::from_stat(metadata.dev()),
                inode: metadata.ino(),
                bytes: metadata.len(),
            });
        }
        Ok(Files { list })
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &RegisteredFile)> {
        (0..).zip(&self.list)
    }

    pub fn get(&self, file: u32) -> Option<&RegisteredFile> {
        self.list.get(usize::try_from(file).ok()?)
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Which file a mapping shows. The path is asked second: on overlay and btrfs
    /// the kernel names another device in mappings than in `stat`.
    pub(crate) fn find(&self, device: Device, inode: u64, path: &[u8]) -> Option<u32> {
        self.iter()
            .find(|(_, file)| {
                (file.device, file.inode) == (device, inode)
                    || file.path.as_os_str().as_encoded_bytes() == path
            })
            .map(|(number, _)| number)
    }
}
