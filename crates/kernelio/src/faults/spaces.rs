//! Which byte of a registered file an address shows, for each process.
//!
//! Only mappings of registered files are kept, so that a space has a handful; every
//! other mapping only cuts out what it covers.

use support::proc;

use crate::discovery::{FileMapping, Known};
use crate::files::Place;
use crate::quick_map::QuickMap;

/// A mapping as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    pub start: u64,
    pub end: u64,
    pub file_offset: u64,
    /// `None`: memory, or a file that is not registered.
    pub file: Option<u32>,
}

#[derive(Debug, Default)]
pub(super) struct Spaces {
    /// By process, without order: there are few in each.
    by_pid: QuickMap<u32, Vec<Piece>>,
}

/// A part of a registered file in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    start: u64,
    end: u64,
    file: u32,
    file_offset: u64,
}

impl Spaces {
    pub fn find(&self, pid: u32, address: u64) -> Option<Place> {
        let pieces = self.by_pid.get(&pid)?;
        let piece = pieces
            .iter()
            .find(|piece| (piece.start..piece.end).contains(&address))?;
        Some(Place {
            file: piece.file,
            file_offset: piece.file_offset + (address - piece.start),
        })
    }

    /// The new mapping replaces what was at its addresses.
    pub fn map(&mut self, pid: u32, mapped: Mapped) {
        if mapped.file.is_none() && !self.by_pid.contains_key(&pid) {
            return;
        }
        let pieces = self.by_pid.entry(pid).or_default();
        let overlaps = |piece: &Piece| piece.start < mapped.end && mapped.start < piece.end;
        if pieces.iter().any(overlaps) {
            let mut left = Vec::with_capacity(pieces.len() + 2);
            for piece in pieces.drain(..) {
                if !overlaps(&piece) {
                    left.push(piece);
                    continue;
                }
                if piece.start < mapped.start {
                    left.push(Piece {
                        end: mapped.start,
                        ..piece
                    });
                }
                if mapped.end < piece.end {
                    left.push(Piece {
                        start: mapped.end,
                        file_offset: piece.file_offset + (mapped.end - piece.start),
                        ..piece
                    });
                }
            }
            *pieces = left;
        }
        if let Some(file) = mapped.file {
            pieces.push(Piece {
                start: mapped.start,
                end: mapped.end,
                file,
                file_offset: mapped.file_offset,
            });
        }
    }

    /// A new process starts with what its parent has.
    pub fn fork(&mut self, parent: u32, child: u32) {
        match self.by_pid.get(&parent).cloned() {
            Some(pieces) => self.by_pid.insert(child, pieces),
            None => self.by_pid.remove(&child),
        };
    }

    /// Another program starts with nothing.
    pub fn exec(&mut self, pid: u32) {
        self.by_pid.remove(&pid);
    }

    /// What `/proc/PID/maps` lists.
    pub fn read_maps(&mut self, pid: u32, maps: &[u8], known: &Known) {
        for line in proc::mappings(maps) {
            let mapped = Mapped {
                start: line.start,
                end: line.end,
                file_offset: line.file_offset,
                file: FileMapping::of(line).and_then(|file| known.find(&file)),
            };
            self.map(pid, mapped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Files;

    fn mapped(start: u64, end: u64, file_offset: u64, file: Option<u32>) -> Mapped {
        Mapped {
            start,
            end,
            file_offset,
            file,
        }
    }

    #[test]
    fn later_mappings_cut_earlier_ones() {
        let mut spaces = Spaces::default();
        spaces.map(7, mapped(1000, 9000, 0, Some(0)));
        spaces.map(7, mapped(3000, 4000, 0, None));
        spaces.map(7, mapped(8000, 12_000, 500, Some(1)));
        let check = |pid, address, expect: Option<(u32, u64)>| {
            let found = spaces.find(pid, address).map(|p| (p.file, p.file_offset));
            assert_eq!(found, expect, "address {address}");
        };
        check(7, 999, None);
        check(7, 1000, Some((0, 0)));
        check(7, 2999, Some((0, 1999)));
        check(7, 3000, None);
        check(7, 4000, Some((0, 3000)));
        check(7, 7999, Some((0, 6999)));
        check(7, 8000, Some((1, 500)));
        check(7, 12_000, None);
        check(8, 1000, None);
    }

    #[test]
    fn a_child_has_its_parents_mappings_until_it_runs_another_program() {
        let mut spaces = Spaces::default();
        spaces.map(1, mapped(0, 100, 0, Some(0)));
        spaces.fork(1, 2);
        assert!(spaces.find(2, 50).is_some());
        spaces.exec(2);
        assert!(spaces.find(2, 50).is_none() && spaces.find(1, 50).is_some());
        // The number of a process that is gone is given again.
        spaces.fork(1, 2);
        spaces.fork(3, 2);
        assert!(spaces.find(2, 50).is_none());
    }

    #[test]
    fn maps_of_a_process_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a model");
        std::fs::write(&path, "x").unwrap();
        let files = Files::register([&path]).unwrap();
        let file = files.get(0).unwrap();
        let line = format!(
            "7f0000001000-7f0000003000 r--s 00002000 {:02x}:{:02x} {}      {}\n",
            file.device.major,
            file.device.minor,
            file.inode,
            file.path.display()
        );
        let text = format!("rubbish\n00400000-00401000 r-xp 00000000 00:00 0 \n{line}");
        let mut spaces = Spaces::default();
        spaces.read_maps(5, text.as_bytes(), &Known::from(&files));
        let place = spaces.find(5, 0x7f00_0000_1010).unwrap();
        assert_eq!((place.file, place.file_offset), (0, 0x2010));
        assert_eq!(spaces.find(5, 0x40_0000), None);
    }
}
