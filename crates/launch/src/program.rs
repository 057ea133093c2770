//! A program as it was typed: which file is meant, how it is started, and whether it can be
//! recorded by preloading, as its file tells.
//!
//! Whether a program loads ggml later, and whether ggml that is linked into it can be found
//! there, cannot be known here: the preload library says so.

use std::{
    ffi::{OsStr, OsString},
    fmt, fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

use rundir::error::reason;
use support::elf::{Elf, NotElf, OUR_MACHINE, Table};

/// Why preloading cannot work, by what to do instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// ggml is inside the program, and code of this processor is not patched.
    GgmlInside,
    /// ggml is inside the program, and the loader is not: nothing can be preloaded.
    StaticProgram,
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
            Refusal::GgmlInside => (
                "the program has ggml linked into it, and that is recorded on x86-64 only",
                "a build with -DBUILD_SHARED_LIBS=ON",
            ),
            Refusal::StaticProgram => (
                "the program has ggml linked into it, and the C library too, so that nothing can be preloaded",
                "a build without -static (ggml itself may be linked in)",
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

/// Texts of ggml's that no build lacks.
const TEXTS: [&[u8]; 2] = [b"ggml_backend_sched", b"GGML_ASSERT("];
/// How a program of Cosmopolitan's (a llamafile) begins, which brings its own loader.
const COSMOPOLITAN: [&[u8]; 2] = [b"MZqFpD", b"jartsr"];

fn refusal_of_elf(bytes: &[u8]) -> Option<Refusal> {
    if COSMOPOLITAN.iter().any(|magic| bytes.starts_with(magic)) {
        return has_texts(bytes).then_some(Refusal::StaticProgram);
    }
    let elf = match Elf::new(bytes) {
        Ok(elf) if elf.machine() == OUR_MACHINE => elf,
        Ok(_) | Err(NotElf::IsBigEndian) => return Some(Refusal::OtherMachine),
        Err(NotElf::Is32Bit) => return Some(Refusal::Is32Bit),
        Err(NotElf::Other) => return None,
    };
    match elf.interpreter() {
        // One without ggml may start others, which are recorded.
        None => return has_texts(bytes).then_some(Refusal::StaticProgram),
        Some(name) if name.windows(4).any(|w| w == b"musl") => return Some(Refusal::Musl),
        Some(_) => {}
    }
    // Code is patched on this processor only.
    let has_ggml = || {
        let defines = |table| {
            elf.symbols(table)
                .any(|symbol| symbol.name == b"ggml_graph_compute")
        };
        defines(Table::All) || defines(Table::Dynamic)
    };
    (!cfg!(target_arch = "x86_64") && has_ggml()).then_some(Refusal::GgmlInside)
}

fn has_texts(bytes: &[u8]) -> bool {
    TEXTS.iter().all(|text| contains(bytes, text))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_a_program_that_can_be_recorded() {
        let this = std::env::current_exe().unwrap();
        assert_eq!(refusal(&this), None);
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
    fn programs_that_bring_their_own_loader_are_told_by_their_texts() {
        let mut ape = b"MZqFpD='\n".to_vec();
        assert_eq!(refusal_of_elf(&ape), None);
        ape.extend(TEXTS.concat());
        assert_eq!(refusal_of_elf(&ape), Some(Refusal::StaticProgram));
    }

    #[test]
    fn a_32_bit_program_is_refused() {
        let mut bytes = fs::read("/bin/sh").unwrap();
        bytes[4] = 1;
        assert_eq!(refusal_of_elf(&bytes), Some(Refusal::Is32Bit));
    }
}
