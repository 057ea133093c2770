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

impl RegisteredFile {
    pub(crate) fn at(path: &Path) -> Result<RegisteredFile, KernelError> {
        let absolute = fs::canonicalize(path).map_err(KernelError::io(path, "cannot open"))?;
        let metadata = fs::metadata(path).map_err(KernelError::io(path, "cannot stat"))?;
        if !metadata.is_file() {
            return Err(KernelError::Unsuitable {
                path: path.to_owned(),
                what: "not a regular file".to_owned(),
            });
        }
        Ok(RegisteredFile {
            path: absolute,
            device: Device::from_stat(metadata.dev()),
            inode: metadata.ino(),
            bytes: metadata.len(),
        })
    }
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
            list.push(RegisteredFile::at(path.as_ref())?);
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

    /// The number of the file in another list, if it is there.
    pub(crate) fn number_in(&self, file: u32, other: &Files) -> Option<u32> {
        let file = self.get(file)?;
        other.find(
            file.device,
            file.inode,
            file.path.as_os_str().as_encoded_bytes(),
        )
    }

    pub(crate) fn add(&mut self, file: RegisteredFile) -> Option<u32> {
        let number = u32::try_from(self.list.len()).ok()?;
        self.list.push(file);
        Some(number)
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
