//! A program as it was typed: which file is meant, how it is started, and whether it can be
//! recorded by preloading, as its file tells.
//!
//! Reads the ELF headers only, and for a stripped program the bytes of its
//! read-only data. Whether a program loads ggml later cannot be known here.

use std::{
    ffi::{OsStr, OsString},
    fmt, fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

use rundir::error::reason;

/// Why preloading cannot work, by what to do instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// ggml is inside the program: there is no call that could be caught.
    StaticGgml,
    /// The same, told by its texts: the names are gone.
    StrippedGgml,
    SetUser,
    Is32Bit,
    /// Of another processor than this machine's.
    OtherMachine,
    /// Of another C library than ours.
    Musl,
}

impl Refusal {
    /// Why, and what to do about it.
    fn reasons(&self) -> (&'static str, &'static str) {
        match self {
            Refusal::StaticGgml => (
                "the program is linked statically to ggml",
                "a build with -DBUILD_SHARED_LIBS=ON",
            ),
            Refusal::StrippedGgml => (
                "the program has ggml linked into it and is stripped",
                "a build with -DBUILD_SHARED_LIBS=ON",
            ),
            Refusal::SetUser => (
                "the program is setuid or setgid, or has file capabilities, and the loader preloads nothing then",
                "a copy of it without them (`cp PROGRAM /tmp/`)",
            ),
            Refusal::Is32Bit => (
                "it is a 32-bit program, and tensorscope records 64-bit ones",
                "a 64-bit build of it",
            ),
            Refusal::OtherMachine => (
                "it is a program for another processor",
                "a build for this machine",
            ),
            Refusal::Musl => (
                "the program uses musl, and this tensorscope is built for glibc",
                "a build of it for glibc",
            ),
        }
    }

    /// The same for a program that is to be fed.
    pub fn of_feeding(&self) -> String {
        let (why, fix) = self.reasons();
        let why = why.replace("records 64-bit", "feeds 64-bit");
        format!(
            "it cannot be fed: {why}\n  \
             try: {fix}, or `tensorscope run -m MODEL -p TEXT` to use the built-in engine"
        )
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (why, fix) = self.reasons();
        let instead = match self {
            Refusal::SetUser => "record as the user that it runs as",
            _ => "`tensorscope record -m MODEL -p TEXT` to use the built-in engine",
        };
        write!(
            f,
            "no trace can be written: {why}\n  try: {fix}, or {instead}"
        )
    }
}

/// Finds a program as a shell does.
pub fn find(name: &OsStr) -> io::Result<PathBuf> {
    let is_program = |path: &Path| {
        fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match fs::metadata(&path) {
            Err(error) => Err(error),
            Ok(_) if is_program(&path) => Ok(path),
            Ok(_) => Err(io::ErrorKind::PermissionDenied.into()),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|path| is_program(path))
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Why a program could not be started.
pub fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such program; check the name and PATH".into(),
        io::ErrorKind::PermissionDenied => "it may not be executed; see `chmod +x`".into(),
        _ => reason(error),
    }
}

/// The program, with its arguments.
pub fn typed(words: &[OsString], program: &Path) -> Command {
    let mut command = Command::new(program);
    // What the program takes for its name is what was typed.
    std::os::unix::process::CommandExt::arg0(&mut command, &words[0]);
    command.args(&words[1..]);
    command
}

/// Puts the library in front of what is preloaded already.
pub fn preload(command: &mut Command, library: &Path) {
    let mut preload = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    command.env("LD_PRELOAD", preload);
}

/// `None` when nothing speaks against it, or the file cannot be read.
pub fn refusal(path: &Path) -> Option<Refusal> {
    let mut path = path.to_owned();
    // A script is run by its interpreter, which may be a script.
    for _ in 0..4 {
        let about = fs::metadata(&path).ok()?;
        let bytes = fs::read(&path).ok()?;
        if let Some(interpreter) = interpreter_of_script(&bytes) {
            path = interpreter;
            continue;
        }
        return if gains_privileges(&path, &about) {
            Some(Refusal::SetUser)
        } else {
            refusal_of_elf(&bytes)
        };
    }
    None
}

