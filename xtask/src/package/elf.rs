//! What a program or library asks of the system that it runs on: shared libraries by name, and
//! which versions of their symbols. Read from the ELF file, 64-bit little-endian, as the
//! dynamic linker does; a bad file is an error, never a panic.

use std::collections::{BTreeMap, BTreeSet};

/// What [`read`] found.
#[derive(Debug, Default, PartialEq)]
pub struct Needs {
    /// `libc.so.6`, …
    pub libraries: BTreeSet<String>,
    /// `GLIBC_2.34`, … by library.
    pub versions: BTreeMap<String, BTreeSet<String>>,
}

impl Needs {
    /// Of several files together.
    pub fn add(&mut self, other: Needs) {
        self.libraries.extend(other.libraries);
        for (library, versions) in other.versions {
            self.versions.entry(library).or_default().extend(versions);
        }
    }

    /// The newest version of a kind that is asked for: of `GLIBC_` for example 2.34.
    pub fn newest(&self, prefix: &str) -> Option<Vec<u32>> {
        let all = self.versions.values().flatten();
        let of_kind = all.filter_map(|version| version.strip_prefix(prefix));
        of_kind.filter_map(numbers).max()
    }
}

/// `2.34` as numbers; `PRIVATE` is none.
pub fn numbers(version: &str) -> Option<Vec<u32>> {
    version.split('.').map(|part| part.parse().ok()).collect()
}

const DYNAMIC: u32 = 6;
const VERSION_NEEDS: u32 = 0x6fff_fffe;
const NEEDED: u64 = 1;

/// A part of the file, with the number of the section that has its names.
struct Section<'a> {
    kind: u32,
    names: usize,
    bytes: &'a [u8],
}

pub fn read(file: &[u8]) -> Result<Needs, String> {
    if file.get(..6) != Some(b"\x7fELF\x02\x01".as_slice()) {
        return Err("not a 64-bit little-endian ELF file".into());
    }
    needs(file).ok_or_else(|| "a damaged ELF file".into())
}

fn needs(file: &[u8]) -> Option<Needs> {
    let sections = sections(file)?;
    let names_of = |section: &Section| sections.get(section.names).map(|names| names.bytes);
    let mut needs = Needs::default();
    for section in &sections {
        match section.kind {
            DYNAMIC => {
                let names = names_of(section)?;
                for entry in section.bytes.chunks_exact(16) {
                    if u64_at(entry, 0)? == NEEDED {
                        let name = name_at(names, u64_at(entry, 8)?)?;
                        needs.libraries.insert(name);
                    }
                }
            }
            VERSION_NEEDS => versions(section.bytes, names_of(section)?, &mut needs)?,
            _ => {}
        }
    }
    Some(needs)
}

fn sections(file: &[u8]) -> Option<Vec<Section<'_>>> {
    let table = usize::try_from(u64_at(file, 0x28)?).ok()?;
    let (size, count) = (u16_at(file, 0x3a)?, u16_at(file, 0x3c)?);
    (0..usize::from(count))
        .map(|index| {
            let header = file.get(table.checked_add(index * usize::from(size))?..)?;
            let kind = u32_at(header, 4)?;
            let start = usize::try_from(u64_at(header, 0x18)?).ok()?;
            let length = usize::try_from(u64_at(header, 0x20)?).ok()?;
            // Some sections have a size and no bytes.
            let bytes = file.get(start..start.checked_add(length)?).unwrap_or(&[]);
            let names = u32_at(header, 0x28)? as usize;
            Some(Section { kind, names, bytes })
        })
        .collect()
}

/// A list of libraries, each with a list of versions; places are relative to where one stands.
fn versions(bytes: &[u8], names: &[u8], needs: &mut Needs) -> Option<()> {
    let mut library = bytes;
    loop {
        let name = name_at(names, u32_at(library, 4)?.into())?;
        let of_library = needs.versions.entry(name).or_default();
        let mut version = library.get(u32_at(library, 8)? as usize..)?;
        for _ in 0..u16_at(library, 2)? {
            of_library.insert(name_at(names, u32_at(version, 8)?.into())?);
            version = version.get(u32_at(version, 12)? as usize..)?;
        }
        match u32_at(library, 12)? {
            0 => return Some(()),
            step => library = library.get(step as usize..)?,
        }
    }
}

fn name_at(names: &[u8], place: u64) -> Option<String> {
    let rest = names.get(usize::try_from(place).ok()?..)?;
    let name = rest.split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(name).into_owned())
}

fn bytes_at<const N: usize>(bytes: &[u8], place: usize) -> Option<[u8; N]> {
    bytes.get(place..place.checked_add(N)?)?.try_into().ok()
}

fn u16_at(bytes: &[u8], place: usize) -> Option<u16> {
    bytes_at(bytes, place).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], place: usize) -> Option<u32> {
    bytes_at(bytes, place).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], place: usize) -> Option<u64> {
    bytes_at(bytes, place).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_needs_the_c_library() {
        let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let needs = read(&file).unwrap();
        assert!(needs.libraries.contains("libc.so.6"), "{needs:?}");
        // Every x86-64 program that starts has this one or a newer `__libc_start_main`.
        assert!(
            needs.newest("GLIBC_").unwrap() >= vec![2, 2, 5],
            "{needs:?}"
        );
        assert_eq!(needs.newest("GLIBCXX_"), None);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let versions = |list: &[&str]| Needs {
            versions: [(
                "x".to_owned(),
                list.iter().map(|v| (*v).to_owned()).collect(),
            )]
            .into(),
            ..Needs::default()
        };
        let mut needs = versions(&["GLIBC_2.9", "GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_PRIVATE"]);
        assert_eq!(needs.newest("GLIBC_"), Some(vec![2, 34]));
        needs.add(versions(&["GLIBC_2.35"]));
        assert_eq!(needs.newest("GLIBC_"), Some(vec![2, 35]));
    }

    #[test]
    fn no_file_makes_the_reader_panic() {
        assert!(read(b"").is_err());
        assert!(read(b"#!/bin/sh\n").is_err());
        let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for length in (0..4096).step_by(7) {
            assert!(read(&file[..length]).is_err(), "{length}");
        }
        let mut damaged = file[..file.len().min(1 << 20)].to_vec();
        for place in (0..damaged.len()).step_by(997) {
            damaged[place] = 0xff;
            let _ = read(&damaged);
        }
    }
}
