//! What a process has mapped, from `/proc/PID/maps`.

use crate::devices::Device;

/// A file in memory, as the kernel reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileMapping<'a> {
    pub device: Device,
    pub inode: u64,
    pub path: &'a [u8],
    /// `PROT_READ` and its like.
    pub protection: u32,
}

/// One line of the list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    pub start: u64,
    pub end: u64,
    pub file_offset: u64,
    /// `None`: memory.
    pub file: Option<FileMapping<'a>>,
}

/// Lines in an unknown form are left out.
pub(crate) fn lines(maps: &[u8]) -> impl Iterator<Item = Line<'_>> {
    maps.split(|byte| *byte == b'\n').filter_map(parse_line)
}

/// `7f00-7f01 r--s 00001000 fe:00 4711      /path`, numbers in hexadecimal but for
/// the inode.
fn parse_line(line: &[u8]) -> Option<Line<'_>> {
    let mut parts = line.splitn(6, |byte| *byte == b' ');
    let mut text = || std::str::from_utf8(parts.next()?).ok();
    let (start, end) = text()?.split_once('-')?;
    let permissions = text()?;
    let file_offset = u64::from_str_radix(text()?, 16).ok()?;
    let (major, minor) = text()?.split_once(':')?;
    let inode: u64 = text()?.parse().ok()?;
    let path = parts.next().unwrap_or_default().trim_ascii_start();
    let device = Device {
        major: u32::from_str_radix(major, 16).ok()?,
        minor: u32::from_str_radix(minor, 16).ok()?,
    };
    let protection = permissions.bytes().fold(0, |all, letter| {
        all | match letter {
            b'r' => libc::PROT_READ as u32,
            b'w' => libc::PROT_WRITE as u32,
            b'x' => libc::PROT_EXEC as u32,
            _ => 0,
        }
    });
    Some(Line {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        file_offset,
        file: (inode != 0).then_some(FileMapping {
            device,
            inode,
            path,
            protection,
        }),
    })
}
