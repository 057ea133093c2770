//! What of the system is changed for a while and must be as before afterwards, however we
//! end. One guard for all of it, [`Leftover`]:
//!
//! | what | undone by |
//! |---|---|
//! | a folder of the kernel: a memory cgroup, an instance of tracefs | removing it, once nobody is in it |
//! | a setting: `read_ahead_kb` | writing what was found, if it still has our value |
//! | a mounted tracefs | unmounting it, once nobody traces |
//! | a folder for temporary files | removing it with what is in it |
//!
//! 1. The guard undoes what killed processes have left, forks its guardian (`guardian`),
//!    waits until that is on its guard, and changes the system.
//! 2. [`Leftover::remove`] (or dropping it) undoes the change and ends the guardian.
//! 3. When we are killed, the guardian undoes it. When both are killed, the next guard of
//!    the same kind does, and so does [`repair`], with which commands begin.
//!
//! Who left something is told by its name (folders: `tensorscope-PID`) or by a note
//! (`note`: settings and mounts, which have no room for a name). A setting has one owner at a
//! time: while one process has changed it, another gets an error and leaves it alone.
//! Somebody else who changes it meanwhile wins: it is put back only while it has our value.

mod guardian;
mod note;

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::error::KernelError;
use guardian::{Guardian, Undo};
use note::{Kind, Note};

pub use note::repair;

const PREFIX: &str = "tensorscope-";
const SCRATCH_PREFIX: &str = "tensorscope-scratch-";

/// What has just lost its last user may be busy for a moment.
const REMOVAL_TRIES: u32 = 100;
const REMOVAL_PAUSE: Duration = Duration::from_millis(5);

/// A change of the system that is undone whatever happens.
#[derive(Debug)]
pub struct Leftover {
    what: What,
    path: PathBuf,
    /// None before it is forked, and after the change was undone.
    guardian: Option<Guardian>,
}

#[derive(Debug)]
enum What {
    Folder,
    Scratch,
    Setting(Note),
    Mount(Note),
}

impl Leftover {
    /// A new folder of the kernel in `parent`; several of one process are numbered.
    pub(crate) fn folder(parent: &Path) -> Result<Leftover, KernelError> {
        remove_stale(parent, PREFIX, |path| {
            let _ = fs::remove_dir(path);
        });
        Leftover::new_folder(parent, PREFIX, 0o755, What::Folder)
    }

