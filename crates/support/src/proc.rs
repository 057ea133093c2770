//! What `/proc` says of a process.

use std::{fs, io, ops::Range};

/// One line of `/proc/PID/maps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    pub start: u64,
    pub end: u64,
    /// `PROT_READ` and its like.
    pub protection: i32,
    pub file_offset: u64,
    /// Major and minor number.
    pub device: (u32, u32),
    /// 0: memory, no file.
    pub inode: u64,
    /// Or a name in brackets, or nothing.
    pub path: &'a [u8],
}

impl Mapping<'_> {
    pub fn is_of_file(&self) -> bool {
        self.inode != 0
    }

    pub fn addresses(&self) -> Range<u64> {
        self.start..self.end
    }
}

/// The list of a process, for [`mappings`].
pub fn maps(pid: u32) -> io::Result<Vec<u8>> {
    fs::read(format!("/proc/{pid}/maps"))
}

/// The same of this process.
pub fn own_maps() -> io::Result<Vec<u8>> {
    fs::read("/proc/self/maps")
}

/// Lines in an unknown form are left out.
pub fn mappings(maps: &[u8]) -> impl Iterator<Item = Mapping<'_>> {
    maps.split(|byte| *byte == b'\n').filter_map(parse_line)
}

/// `7f00-7f01 r--s 00001000 fe:00 4711      /path`, numbers in hexadecimal but for
/// the inode.
fn parse_line(line: &[u8]) -> Option<Mapping<'_>> {
    let mut parts = line.splitn(6, |byte| *byte == b' ');
    let mut text = || std::str::from_utf8(parts.next()?).ok();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = text()?.split_once('-')?;
    let permissions = text()?;
    let file_offset = hex(text()?)?;
    let (major, minor) = text()?.split_once(':')?;
    let inode = text()?.parse().ok()?;
    let path = parts.next().unwrap_or_default().trim_ascii_start();
    let protection = permissions.bytes().fold(0, |all, letter| {
        all | match letter {
            b'r' => libc::PROT_READ,
            b'w' => libc::PROT_WRITE,
            b'x' => libc::PROT_EXEC,
            _ => 0,
        }
    });
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        protection,
        file_offset,
        device: (hex(major)?.try_into().ok()?, hex(minor)?.try_into().ok()?),
        inode,
        path,
    })
}

/// The bytes of a line like `VmData:   1234 kB` in `/proc/meminfo` or `/proc/PID/status`.
pub fn kilobytes_of(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found == key).then_some(value)
    })?;
    let number: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let line = b"7f0a00000000-7f0a10000000 rw-s 00001000 fd:01 131  /models/a b.gguf";
        let mapping = parse_line(line).unwrap();
        assert_eq!(
            mapping,
            Mapping {
                start: 0x7f0a_0000_0000,
                end: 0x7f0a_1000_0000,
                protection: libc::PROT_READ | libc::PROT_WRITE,
                file_offset: 0x1000,
                device: (0xfd, 1),
                inode: 131,
                path: b"/models/a b.gguf",
            }
        );
        assert!(mapping.is_of_file());
        assert!(mapping.addresses().contains(&0x7f0a_0000_0000));
    }

    #[test]
    fn memory_has_no_file_and_nonsense_is_left_out() {
        let maps = b"7ffd-7ffe rw-p 00000000 00:00 0 [stack]\nnonsense\n\n\
                     7f10-7f30 rw-p 00000000 00:00 0 \n7f-x r--p 0 0:0 0\n";
        let found: Vec<Mapping> = mappings(maps).collect();
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|mapping| !mapping.is_of_file()));
        assert_eq!((found[0].path, found[1].path), (&b"[stack]"[..], &b""[..]));
    }

    #[test]
    fn this_program_is_mapped_into_itself() {
        let maps = own_maps().unwrap();
        let here = this_program_is_mapped_into_itself as fn() as usize as u64;
        let mapping = mappings(&maps).find(|m| m.addresses().contains(&here));
        assert!(mapping.unwrap().protection & libc::PROT_EXEC != 0);
    }

    #[test]
    fn kilobytes_are_bytes() {
        let text = "Name:\tcat\nVmData:\t    1234 kB\nThreads:\t1\n";
        assert_eq!(kilobytes_of(text, "VmData"), Some(1234 * 1024));
        assert_eq!(kilobytes_of(text, "Threads"), None);
        assert_eq!(kilobytes_of(text, "VmSwap"), None);
    }
}