fn interpreter_of_script(bytes: &[u8]) -> Option<PathBuf> {
    let line = bytes.strip_prefix(b"#!")?.split(|&b| b == b'\n').next()?;
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let first = Path::new(OsStr::from_bytes(words.next()?)).to_owned();
    if first.file_name() != Some(OsStr::new("env")) {
        return Some(first);
    }
    // `#!/usr/bin/env -S python3 -u`.
    let program = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
    find(OsStr::from_bytes(program)).ok()
}

/// Whether the kernel tells the loader to trust nothing of the environment.
fn gains_privileges(path: &Path, about: &fs::Metadata) -> bool {
    // SAFETY: both have no arguments.
    let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
    let mode = about.permissions().mode();
    let by_bits = mode & libc::S_ISUID != 0 && about.uid() != user
        || mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0 && about.gid() != group;
    let has_capabilities = || {
        let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else {
            return false;
        };
        // SAFETY: two C strings and no buffer: only the size is asked for.
        let bytes = unsafe {
            libc::getxattr(
                path.as_ptr(),
                c"security.capability".as_ptr(),
                std::ptr::null_mut(),
                0,
            )
        };
        bytes > 0
    };
    by_bits || user != 0 && has_capabilities()
}

/// Of the machine that this program was built for.
const OUR_MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    62
} else {
    183
};
const SHT_SYMTAB: u32 = 2;
const SHT_DYNAMIC: u32 = 6;
const SHT_DYNSYM: u32 = 11;
const DT_NEEDED: u64 = 1;
const PT_INTERP: u32 = 3;
/// Texts of ggml's that no build lacks.
const TEXTS: [&[u8]; 2] = [b"ggml_backend_sched", b"GGML_ASSERT("];

fn refusal_of_elf(bytes: &[u8]) -> Option<Refusal> {
    if !bytes.starts_with(b"\x7fELF") {
        return None;
    }
    match (bytes.get(4)?, bytes.get(5)?) {
        (1, _) => return Some(Refusal::Is32Bit),
        (2, 1) => {}
        _ => return Some(Refusal::OtherMachine),
    }
    let elf = Elf { bytes };
    if elf.u16(18)? != OUR_MACHINE {
        return Some(Refusal::OtherMachine);
    }
    let interpreter = elf.interpreter();
    if interpreter.is_some_and(|name| name.windows(4).any(|w| w == b"musl")) {
        return Some(Refusal::Musl);
    }
    let mut has_symbols = false;
    for section in elf.sections() {
        if section.ty == SHT_SYMTAB || section.ty == SHT_DYNSYM {
            has_symbols |= section.ty == SHT_SYMTAB;
            if elf.defines(&section, b"ggml_graph_compute") {
                return Some(Refusal::StaticGgml);
            }
        }
    }
    if !has_symbols && TEXTS.iter().all(|text| contains(bytes, text)) && !elf.needs_ggml() {
        return Some(Refusal::StrippedGgml);
    }
    None
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    let (first, rest) = (text[0], &text[1..]);
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|&b| b == first) {
        at += found + 1;
        if bytes[at..].starts_with(rest) {
            return true;
        }
    }
    false
}

/// A 64-bit little-endian file; every read is checked against its length.
struct Elf<'a> {
    bytes: &'a [u8],
}

struct Section {
    ty: u32,
    offset: u64,
    size: u64,
    link: u32,
}

