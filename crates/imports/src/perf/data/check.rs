//! Whether all that a `perf.data` claims lies inside it.
//!
//! The parser behind allocates what headers say and follows their offsets. What is refused here
//! never reaches it: sections and records beyond the end, lists longer than their section,
//! records shorter than their own head.

use crate::error::Error;

/// Magic, own size, size of an attribute, three sections, 256 bits of features.
const HEADER_BYTES: u64 = 104;
const MAX_ATTRIBUTE_BYTES: u64 = 4096;
/// The first version of `perf_event_attr`.
const MIN_ATTRIBUTE_BYTES: u64 = 64;
const EVENT_DESC: u32 = 12;
/// Of Android's simpleperf, which lays its files out otherwise.
const FIRST_SIMPLEPERF: u32 = 128;

const MMAP2: u32 = 10;
const AUXTRACE: u32 = 71;
const COMPRESSED: [u32; 2] = [81, 83];
/// On [`MMAP2`]: a build id follows, of at most so many bytes.
const MISC_BUILD_ID: u16 = 1 << 14;
const MAX_BUILD_ID_BYTES: u8 = 20;

pub fn check(file: &str, bytes: &[u8]) -> Result<(), Error> {
    let bytes = Bytes { file, bytes };
    if bytes.bytes.starts_with(b"2ELIFREP") {
        return Err(Error::content(
            file,
            "recorded on a big-endian machine; use `perf script` there and give its text",
        ));
    }
    if !bytes.bytes.starts_with(b"PERFILE2") {
        return Err(bytes.wrong(0, "no perf.data: it begins with PERFILE2"));
    }
    let header_bytes = bytes.u64(8)?;
    if header_bytes < HEADER_BYTES {
        return Err(bytes.wrong(
            8,
            "written to a pipe; record to a file, or use `perf script` and give its text",
        ));
    }
    bytes.within(8, 0, header_bytes, "the header")?;
    let attribute_bytes = bytes.u64(16)?;
    if !(MIN_ATTRIBUTE_BYTES..=MAX_ATTRIBUTE_BYTES).contains(&attribute_bytes) {
        return Err(bytes.wrong(16, format!("attributes of {attribute_bytes} bytes")));
    }
    bytes.section(24, "the attributes")?;
    let (data, data_bytes) = bytes.section(40, "the records")?;
    if data_bytes == 0 {
        return Err(bytes.wrong(
            48,
            "no records: perf was killed before it could write how many there are",
        ));
    }
    if bytes.u64(64)? != 0 {
        return Err(bytes.wrong(64, "written by a perf of before 2013"));
    }
    features(&bytes, data + data_bytes)?;
    records(&bytes, data, data + data_bytes)
}

fn features(bytes: &Bytes<'_>, table: u64) -> Result<(), Error> {
    let mut at = table;
    let mut total = 0u64;
    for word in 0..4u64 {
        let bits = bytes.u64(72 + word * 8)?;
        for bit in (0..64u32).filter(|bit| bits >> bit & 1 == 1) {
            let feature = word as u32 * 64 + bit;
            if feature >= FIRST_SIMPLEPERF {
                return Err(bytes.wrong(72, "written by simpleperf"));
            }
            let (start, length) = bytes.section(at, "a feature")?;
            // Each is read into memory: together they are not more than the file.
            total = total.saturating_add(length);
            if total > bytes.bytes.len() as u64 {
                return Err(bytes.wrong(at, "features that overlap"));
            }
            if feature == EVENT_DESC {
                event_names(bytes, start, start + length)?;
            }
            at += 16;
        }
    }
    Ok(())
}

