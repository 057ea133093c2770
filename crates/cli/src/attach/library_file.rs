//! The preload library as a file: it is carried inside this program and written
//! out where the dynamic linker can find it.
//!
//! In the user's cache, by its content, because a program may start others long
//! after `record` has returned. LD_PRELOAD separates paths by spaces and colons,
//! and a file system may forbid execution, so not every folder will do.

use std::{
    ffi::CString,
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

/// Built by build.rs.
static LIBRARY: &[u8] = include_bytes!(env!("AGENT_LIBRARY"));

/// Path of the library, absolute, free of spaces and colons.
pub fn path() -> io::Result<PathBuf> {
    let name = format!(
        "libtensorscope_agent-{}-{:016x}.so",
        env!("CARGO_PKG_VERSION"),
        fingerprint(LIBRARY)
    );
    let mut last = io::Error::other("no folder will do");
    for folder in folders() {
        match write_into(&folder, &name) {
            Ok(path) => return Ok(path),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn folders() -> Vec<PathBuf> {
    // SAFETY: has no arguments.
    let user = unsafe { libc::getuid() };
    let own = format!("tensorscope-{user}");
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = variable("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")));
    let mut folders: Vec<PathBuf> = cache.into_iter().map(|c| c.join("tensorscope")).collect();
    folders.push(std::env::temp_dir().join(&own));
    folders.push(Path::new("/dev/shm").join(&own));
    folders
}

fn write_into(folder: &Path, name: &str) -> io::Result<PathBuf> {
    let bad = |why: &'static str| Err(io::Error::other(why));
    let bytes = folder.as_os_str().as_bytes();
    if !folder.is_absolute() || bytes.iter().any(|b| b.is_ascii_whitespace() || *b == b':') {
        return bad("the path has a space or a colon, which LD_PRELOAD cannot hold");
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)?;
    // What others can write to is nothing to load into programs.
    let about = fs::symlink_metadata(folder)?;
    // SAFETY: has no arguments.
    let user = unsafe { libc::getuid() };
    if !about.is_dir() || about.uid() != user || about.permissions().mode() & 0o022 != 0 {
        return bad("the folder belongs to somebody else or is writable for others");
    }
    if forbids_execution(folder) {
        return bad("the file system forbids execution");
    }
    let path = folder.join(name);
    if fs::symlink_metadata(&path).is_ok_and(|m| m.is_file() && m.uid() == user)
        && fs::read(&path).is_ok_and(|there| there == LIBRARY)
    {
        return Ok(path);
    }
    let temporary = folder.join(format!(".{name}.{}", std::process::id()));
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o755)
        .open(&temporary)
        .and_then(|mut file| io::Write::write_all(&mut file, LIBRARY))
        .and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.map(|()| path)
}

fn forbids_execution(folder: &Path) -> bool {
    let Ok(folder) = CString::new(folder.as_os_str().as_bytes()) else {
        return true;
    };
    let mut about = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: a C string and a struct to fill, which is valid if it is not.
    let about = unsafe {
        libc::statvfs(folder.as_ptr(), about.as_mut_ptr());
        about.assume_init()
    };
    about.f_flag & libc::ST_NOEXEC != 0
}

/// FNV-1a: tells builds apart, no more.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
