//! Where the bytes of a file are on the disk (`FIEMAP`), and the way back from
//! sectors to bytes of files.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::devices::{Below, Device, SECTOR_BYTES};
use crate::error::{KernelError, Missing};
use crate::files::{Files, Place};
use crate::quick_map::QuickMap;

const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
const FIEMAP_FLAG_SYNC: u32 = 1;
const EXTENT_LAST: u32 = 1 << 0;
/// The place is unknown, not yet decided, or not one: delayed, compressed or
/// encrypted, inline, or a tail shared with other data.
const EXTENT_NOT_A_PLACE: u32 = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400;

/// Extents asked for in one call.
const EXTENTS_PER_CALL: usize = 256;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct RawMap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [RawExtent; EXTENTS_PER_CALL],
}

/// Bytes of a file that lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub file_offset: u64,
    /// From the start of the device of the file system.
    pub device_offset: u64,
    pub bytes: u64,
}

/// A file on its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extents {
    pub list: Vec<Extent>,
    pub below: Below,
}

impl Extents {
    pub fn of(path: &Path) -> Result<Extents, KernelError> {
        let file = File::open(path).map_err(KernelError::io(path, "cannot open"))?;
        let metadata = file
            .metadata()
            .map_err(KernelError::io(path, "cannot stat"))?;
        // Asked first: its message says more than FIEMAP's refusal would.
        let below = Below::of(path, Device::from_stat(metadata.dev()))?;
        Ok(Extents {
            list: list(path, &file)?,
            below,
        })
    }
}

fn list(path: &Path, file: &File) -> Result<Vec<Extent>, KernelError> {
    let mut map = Box::new(RawMap {
        start: 0,
        length: u64::MAX,
        flags: FIEMAP_FLAG_SYNC,
        mapped_extents: 0,
        extent_count: EXTENTS_PER_CALL as u32,
        reserved: 0,
        extents: [RawExtent::default(); EXTENTS_PER_CALL],
    });
    let mut all = Vec::new();
    loop {
        // SAFETY: the kernel reads the head of the struct and writes at most
        // `extent_count` extents behind it, which is how many there are.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as _, &raw mut *map) };
        if result < 0 {
            let cause = io::Error::last_os_error();
            return Err(match cause.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::ENOTTY) => KernelError::Unsuitable {
                    path: path.to_owned(),
                    what: "the file system does not tell where files are on the disk (no FIEMAP); put the file on ext4 or xfs".to_owned(),
                },
                _ => KernelError::io(path, "cannot ask where it is on the disk")(cause),
            });
        }
        let mapped = (map.mapped_extents as usize).min(EXTENTS_PER_CALL);
        let extents = &map.extents[..mapped];
        for raw in extents {
            if raw.flags & EXTENT_NOT_A_PLACE == 0 {
                all.push(Extent {
                    file_offset: raw.logical,
                    device_offset: raw.physical,
                    bytes: raw.length,
                });
            }
        }
        match extents.last() {
            Some(last) if last.flags & EXTENT_LAST == 0 && last.length > 0 => {
                map.start = last.logical + last.length;
                map.length = u64::MAX - map.start;
            }
            _ => return Ok(all),
        }
    }
}

/// Bytes of a disk that belong to a registered file.
#[derive(Clone, Copy, Debug)]
struct Owned {
    start: u64,
    end: u64,
    place: Place,
}

/// From sectors to bytes of files.
#[derive(Clone, Debug, Default)]
pub struct DiskMap {
    /// Sorted, without overlaps.
    by_device: QuickMap<Device, Vec<Owned>>,
    devices: Vec<Device>,
}

/// A part of a request that lies in one file, or in none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// From the start of the request.
    pub at_bytes: u64,
    pub bytes: u64,
    pub place: Option<Place>,
}