/// How many events, and of each its attributes, its name and its numbers.
fn event_names(bytes: &Bytes<'_>, start: u64, end: u64) -> Result<(), Error> {
    let (count, attribute_bytes) = (bytes.u32(start)?, u64::from(bytes.u32(start + 4)?));
    if !(MIN_ATTRIBUTE_BYTES..=MAX_ATTRIBUTE_BYTES).contains(&attribute_bytes) {
        return Err(bytes.wrong(start + 4, format!("attributes of {attribute_bytes} bytes")));
    }
    // The list is allocated before it is read.
    if u64::from(count) * attribute_bytes > end - start {
        return Err(bytes.wrong(
            start,
            format!("{count} events, more than there is room for"),
        ));
    }
    let mut at = start + 8;
    for _ in 0..count {
        at += attribute_bytes;
        let ids = u64::from(bytes.u32(at)?);
        let name = u64::from(bytes.u32(at + 4)?);
        let next = at + 8 + name + ids * 8;
        if next > end {
            return Err(bytes.wrong(at, "an event's name and numbers end behind their section"));
        }
        at = next;
    }
    Ok(())
}

fn records(bytes: &Bytes<'_>, start: u64, end: u64) -> Result<(), Error> {
    let mut at = start;
    while at < end {
        let kind = bytes.u32(at)?;
        let misc = bytes.u16(at + 4)?;
        let size = u64::from(bytes.u16(at + 6)?);
        if size < 8 || at + size > end {
            return Err(bytes.wrong(
                at,
                format!("a record of {size} bytes where {} are left", end - at),
            ));
        }
        let mut next = at + size;
        if COMPRESSED.contains(&kind) {
            return Err(bytes.wrong(
                at,
                "compressed; record without `-z`, or use `perf script` and give its text",
            ));
        }
        if kind == AUXTRACE {
            if size < 16 {
                return Err(bytes.wrong(at, "a record of a trace without its length"));
            }
            let length = bytes.u64(at + 8)?;
            next = next.saturating_add(length);
            if next > end {
                return Err(bytes.wrong(
                    at,
                    format!("a trace of {length} bytes where {} are left", end - at),
                ));
            }
        }
        // Process, thread, address, length, offset, then the length of the id.
        if kind == MMAP2
            && misc & MISC_BUILD_ID != 0
            && size > 40
            && bytes.u8(at + 40)? > MAX_BUILD_ID_BYTES
        {
            return Err(bytes.wrong(at, "a build id of more than 20 bytes"));
        }
        at = next;
    }
    Ok(())
}

struct Bytes<'a> {
    file: &'a str,
    bytes: &'a [u8],
}

impl Bytes<'_> {
    fn wrong(&self, offset: u64, reason: impl Into<String>) -> Error {
        Error::Offset {
            file: self.file.to_owned(),
            offset,
            reason: reason.into(),
        }
    }

    fn array<const N: usize>(&self, offset: u64) -> Result<[u8; N], Error> {
        let from = usize::try_from(offset).ok();
        let found = from.and_then(|from| self.bytes.get(from..)?.first_chunk::<N>());
        found.copied().ok_or_else(|| {
            let reason = format!("cut: the file has {} bytes", self.bytes.len());
            self.wrong(offset, reason)
        })
    }

    fn u8(&self, offset: u64) -> Result<u8, Error> {
        self.array(offset).map(u8::from_le_bytes)
    }

    fn u16(&self, offset: u64) -> Result<u16, Error> {
        self.array(offset).map(u16::from_le_bytes)
    }

    fn u32(&self, offset: u64) -> Result<u32, Error> {
        self.array(offset).map(u32::from_le_bytes)
    }

    fn u64(&self, offset: u64) -> Result<u64, Error> {
        self.array(offset).map(u64::from_le_bytes)
    }

    /// Offset and length of a section, which lies inside the file.
    fn section(&self, at: u64, what: &str) -> Result<(u64, u64), Error> {
        let (start, length) = (self.u64(at)?, self.u64(at.saturating_add(8))?);
        self.within(at, start, length, what)?;
        Ok((start, length))
    }

    fn within(&self, at: u64, start: u64, length: u64, what: &str) -> Result<(), Error> {
        let end = start.checked_add(length);
        if end.is_none_or(|end| end > self.bytes.len() as u64) {
            let size = self.bytes.len();
            return Err(self.wrong(
                at,
                format!(
                    "cut: {what} should be {length} bytes from {start}, but the file has {size}"
                ),
            ));
        }
        Ok(())
    }
}