impl<'a> Elf<'a> {
    fn at(&self, offset: u64, size: u64) -> Option<&'a [u8]> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(size).ok()?)?;
        self.bytes.get(start..end)
    }

    fn u16(&self, offset: u64) -> Option<u16> {
        Some(u16::from_le_bytes(self.at(offset, 2)?.try_into().ok()?))
    }

    fn u32(&self, offset: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.at(offset, 4)?.try_into().ok()?))
    }

    fn u64(&self, offset: u64) -> Option<u64> {
        Some(u64::from_le_bytes(self.at(offset, 8)?.try_into().ok()?))
    }

    fn interpreter(&self) -> Option<&'a [u8]> {
        let (table, size, count) = (self.u64(32)?, self.u16(54)?, self.u16(56)?);
        (0..count).find_map(|i| {
            let header = table.checked_add(u64::from(i) * u64::from(size))?;
            (self.u32(header)? == PT_INTERP)
                .then(|| self.at(self.u64(header + 8)?, self.u64(header + 32)?))?
        })
    }

    fn section(&self, number: u32) -> Option<Section> {
        let (table, size) = (self.u64(40)?, self.u16(58)?);
        let header = table.checked_add(u64::from(number) * u64::from(size))?;
        Some(Section {
            ty: self.u32(header + 4)?,
            offset: self.u64(header + 24)?,
            size: self.u64(header + 32)?,
            link: self.u32(header + 40)?,
        })
    }

    fn sections(&self) -> impl Iterator<Item = Section> {
        let count = self.u16(60).unwrap_or(0);
        (0..u32::from(count)).filter_map(|i| self.section(i))
    }

    /// Whether it is linked to a shared library of llama.cpp's.
    fn needs_ggml(&self) -> bool {
        let is_theirs = |name: &[u8]| name.starts_with(b"libggml") || name.starts_with(b"libllama");
        let mut tables = self.sections().filter(|section| section.ty == SHT_DYNAMIC);
        tables.any(|section| {
            let table = self.at(section.offset, section.size).unwrap_or(&[]);
            let names = self
                .section(section.link)
                .and_then(|s| self.at(s.offset, s.size))
                .unwrap_or(&[]);
            table.chunks_exact(16).any(|entry| {
                let (tag, value) = entry.split_at(8);
                let start = value.try_into().map_or(0, usize::from_le_bytes);
                tag == DT_NEEDED.to_le_bytes() && names.get(start..).is_some_and(is_theirs)
            })
        })
    }

    /// Whether a table of symbols defines (not only uses) one of this name.
    fn defines(&self, symbols: &Section, name: &[u8]) -> bool {
        let Some(names) = self
            .section(symbols.link)
            .and_then(|s| self.at(s.offset, s.size))
        else {
            return false;
        };
        let table = self.at(symbols.offset, symbols.size).unwrap_or(&[]);
        table.chunks_exact(24).any(|symbol| {
            let start = u32::from_le_bytes([symbol[0], symbol[1], symbol[2], symbol[3]]) as usize;
            let is_defined = symbol[6] != 0 || symbol[7] != 0;
            is_defined
                && names
                    .get(start..)
                    .and_then(|rest| rest.strip_prefix(name))
                    .is_some_and(|rest| rest.first() == Some(&0))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_a_program_that_can_be_recorded_or_has_ggml_inside() {
        let this = std::env::current_exe().unwrap();
        assert!(matches!(refusal(&this), None | Some(Refusal::StaticGgml)));
    }

    #[test]
    fn scripts_are_judged_by_their_interpreter() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("s");
        fs::write(&script, "#!/usr/bin/env -S sh -e\n").unwrap();
        assert_eq!(refusal(&script), None);
        assert_eq!(
            interpreter_of_script(b"#! /bin/sh -x\n"),
            Some(PathBuf::from("/bin/sh"))
        );
    }

    #[test]
    fn headers_that_lie_are_survived() {
        let this = fs::read("/bin/sh").unwrap();
        for cut in (0..this.len().min(4096)).step_by(7) {
            let _ = refusal_of_elf(&this[..cut]);
        }
        for at in 0..64 {
            let mut bytes = this.clone();
            bytes[at] = 0xff;
            let _ = refusal_of_elf(&bytes);
        }
        let mut bytes = this;
        bytes[4] = 1;
        assert_eq!(refusal_of_elf(&bytes), Some(Refusal::Is32Bit));
    }
}