impl DiskMap {
    /// Where the files are now. Files whose place cannot be known are in the second
    /// part; their requests are recorded where their disk is known, without a file.
    pub fn of(files: &Files) -> Result<(DiskMap, Vec<Missing>), KernelError> {
        let mut map = DiskMap::default();
        let mut missing = Vec::new();
        for (number, file) in files.iter() {
            let extents = match Extents::of(&file.path) {
                Ok(extents) => extents,
                Err(KernelError::Unsuitable { path, what }) => {
                    missing.push(Missing {
                        what: format!("which bytes of {} a block request reads", path.display()),
                        why: what,
                        fix: "page faults and residency need no such place".to_owned(),
                    });
                    // Of a file system without FIEMAP the disk may still be known.
                    if let Ok(below) = Below::of(&file.path, file.device) {
                        map.devices.extend(below.request_devices());
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            if !extents.below.made_of.is_empty() {
                missing.push(Missing {
                    what: format!(
                        "which bytes of {} a block request reads",
                        file.path.display()
                    ),
                    why: format!(
                        "{} is a volume made of other disks (LVM, RAID or encryption)",
                        extents.below.disk_name
                    ),
                    fix: "put the model on a file system on a plain partition".to_owned(),
                });
            }
            map.devices.extend(extents.below.request_devices());
            map.add(number, &extents);
        }
        map.devices.sort();
        map.devices.dedup();
        Ok((map, missing))
    }

    /// Tracepoints count from the start of the disk, others (`blkparse` of a
    /// partition) from that of the partition: both are entered.
    pub fn add(&mut self, file: u32, extents: &Extents) {
        let below = &extents.below;
        let mut enter = |device, shift_bytes| {
            let owned = self.by_device.entry(device).or_default();
            owned.extend(extents.list.iter().map(|extent| Owned {
                start: extent.device_offset + shift_bytes,
                end: extent.device_offset + shift_bytes + extent.bytes,
                place: Place {
                    file,
                    file_offset: extent.file_offset,
                },
            }));
            owned.sort_by_key(|owned| owned.start);
        };
        enter(below.disk, below.start_sector * SECTOR_BYTES);
        if below.device != below.disk {
            enter(below.device, 0);
        }
    }

    /// Devices that requests for the files carry.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Cuts a request into pieces; they follow each other and sum up to it.
    pub fn pieces(&self, device: Device, sector: u64, bytes: u64, pieces: &mut Vec<Piece>) {
        pieces.clear();
        let begin = sector.saturating_mul(SECTOR_BYTES);
        let end = begin.saturating_add(bytes);
        let owned = self.by_device.get(&device).map_or(&[][..], Vec::as_slice);
        let mut at = begin;
        let first = owned.partition_point(|owned| owned.end <= begin);
        let mut push = |from: u64, to: u64, place: Option<Place>| {
            if from < to {
                pieces.push(Piece {
                    at_bytes: from - begin,
                    bytes: to - from,
                    place,
                });
            }
        };
        for owned in owned[first..].iter().take_while(|owned| owned.start < end) {
            push(at, owned.start, None);
            // Two registered files may share blocks (reflinks): the first has them.
            at = at.max(owned.start);
            let to = owned.end.min(end);
            push(
                at,
                to,
                Some(Place {
                    file: owned.place.file,
                    file_offset: owned.place.file_offset + (at - owned.start),
                }),
            );
            at = at.max(to);
        }
        push(at, end, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Device = Device { major: 8, minor: 0 };
    const PARTITION: Device = Device { major: 8, minor: 1 };

    fn map() -> DiskMap {
        let extent = |file_offset, device_offset, bytes| Extent {
            file_offset,
            device_offset,
            bytes,
        };
        let extents = Extents {
            list: vec![extent(0, 40_960, 8192), extent(8192, 4096, 4096)],
            below: Below {
                device: PARTITION,
                disk: DISK,
                disk_name: "sda".to_owned(),
                start_sector: 8,
                made_of: Vec::new(),
            },
        };
        let mut map = DiskMap::default();
        map.add(3, &extents);
        map
    }

    #[test]
    fn requests_are_cut_where_extents_end() {
        let map = map();
        let check = |device, sector, bytes, expect: &[(u64, u64, Option<u64>)]| {
            let mut pieces = Vec::new();
            map.pieces(device, sector, bytes, &mut pieces);
            let found: Vec<_> = pieces
                .iter()
                .map(|p| (p.at_bytes, p.bytes, p.place.map(|p| p.file_offset)))
                .collect();
            assert_eq!(found, expect);
        };
        check(DISK, 16, 4096, &[(0, 4096, Some(8192))]);
        check(PARTITION, 8, 4096, &[(0, 4096, Some(8192))]);
        check(
            DISK,
            8,
            65_536,
            &[
                (0, 4096, None),
                (4096, 4096, Some(8192)),
                (8192, 32_768, None),
                (40_960, 8192, Some(0)),
                (49_152, 16_384, None),
            ],
        );
        check(DISK, 92, 512, &[(0, 512, Some(2048))]);
        check(DISK, 1000, 512, &[(0, 512, None)]);
        check(Device { major: 9, minor: 9 }, 16, 512, &[(0, 512, None)]);
        check(DISK, u64::MAX, 512, &[]);
    }

    proptest::proptest! {
        #[test]
        fn pieces_always_sum_up_to_the_request(sector in 0u64..200, sectors in 1u64..200) {
            let mut pieces = Vec::new();
            map().pieces(DISK, sector, sectors * 512, &mut pieces);
            let mut at = 0;
            for piece in &pieces {
                assert_eq!(piece.at_bytes, at);
                at += piece.bytes;
            }
            assert_eq!(at, sectors * 512);
        }
    }
}
