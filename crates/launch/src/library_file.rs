//! The preload library, where the dynamic linker can find it.
//!
//! It lies beside this program, and is copied into the user's cache, by its content: a
//! program may start others long after `record` has returned, and by then this one may have
//! been built anew. LD_PRELOAD separates paths by spaces and colons, and a file system may
//! forbid execution, so not every folder will do.

use std::{
    ffi::CString,
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use anyhow::{anyhow, bail};
use rundir::error::reason;
use support::hash::fnv1a;

use crate::companion;

/// Built from crates/agent.
const LIBRARY: &str = "libtensorscope_agent.so";

/// Path of the library, absolute, free of spaces and colons.
pub fn path() -> anyhow::Result<PathBuf> {
    let found = companion::path(LIBRARY, "records other programs")?;
    let library = fs::read(&found)
        .map_err(|error| anyhow!("{}: cannot read: {}", found.display(), reason(&error)))?;
    // What crates/agent/src/lib.rs says of itself.
    let of_this_version = concat!("tensorscope-agent ", env!("CARGO_PKG_VERSION"), "\n");
    if !contains(&library, of_this_version.as_bytes()) {
        bail!(
            "{}: not the library of tensorscope {}; put the one that came with it there",
            found.display(),
            env!("CARGO_PKG_VERSION")
        );
    }
    let name = format!(
        "libtensorscope_agent-{}-{:016x}.so",
        env!("CARGO_PKG_VERSION"),
        fnv1a(&library)
    );
    let mut last = io::Error::other("no folder will do");
    for folder in folders() {
        match write_into(&folder, &name, &library) {
            Ok(path) => return Ok(path),
            Err(error) => last = error,
        }
    }
    Err(anyhow!("it cannot be written anywhere: {last}"))
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
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

fn write_into(folder: &Path, name: &str, library: &[u8]) -> io::Result<PathBuf> {
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
        && fs::read(&path).is_ok_and(|there| there == library)
    {
        return Ok(path);
    }
    let temporary = folder.join(format!(".{name}.{}", std::process::id()));
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o755)
        .open(&temporary)
        .and_then(|mut file| io::Write::write_all(&mut file, library))
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
