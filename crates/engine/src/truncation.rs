//! What happens when a model's file is cut short while llama.cpp has it mapped.
//!
//! The kernel sends SIGBUS to the thread that reads behind the new end, somewhere inside a
//! matrix product: nothing there can fail politely. So the thread is stopped where it is,
//! for good, and a thread that waits for this says what happened and ends the program
//! ([`watch`]). What is stopped was only reading weights, and holds no lock.
//!
//! Reads that the disk fails look the same, and are told apart by the file's size.

use std::{
    fs,
    io::{self, PipeReader, Read as _},
    os::fd::IntoRawFd as _,
    path::PathBuf,
    sync::atomic::{AtomicI32, Ordering},
};

use support::proc;

/// A file as it was when it was opened.
#[derive(Clone, Debug)]
pub struct Opened {
    pub path: PathBuf,
    pub len_bytes: u64,
}

impl Opened {
    pub fn all_of(model: &gguf::Model) -> Vec<Opened> {
        let files = model.files().iter();
        let opened = files.map(|file| Opened {
            path: file.path.clone(),
            len_bytes: file.len_bytes,
        });
        opened.collect()
    }

    /// What to say if it is shorter now.
    fn truncated(&self) -> Option<String> {
        let now = fs::metadata(&self.path).map_or(0, |about| about.len());
        (now < self.len_bytes).then(|| {
            format!(
                "the model file {} was truncated while it was being read: it is {now} bytes \
                 now, {} when it was opened",
                self.path.display(),
                self.len_bytes
            )
        })
    }
}

/// Where the address is written to that could not be read; -1 before [`watch`].
static NOTICE: AtomicI32 = AtomicI32::new(-1);
/// The thread that waits for it.
static WATCHER: AtomicI32 = AtomicI32::new(0);

/// From now on, when bytes of a mapped file cannot be read, `end` is called with a sentence
/// about it, and must end the program. The first call counts, later ones do nothing.
pub fn watch(files: Vec<Opened>, end: impl FnOnce(String) + Send + 'static) -> io::Result<()> {
    if NOTICE.load(Ordering::Relaxed) >= 0 {
        return Ok(());
    }
    let (reader, writer) = io::pipe()?;
    std::thread::Builder::new()
        .name("truncation".to_owned())
        .spawn(move || wait(reader, &files, end))?;
    NOTICE.store(writer.into_raw_fd(), Ordering::Relaxed);
    // SAFETY: zero is a valid value of all fields; the handler lives as long as the program
    // and does what is allowed in one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = notice as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
    Ok(())
}

extern "C" fn notice(signal: libc::c_int, about: *mut libc::siginfo_t, _: *mut libc::c_void) {
    /// "Nonexistent physical address": not there in the file, or not readable from it.
    const BUS_ADRERR: libc::c_int = 2;
    // SAFETY: the kernel passes a valid struct; everything else is a system call that is
    // allowed in a handler, with values that live here.
    unsafe {
        let is_expected =
            (*about).si_code == BUS_ADRERR && libc::gettid() != WATCHER.load(Ordering::Relaxed);
        if !is_expected {
            // Happens again at once, and then kills.
            libc::signal(signal, libc::SIG_DFL);
            return;
        }
        let address = (*about).si_addr() as u64;
        let bytes = address.to_ne_bytes();
        libc::write(
            NOTICE.load(Ordering::Relaxed),
            bytes.as_ptr().cast(),
            bytes.len(),
        );
        loop {
            libc::pause();
        }
    }
}

fn wait(mut reader: PipeReader, files: &[Opened], end: impl FnOnce(String)) {
    // SAFETY: has no arguments.
    WATCHER.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    let mut address = [0; 8];
    if reader.read_exact(&mut address).is_err() {
        return;
    }
    let cut = files.iter().find_map(Opened::truncated);
    end(cut.unwrap_or_else(|| unreadable(u64::from_ne_bytes(address))));
}

/// Of a file that is as long as it was.
fn unreadable(address: u64) -> String {
    let maps = proc::own_maps().unwrap_or_default();
    let mapping = proc::mappings(&maps).find(|mapping| mapping.addresses().contains(&address));
    match mapping.filter(|mapping| mapping.is_of_file()) {
        Some(mapping) => format!(
            "{}: what lies around byte {} cannot be read (SIGBUS); `dmesg` may say why",
            String::from_utf8_lossy(mapping.path),
            mapping.file_offset + (address - mapping.start)
        ),
        None => format!("address {address:#x} cannot be read (SIGBUS); `dmesg` may say why"),
    }
}