    /// A new folder for temporary files in `parent`, or where such folders belong.
    pub fn scratch(parent: Option<&Path>) -> Result<Leftover, KernelError> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        // SAFETY: has no arguments.
        let user = unsafe { libc::geteuid() };
        remove_stale(&parent, SCRATCH_PREFIX, |path| {
            // Anybody may make one of this name.
            if fs::symlink_metadata(path).is_ok_and(|about| about.is_dir() && about.uid() == user) {
                let _ = fs::remove_dir_all(path);
            }
        });
        Leftover::new_folder(&parent, SCRATCH_PREFIX, 0o700, What::Scratch)
    }

    fn new_folder(
        parent: &Path,
        prefix: &str,
        mode: u32,
        what: What,
    ) -> Result<Leftover, KernelError> {
        // From the choice of a name until it is taken.
        static CHOOSING: Mutex<()> = Mutex::new(());
        let _choosing = CHOOSING.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = std::process::id();
        let is_scratch = matches!(what, What::Scratch);
        let mut path = match is_scratch {
            // In a folder that processes share which may have the same number elsewhere.
            true => parent.join(format!("{prefix}{pid}-{}", trace::clock::now_nanos())),
            false => parent.join(format!("{prefix}{pid}")),
        };
        // Whoever guards it may remove it: it must not be somebody else's.
        let mut number = 1;
        while fs::symlink_metadata(&path).is_ok() && number < 1000 {
            number += 1;
            path = parent.join(format!("{prefix}{pid}-{number}"));
        }
        let undo = match is_scratch {
            true => Undo::RemoveTree(c_string(&path)?),
            false => Undo::RemoveFolder(c_string(&path)?),
        };
        let mut leftover = Leftover::guarded(what, path, undo)?;
        if let Err(cause) = fs::DirBuilder::new().mode(mode).create(&leftover.path) {
            // There is nothing to remove.
            if let Some(guardian) = leftover.guardian.take() {
                guardian.dismiss(true);
            }
            return Err(KernelError::io(&leftover.path, "cannot create")(cause));
        }
        Ok(leftover)
    }

    /// Sets the setting in `file` to `value`. An error where another process of ours has
    /// changed it and has not put it back yet.
    pub fn setting(file: &Path, value: &str) -> Result<Leftover, KernelError> {
        let file = fs::canonicalize(file).map_err(KernelError::io(file, "cannot find"))?;
        let note = Note::take(&file)?;
        let found = read_setting(&file)?;
        // Before the change: who finds the note and another value changes nothing.
        note.write(Kind::Setting, value, &found)?;
        let undo = Undo::PutBack(c_string(&file)?, note.descriptor());
        let leftover = Leftover::guarded(What::Setting(note), file, undo)?;
        fs::write(&leftover.path, value)
            .map_err(KernelError::io(&leftover.path, "cannot write"))?;
        // The kernel may round.
        let set = read_setting(&leftover.path)?;
        if set != value
            && let What::Setting(note) = &leftover.what
        {
            note.write(Kind::Setting, &set, &found)?;
        }
        Ok(leftover)
    }

    /// Mounts tracefs, and nothing else, at `place`.
    pub(crate) fn tracefs(place: &CStr) -> Result<Leftover, KernelError> {
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(place.to_bytes()));
        let note = Note::take(&path)?;
        note.write(Kind::Mount, "", "")?;
        let undo = Undo::Unmount(place.to_owned(), note.descriptor());
        let leftover = Leftover::guarded(What::Mount(note), path, undo)?;
        // SAFETY: strings that end with a zero, and no data.
        let mounted = unsafe {
            let name = c"tracefs".as_ptr();
            libc::mount(name, place.as_ptr(), name, 0, std::ptr::null())
        };
        if mounted == 0 {
            return Ok(leftover);
        }
        let cause = io::Error::last_os_error();
        if let What::Mount(note) = &leftover.what {
            note.forget();
        }
        Err(KernelError::io(&leftover.path, "cannot mount tracefs")(
            cause,
        ))
    }

    /// Before the change: from here on it is undone, whoever is killed and when.
    fn guarded(what: What, path: PathBuf, undo: Undo) -> Result<Leftover, KernelError> {
        let mut leftover = Leftover {
            what,
            path,
            guardian: None,
        };
        let note = match &leftover.what {
            What::Setting(note) | What::Mount(note) => Some(note.paths()?),
            What::Folder | What::Scratch => None,
        };
        match Guardian::fork(undo, note) {
            Ok(guardian) => leftover.guardian = Some(guardian),
            Err(error) => {
                // Nothing is changed yet.
                if let What::Setting(note) | What::Mount(note) = &leftover.what {
                    note.forget();
                }
                return Err(error);
            }
        }
        Ok(leftover)
    }

    /// What was made or changed.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Undoes it, or leaves that to the guardian where `is_in_use` says that it will take
    /// a while.
    pub(crate) fn remove(&mut self, is_in_use: impl Fn(&Path) -> bool) {
        let Some(guardian) = self.guardian.take() else {
            return;
        };
        let mut is_undone = false;
        for _ in 0..REMOVAL_TRIES {
            is_undone = self.undo();
            if is_undone || is_in_use(&self.path) {
                break;
            }
            std::thread::sleep(REMOVAL_PAUSE);
        }
        guardian.dismiss(is_undone);
    }

    /// Whether nothing is left to do.
    fn undo(&mut self) -> bool {
        let is_gone = |removed: io::Result<()>| match removed {
            Ok(()) => true,
            Err(cause) => cause.kind() == io::ErrorKind::NotFound,
        };
        match &mut self.what {
            What::Folder => is_gone(fs::remove_dir(&self.path)),
            What::Scratch => is_gone(fs::remove_dir_all(&self.path)),
            What::Setting(note) | What::Mount(note) => {
                let is_undone = note.undo(&self.path);
                if is_undone {
                    note.forget();
                }
                is_undone
            }
        }
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        self.remove(|_| false);
    }
}

