//! Zip archives, as much of them as a wheel needs: the same files give the same bytes.
//!
//! `gzip` compresses: what it writes between its header and its trailer is what zip calls
//! "deflated", and the trailer has the CRC-32 that zip wants.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A file to be archived.
pub struct Entry {
    /// With `/`, relative.
    pub name: String,
    pub content: Content,
    pub is_executable: bool,
}

pub enum Content {
    Bytes(Vec<u8>),
    File(PathBuf),
}

impl Content {
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        match self {
            Content::Bytes(bytes) => Ok(bytes.clone()),
            Content::File(path) => {
                fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
            }
        }
    }
}

struct Deflated {
    bytes: Vec<u8>,
    crc: u32,
    size: u32,
}

/// `-9` takes twice as long for less than a hundredth of the size.
const LEVEL: &str = "-6";
/// Of a gzip file without a name in it, as `-n` writes it from a pipe.
const GZIP_HEADER: usize = 10;
const GZIP_TRAILER: usize = 8;

const VERSION: u16 = 20;
const MADE_ON_UNIX: u16 = 3 << 8 | VERSION;
const NAMES_ARE_UTF_8: u16 = 1 << 11;
const DEFLATED: u16 = 8;
/// 1 January 1980, the earliest that there is: when a file was built is nobody's business.
const DATE: u16 = 1 << 5 | 1;

/// The archive, entries in the order given; the work of compressing is done side by side.
pub fn archive(entries: &[Entry]) -> Result<Vec<u8>, String> {
    let deflated: Vec<Result<Deflated, String>> = std::thread::scope(|scope| {
        let all = entries.iter().map(|entry| scope.spawn(|| deflate(entry)));
        let all: Vec<_> = all.collect();
        let ended = all.into_iter().map(|thread| thread.join());
        ended
            .map(|ended| ended.unwrap_or_else(|_| Err("zip: a thread panicked".into())))
            .collect()
    });
    let mut archive = Vec::new();
    let mut directory = Vec::new();
    for (entry, deflated) in entries.iter().zip(deflated) {
        let deflated = deflated?;
        let place = small(archive.len())?;
        let common = common(entry, &deflated)?;
        archive.extend(b"PK\x03\x04");
        archive.extend(&common);
        archive.extend(entry.name.as_bytes());
        archive.extend(&deflated.bytes);
        let mode: u32 = if entry.is_executable {
            0o100_755
        } else {
            0o100_644
        };
        directory.extend(b"PK\x01\x02");
        directory.extend(MADE_ON_UNIX.to_le_bytes());
        directory.extend(&common);
        // No comment, first disk, no attributes of MS-DOS.
        directory.extend([0; 6]);
        directory.extend((mode << 16).to_le_bytes());
        directory.extend(place.to_le_bytes());
        directory.extend(entry.name.as_bytes());
    }
    let (place, size) = (small(archive.len())?, small(directory.len())?);
    let count = u16::try_from(entries.len()).map_err(|_| "zip: too many files")?;
    archive.extend(directory);
    archive.extend(b"PK\x05\x06\0\0\0\0");
    archive.extend([count.to_le_bytes(), count.to_le_bytes()].concat());
    archive.extend([size.to_le_bytes(), place.to_le_bytes()].concat());
    archive.extend([0, 0]);
    Ok(archive)
}

/// What both headers of a file say.
fn common(entry: &Entry, deflated: &Deflated) -> Result<Vec<u8>, String> {
    let name = u16::try_from(entry.name.len()).map_err(|_| "zip: too long a name")?;
    let mut header = Vec::new();
    for number in [VERSION, NAMES_ARE_UTF_8, DEFLATED, 0, DATE] {
        header.extend(number.to_le_bytes());
    }
    for number in [deflated.crc, small(deflated.bytes.len())?, deflated.size] {
        header.extend(number.to_le_bytes());
    }
    // No extra field.
    header.extend([name.to_le_bytes(), [0, 0]].concat());
    Ok(header)
}

fn small(number: usize) -> Result<u32, String> {
    u32::try_from(number).map_err(|_| "zip: more than 4 GiB".into())
}

fn deflate(entry: &Entry) -> Result<Deflated, String> {
    let packed = gzip(entry.content.bytes()?, LEVEL)?;
    let damaged = || format!("{}: gzip wrote something else than gzip", entry.name);
    // Deflated, without name, comment or extra field.
    if packed.get(..4) != Some(&[0x1f, 0x8b, 8, 0]) || packed.len() < GZIP_HEADER + GZIP_TRAILER {
        return Err(damaged());
    }
    let (body, trailer) = packed.split_at(packed.len() - GZIP_TRAILER);
    let number = |at: usize| trailer[at..at + 4].try_into().map(u32::from_le_bytes);
    Ok(Deflated {
        bytes: body[GZIP_HEADER..].to_vec(),
        crc: number(0).map_err(|_| damaged())?,
        size: number(4).map_err(|_| damaged())?,
    })
}

/// The bytes as `gzip -n LEVEL` packs them.
pub fn gzip(bytes: Vec<u8>, level: &str) -> Result<Vec<u8>, String> {
    filter(Command::new("gzip").args(["-n", level]), bytes)
}

/// What a program makes of the bytes on its standard input.
pub fn filter(command: &mut Command, bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |error: std::io::Error| format!("`{name}` does not start: {error}");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let input = child.stdin.take();
    // If it ends early, its exit code says so.
    let writer = std::thread::spawn(move || input.map(|mut input| input.write_all(&bytes)));
    let output = child.wait_with_output().map_err(failed)?;
    let _ = writer.join();
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!("`{name}` ended with {}", output.status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, bytes: &[u8], is_executable: bool) -> Entry {
        Entry {
            name: name.into(),
            content: Content::Bytes(bytes.to_vec()),
            is_executable,
        }
    }

    /// CRC-32 of "123456789" is what every description of it gives as its check value.
    #[test]
    fn headers_have_checksum_sizes_and_permissions() {
        let archive = archive(&[entry("a", b"123456789", true), entry("b/c", b"", false)]).unwrap();
        assert_eq!(archive[..4], *b"PK\x03\x04");
        assert_eq!(archive[14..18], 0xcbf4_3926_u32.to_le_bytes());
        assert_eq!(archive[22..26], 9_u32.to_le_bytes());
        assert_eq!(archive[30..31], *b"a");
        let directory = archive.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
        let mode = &archive[directory + 40..directory + 42];
        assert_eq!(mode, 0o100_755_u16.to_le_bytes());
        let end = &archive[archive.len() - 22..];
        assert_eq!(end[..4], *b"PK\x05\x06");
        assert_eq!(end[10..12], 2_u16.to_le_bytes());
        assert_eq!(end[16..20], (directory as u32).to_le_bytes());
    }

    #[test]
    fn the_same_files_give_the_same_bytes() {
        let make = || archive(&[entry("a", &[7; 100_000], false)]).unwrap();
        assert_eq!(make(), make());
        assert!(make().len() < 1000);
    }
}
