//! Block devices: which disk a file system lies on, and where on it.
//!
//! Block tracepoints name the whole disk and count its sectors; FIEMAP counts from
//! the start of the file system's device, which may be a partition.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::KernelError;

/// What the kernel calls a sector, whatever the disk does.
pub const SECTOR_BYTES: u64 = 512;

/// How many bits the kernel itself has for a minor number.
const MINOR_BITS: u32 = 20;

/// A device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
}

impl Device {
    /// From `st_dev`, which is packed as the C library wants.
    pub fn from_stat(dev: u64) -> Device {
        Device {
            major: libc::major(dev),
            minor: libc::minor(dev),
        }
    }

    /// From a tracepoint, where it is packed as in the kernel.
    pub fn from_kernel(dev: u32) -> Device {
        Device {
            major: dev >> MINOR_BITS,
            minor: dev & ((1 << MINOR_BITS) - 1),
        }
    }

    pub(crate) fn to_kernel(self) -> u32 {
        (self.major << MINOR_BITS) | self.minor
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// What lies below a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Below {
    /// What is mounted: a partition, a disk, a volume.
    pub device: Device,
    /// The disk that holds it, the same where there are no partitions.
    pub disk: Device,
    /// `nvme0n1`, `dm-0`.
    pub disk_name: String,
    /// First sector of the device on its disk.
    pub start_sector: u64,
    /// Disks that a volume (LVM, RAID, encryption) is made of. Requests carry their
    /// numbers then, and cannot be laid beside the file.
    pub made_of: Vec<Device>,
}

impl Below {
    /// What the file system of device `device` lies on.
    pub fn of(path: &Path, device: Device) -> Result<Below, KernelError> {
        Below::in_sysfs(Path::new("/sys"), path, device)
    }

    fn in_sysfs(sysfs: &Path, path: &Path, device: Device) -> Result<Below, KernelError> {
        let unsuitable = |what: String| KernelError::Unsuitable {
            path: path.to_owned(),
            what,
        };
        // Major 0 is what file systems without one block device get: tmpfs,
        // overlay, btrfs, NFS.
        let link = sysfs.join(format!("dev/block/{device}"));
        let Ok(folder) = fs::canonicalize(&link) else {
            return Err(unsuitable(format!(
                "the file system (device {device}) has no block device of its own, so block requests cannot be laid beside the file; put the file on ext4 or xfs"
            )));
        };
        let is_partition = folder.join("partition").exists();
        let disk_folder = match folder.parent() {
            Some(parent) if is_partition => parent.to_owned(),
            _ => folder.clone(),
        };
        let start_sector = match is_partition {
            true => number(&folder.join("start"))
                .ok_or_else(|| unsuitable(format!("{} tells no start", folder.display())))?,
            false => 0,
        };
        let disk = device_of(&disk_folder)
            .ok_or_else(|| unsuitable(format!("{} tells no device", disk_folder.display())))?;
        let disk_name = disk_folder.file_name().unwrap_or_default();
        let mut made_of = Vec::new();
        add_disks_below(&disk_folder, 8, &mut made_of);
        Ok(Below {
            device,
            disk,
            disk_name: disk_name.to_string_lossy().into_owned(),
            start_sector,
            made_of,
        })
    }

    /// Every device number that requests for this file system may carry.
    pub fn request_devices(&self) -> Vec<Device> {
        let mut all = self.made_of.clone();
        all.extend([self.disk, self.device]);
        all.sort();
        all.dedup();
        all
    }
}

fn device_of(folder: &Path) -> Option<Device> {
    let text = fs::read_to_string(folder.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(Device {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    })
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The disks at the bottom of a stack of volumes; `depth` ends a loop that should
/// not exist.
fn add_disks_below(folder: &Path, depth: u32, found: &mut Vec<Device>) {
    let Ok(slaves) = fs::read_dir(folder.join("slaves")) else {
        return;
    };
    for slave in slaves.flatten() {
        let Ok(slave) = fs::canonicalize(slave.path()) else {
            continue;
        };
        let disk: PathBuf = match slave.parent() {
            Some(parent) if slave.join("partition").exists() => parent.to_owned(),
            _ => slave,
        };
        found.extend(device_of(&disk));
        if depth > 0 {
            add_disks_below(&disk, depth - 1, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn partitions_and_volumes_lead_to_their_disks() {
        let sysfs = tempfile::tempdir().unwrap();
        let root = sysfs.path();
        write(&root.join("devices/nvme0n1/dev"), "259:0\n");
        let partition = root.join("devices/nvme0n1/nvme0n1p2");
        write(&partition.join("dev"), "259:2\n");
        write(&partition.join("partition"), "2\n");
        write(&partition.join("start"), "1050624\n");
        write(&root.join("devices/dm-0/dev"), "252:0\n");
        fs::create_dir_all(root.join("devices/dm-0/slaves")).unwrap();
        fs::create_dir_all(root.join("dev/block")).unwrap();
        let link = |from: &Path, to: &str| std::os::unix::fs::symlink(from, root.join(to)).unwrap();
        link(&partition, "dev/block/259:2");
        link(&partition, "devices/dm-0/slaves/nvme0n1p2");
        link(&root.join("devices/dm-0"), "dev/block/252:0");
        let check = |major, minor, disk: &str, start, below: &[u32]| {
            let device = Device { major, minor };
            let found = Below::in_sysfs(root, Path::new("m.gguf"), device).unwrap();
            assert_eq!(
                (found.disk_name.as_str(), found.start_sector),
                (disk, start)
            );
            let majors: Vec<u32> = found.request_devices().iter().map(|d| d.major).collect();
            assert_eq!(majors, below);
        };
        check(259, 2, "nvme0n1", 1_050_624, &[259, 259]);
        check(252, 0, "dm-0", 0, &[252, 259]);
        let none = Device {
            major: 0,
            minor: 42,
        };
        let error = Below::in_sysfs(root, Path::new("m.gguf"), none).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("m.gguf: the file system (device 0:42) has no")
        );
    }

    #[test]
    fn numbers_survive_the_kernels_packing() {
        let device = Device {
            major: 259,
            minor: 70_000,
        };
        assert_eq!(Device::from_kernel(device.to_kernel()), device);
        assert_eq!(
            Device::from_kernel(254 << 20),
            Device {
                major: 254,
                minor: 0
            }
        );
    }
}