fn c_string(path: &Path) -> Result<CString, KernelError> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(io::Error::other)
        .map_err(KernelError::io(path, "cannot watch over it"))
}

fn read_setting(file: &Path) -> Result<String, KernelError> {
    let text = fs::read_to_string(file).map_err(KernelError::io(file, "cannot read"))?;
    Ok(text.trim().to_owned())
}

/// Folders that killed processes have left.
fn remove_stale(parent: &Path, prefix: &str, remove: impl Fn(&Path)) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| maker(prefix, name));
        if maker.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove(&entry.path());
        }
    }
}

/// The process that has made a folder of this name.
fn maker(prefix: &str, name: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_tell_who_has_made_them() {
        assert_eq!(maker(PREFIX, "tensorscope-12"), Some(12));
        assert_eq!(maker(PREFIX, "tensorscope-12-3"), Some(12));
        assert_eq!(maker(PREFIX, "tensorscope-x"), None);
        assert_eq!(maker(PREFIX, "other-12"), None);
        // The folder of a user's preload library is no process's.
        assert_eq!(maker(SCRATCH_PREFIX, "tensorscope-1000"), None);
    }

    #[test]
    fn folders_of_the_dead_are_removed_and_those_of_the_living_stay() {
        let parent = tempfile::tempdir().unwrap();
        // Beyond what the kernel numbers processes by.
        let stale = parent.path().join("tensorscope-4194999");
        let alive = parent.path().join("tensorscope-1");
        fs::create_dir(&stale).unwrap();
        fs::create_dir(&alive).unwrap();
        let first = Leftover::folder(parent.path()).unwrap();
        let second = Leftover::folder(parent.path()).unwrap();
        assert!(!stale.exists() && alive.exists());
        assert_ne!(first.path(), second.path());
        let folders = [first.path().to_owned(), second.path().to_owned()];
        drop((first, second));
        assert!(!folders[0].exists() && !folders[1].exists());
    }

    #[test]
    fn temporary_files_of_the_dead_are_removed_and_ours_with_the_guard() {
        let parent = tempfile::tempdir().unwrap();
        let stale = parent.path().join("tensorscope-scratch-4194999");
        fs::create_dir_all(stale.join("a/b")).unwrap();
        let scratch = Leftover::scratch(Some(parent.path())).unwrap();
        assert!(!stale.exists());
        fs::create_dir(scratch.path().join("a")).unwrap();
        fs::write(scratch.path().join("a/b"), "c").unwrap();
        drop(scratch);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_setting_has_one_owner_and_is_put_back_unless_somebody_else_changed_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("read_ahead_kb");
        let now = || fs::read_to_string(&file).unwrap();
        fs::write(&file, "8192\n").unwrap();
        let changed = Leftover::setting(&file, "128").unwrap();
        assert_eq!(now(), "128");
        let error = Leftover::setting(&file, "1024").unwrap_err().to_string();
        assert!(error.contains("put it back"), "{error}");
        assert_eq!(now(), "128");
        drop(changed);
        assert_eq!(now(), "8192");
        let changed = Leftover::setting(&file, "128").unwrap();
        fs::write(&file, "64").unwrap();
        drop(changed);
        assert_eq!(now(), "64");
        assert!(!note::path_of(&fs::canonicalize(&file).unwrap()).exists());
    }
}
