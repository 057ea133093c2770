//! Notes on settings and mounts: what was found, and what we have made of it.
//!
//! A note is a file in `/run/tensorscope` (or below `/dev/shm`), named after what was
//! changed. Process and guardian hold a lock on it, so whoever gets the lock knows that both
//! are gone, and undoes what the note says. Five lines: `setting` or `mount`, our value, what
//! was found, the path, and which boot of the machine it is of: some keep `/run` on a disk.
//!
//! Notes are believed only from folders that nobody else can write to.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use support::hash::fnv1a;

use super::c_string;
use super::guardian::{put_back, unmount};
use crate::error::KernelError;

/// How long we wait for a guardian that is just putting back.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Setting,
    Mount,
}

/// A note that we hold.
#[derive(Debug)]
pub(super) struct Note {
    file: File,
    path: PathBuf,
    about: PathBuf,
}

impl Note {
    /// The note on `about`, once nobody else holds it; what a killed process wrote there is
    /// undone first.
    pub fn take(about: &Path) -> Result<Note, KernelError> {
        let path = path_of(about);
        let begin = Instant::now();
        loop {
            if let Some(folder) = path.parent() {
                make_folder(folder).map_err(KernelError::io(folder, "cannot make"))?;
            }
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&path);
            let file = match opened {
                Ok(file) => file,
                // Another process has just removed the empty folder.
                Err(cause)
                    if cause.kind() == io::ErrorKind::NotFound && begin.elapsed() < PATIENCE =>
                {
                    continue;
                }
                Err(cause) => return Err(KernelError::io(&path, "cannot write a note")(cause)),
            };
            if is_ours_now(&file, &path) {
                let note = Note {
                    file,
                    path,
                    about: about.to_owned(),
                };
                if let Some(left) = Left::read(&note.file) {
                    left.undo(&note.file);
                }
                return Ok(note);
            }
            if begin.elapsed() > PATIENCE {
                return Err(KernelError::Unsuitable {
                    path: about.to_owned(),
                    what: "another tensorscope has changed it and will put it back; wait for its \
                           end"
                    .to_owned(),
                });
            }
            std::thread::sleep(PAUSE);
        }
    }

    pub fn descriptor(&self) -> libc::c_int {
        self.file.as_raw_fd()
    }

    /// Of the note, and of the folder that it is in.
    pub fn paths(&self) -> Result<[CString; 2], KernelError> {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        Ok([c_string(&self.path)?, c_string(folder)?])
    }

    pub fn write(&self, kind: Kind, ours: &str, found: &str) -> Result<(), KernelError> {
        let kind = match kind {
            Kind::Setting => "setting",
            Kind::Mount => "mount",
        };
        let head = format!("{kind}\n{ours}\n{found}\n");
        let tail = format!("\n{}\n", boot());
        let about = self.about.as_os_str().as_bytes();
        let text = [head.as_bytes(), about, tail.as_bytes()].concat();
        let written = self.file.write_all_at(&text, 0);
        written
            .and_then(|()| self.file.set_len(text.len() as u64))
            .map_err(KernelError::io(&self.path, "cannot write a note"))
    }

    /// Whether nothing is left to do.
    pub fn undo(&self, path: &Path) -> bool {
        let Some(left) = Left::read(&self.file) else {
            return true;
        };
        debug_assert_eq!(left.path, path);
        left.undo(&self.file)
    }

    /// There is nothing to undo any more.
    pub fn forget(&self) {
        remove(&self.file, &self.path);
    }
}

/// Empty first: the guardian has the file open.
fn remove(file: &File, path: &Path) {
    let _ = file.set_len(0);
    let _ = fs::remove_file(path);
    if let Some(folder) = path.parent() {
        let _ = fs::remove_dir(folder);
    }
}

/// Undoes what killed commands have left of settings and mounts whose guardians were killed
/// as well; a line for each.
pub fn repair() -> Vec<String> {
    let mut lines = Vec::new();
    for folder in folders().into_iter().filter(|folder| is_safe(folder)) {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&path);
            let Some(file) = opened.ok().filter(|file| is_ours_now(file, &path)) else {
                continue;
            };
            let left = Left::read(&file);
            let is_undone = left.as_ref().is_none_or(|left| left.undo(&file));
            if is_undone {
                remove(&file, &path);
                lines.extend(left.and_then(|left| left.line()));
            }
        }
    }
    lines
}

/// What a note says.
struct Left {
    kind: Kind,
    ours: String,
    found: String,
    path: PathBuf,
    /// Before we undid it.
    was_changed: bool,
}

