//! Issue and completion of a request become one request, by disk and sector.

use crate::devices::{Device, SECTOR_BYTES};
use crate::extents::{DiskMap, Piece};
use crate::kernel_log::io::{Io, Rwbs};
use crate::quick_map::QuickMap;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Issued {
    pub nanos: u64,
    pub device: Device,
    pub sector: u64,
    pub bytes: u64,
    pub rwbs: Rwbs,
    pub pid: u32,
    pub tid: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Completed {
    pub nanos: u64,
    pub device: Device,
    pub sector: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    issued: Issued,
    request: u64,
    is_put_back: bool,
}

#[derive(Debug)]
pub(crate) struct Pairs {
    map: DiskMap,
    open: QuickMap<(Device, u64), Open>,
    requests: u64,
    unpaired: u64,
    /// Reused.
    pieces: Vec<Piece>,
}

impl Pairs {
    pub fn new(map: DiskMap) -> Pairs {
        Pairs {
            map,
            open: QuickMap::default(),
            requests: 0,
            unpaired: 0,
            pieces: Vec::new(),
        }
    }

    /// How many were issued.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Completions without an issue.
    pub fn unpaired(&self) -> u64 {
        self.unpaired
    }

    /// The driver is busy: the request will be issued again.
    pub fn put_back(&mut self, device: Device, sector: u64) {
        if let Some(open) = self.open.get_mut(&(device, sector)) {
            open.is_put_back = true;
        }
    }

    /// Appends the pieces of an older request for the same sector whose completion
    /// was not seen.
    pub fn issued(&mut self, issued: Issued, records: &mut Vec<Io>) {
        let key = (issued.device, issued.sector);
        if let Some(open) = self.open.get_mut(&key) {
            if std::mem::take(&mut open.is_put_back) {
                // It keeps its number and its first time: the reader waits since then.
                // It may have grown meanwhile by a neighbour.
                open.issued.bytes = issued.bytes;
                return;
            }
            let unseen = *open;
            self.write(&unseen, None, records);
        }
        let open = Open {
            issued,
            request: self.requests,
            is_put_back: false,
        };
        self.requests += 1;
        self.open.insert(key, open);
    }

    /// Appends the pieces of the request, if its issue was seen.
    pub fn completed(&mut self, completed: Completed, records: &mut Vec<Io>) {
        let key = (completed.device, completed.sector);
        let Some(open) = self.open.remove(&key) else {
            self.unpaired += 1;
            return;
        };
        let mut done = open;
        // A disk may complete a request in parts, front to back. Each part becomes a
        // request of its own with the number of the whole.
        if completed.bytes < open.issued.bytes {
            done.issued.bytes = completed.bytes;
            let mut rest = open;
            rest.issued.sector += completed.bytes / SECTOR_BYTES;
            rest.issued.bytes -= completed.bytes;
            self.open
                .insert((rest.issued.device, rest.issued.sector), rest);
        }
        self.write(&done, Some(completed.nanos), records);
    }

    /// Appends what was never completed, in the order of issue.
    pub fn finish(&mut self, records: &mut Vec<Io>) {
        let mut open: Vec<Open> = self.open.drain().map(|(_, open)| open).collect();
        open.sort_by_key(|open| open.request);
        for one in open {
            self.write(&one, None, records);
        }
    }

    fn write(&mut self, open: &Open, completed_nanos: Option<u64>, records: &mut Vec<Io>) {
        let issued = &open.issued;
        let mut pieces = std::mem::take(&mut self.pieces);
        self.map
            .pieces(issued.device, issued.sector, issued.bytes, &mut pieces);
        // Requests are far below 4 GiB, but for discards, which may be cut off.
        let narrow = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        for piece in &pieces {
            let piece_at_bytes = narrow(piece.at_bytes);
            records.push(Io {
                issued_nanos: issued.nanos,
                completed_nanos,
                device: issued.device,
                sector: issued.sector,
                request: open.request,
                request_bytes: narrow(issued.bytes),
                piece_at_bytes,
                piece_bytes: narrow(piece.bytes).min(u32::MAX - piece_at_bytes),
                rwbs: issued.rwbs,
                pid: issued.pid,
                tid: issued.tid,
                place: piece.place,
            });
        }
        self.pieces = pieces;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Device = Device { major: 8, minor: 0 };

    fn issued(nanos: u64, sector: u64, bytes: u64) -> Issued {
        Issued {
            nanos,
            device: DISK,
            sector,
            bytes,
            rwbs: Rwbs::from_text(b"RA"),
            pid: 1,
            tid: 2,
        }
    }

    fn completed(nanos: u64, sector: u64, bytes: u64) -> Completed {
        Completed {
            nanos,
            device: DISK,
            sector,
            bytes,
        }
    }

    #[test]
    fn requests_are_paired_in_any_order_and_in_parts() {
        let mut pairs = Pairs::new(DiskMap::default());
        let mut records = Vec::new();
        pairs.completed(completed(1, 8, 512), &mut records);
        pairs.issued(issued(10, 100, 4096), &mut records);
        pairs.issued(issued(11, 200, 8192), &mut records);
        pairs.issued(issued(12, 300, 512), &mut records);
        pairs.put_back(DISK, 300);
        pairs.issued(issued(13, 300, 512), &mut records);
        pairs.completed(completed(20, 200, 4096), &mut records);
        pairs.completed(completed(21, 100, 4096), &mut records);
        pairs.completed(completed(22, 208, 4096), &mut records);
        // The completion of the request before was not seen.
        pairs.issued(issued(23, 300, 512), &mut records);
        pairs.finish(&mut records);
        let found: Vec<_> = records
            .iter()
            .map(|io| (io.request, io.sector, io.issued_nanos, io.completed_nanos))
            .collect();
        assert_eq!(
            found,
            [
                (1, 200, 11, Some(20)),
                (0, 100, 10, Some(21)),
                (1, 208, 11, Some(22)),
                (2, 300, 12, None),
                (3, 300, 23, None)
            ]
        );
        assert_eq!((pairs.requests(), pairs.unpaired()), (4, 1));
    }
}