impl Left {
    /// None of an empty note, a torn one, or one of before the machine was started.
    fn read(note: &File) -> Option<Left> {
        let mut bytes = [0; 4096];
        let count = note.read_at(&mut bytes, 0).ok()?;
        let text = std::str::from_utf8(&bytes[..count]).ok()?;
        let mut lines = text.split('\n');
        let kind = match lines.next()? {
            "setting" => Kind::Setting,
            "mount" => Kind::Mount,
            _ => return None,
        };
        let ours = lines.next()?.to_owned();
        let found = lines.next()?.to_owned();
        let path = PathBuf::from(lines.next()?);
        (lines.next()? == boot()).then(|| Left {
            was_changed: match kind {
                Kind::Setting => {
                    fs::read_to_string(&path).is_ok_and(|text| text.trim() == ours) && ours != found
                }
                Kind::Mount => true,
            },
            kind,
            ours,
            found,
            path,
        })
    }

    /// Whether nothing is left to do.
    fn undo(&self, note: &File) -> bool {
        let Ok(path) = c_string(&self.path) else {
            return true;
        };
        match self.kind {
            Kind::Setting => put_back(&path, note.as_raw_fd()),
            Kind::Mount => unmount(&path),
        }
    }

    fn line(&self) -> Option<String> {
        let path = self.path.display();
        self.was_changed.then(|| match self.kind {
            Kind::Setting => format!(
                "{path} was {} since a command was killed: put back to {}",
                self.ours, self.found
            ),
            Kind::Mount => format!("{path} was mounted by a command that was killed: unmounted"),
        })
    }
}

/// Whether we got the lock, and the file has not been removed by who had it before.
fn is_ours_now(file: &File, path: &Path) -> bool {
    // SAFETY: a descriptor of ours.
    let is_locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
    let id = |about: fs::Metadata| (about.dev(), about.ino());
    is_locked
        && match (file.metadata(), fs::symlink_metadata(path)) {
            (Ok(ours), Ok(there)) => id(ours) == id(there),
            _ => false,
        }
}

pub(super) fn path_of(about: &Path) -> PathBuf {
    let all = folders();
    // Where the first cannot be had, the last is tried, and says why it fails.
    let folder = all.iter().find(|folder| make_folder(folder).is_ok());
    let folder = folder.or(all.last()).cloned().unwrap_or_default();
    folder.join(format!("{:016x}", fnv1a(about.as_os_str().as_bytes())))
}

fn folders() -> [PathBuf; 2] {
    // SAFETY: has no arguments.
    let user = unsafe { libc::geteuid() };
    [
        "/run/tensorscope".into(),
        format!("/dev/shm/tensorscope-notes-{user}").into(),
    ]
}

fn make_folder(folder: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => Err(cause),
        _ if is_safe(folder) => Ok(()),
        _ => Err(io::Error::other("it belongs to somebody else")),
    }
}

fn is_safe(folder: &Path) -> bool {
    // SAFETY: has no arguments.
    let user = unsafe { libc::geteuid() };
    fs::symlink_metadata(folder).is_ok_and(|about| {
        about.is_dir() && about.uid() == user && about.permissions().mode() & 0o022 == 0
    })
}

fn boot() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Program and guardian were killed: the lock is free, and the note still there.
    fn abandoned(file: &Path, ours: &str, found: &str) -> PathBuf {
        let note = Note::take(file).unwrap();
        note.write(Kind::Setting, ours, found).unwrap();
        note.path
    }

    #[test]
    fn what_was_left_by_a_killed_process_and_guardian_is_put_back_later() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("setting");
        let check = |now: &str, expected: &str| {
            fs::write(&file, now).unwrap();
            let note = abandoned(&file, "128", "8192");
            let told = repair();
            assert_eq!(fs::read_to_string(&file).unwrap(), expected);
            assert!(!note.exists());
            told.iter().any(|line| line.contains("put back to 8192"))
        };
        assert!(check("128\n", "8192"));
        // Killed before it was set, or changed by somebody else.
        assert!(!check("64\n", "64\n"));
        // Who wants to change it next finds it as it was.
        fs::write(&file, "128").unwrap();
        abandoned(&file, "128", "8192");
        let changed = super::super::Leftover::setting(&file, "4").unwrap();
        drop(changed);
        assert_eq!(fs::read_to_string(&file).unwrap(), "8192");
    }

    #[test]
    fn a_note_of_another_boot_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("setting");
        fs::write(&file, "128").unwrap();
        let note = abandoned(&file, "128", "8192");
        let text = fs::read_to_string(&note).unwrap();
        fs::write(&note, text.replace(&boot(), "another")).unwrap();
        repair();
        assert_eq!(fs::read_to_string(&file).unwrap(), "128");
        assert!(!note.exists());
    }
}
