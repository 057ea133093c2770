//! What this process is to the run: whether it is recorded, under which number,
//! and the switch that ends that.
//!
//! Everything here happens once per process, or never.

use std::{
    cell::Cell,
    fmt::Write as _,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicPtr, Ordering},
    },
};

use trace::{control::Control, status::StatusPage};

use crate::{
    devices, feeding, inside, library::Library, lock::Lock, models, noted_batches, settings,
    streams,
};

/// A process that computes.
pub struct Process {
    /// In the order in which the processes of the run began to compute.
    pub number: u32,
    pub log_directory: PathBuf,
    pub status: Arc<StatusPage>,
    pub control: Control,
    pid: u32,
    report: PathBuf,
}

/// Streams of one process, and their numbers: `number * STREAMS + slot`.
pub const STREAMS: u32 = 32;

static IS_ON: AtomicBool = AtomicBool::new(false);
static CURRENT: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());
static STARTING: Lock<()> = Lock::new(());
static HAS_SPOKEN: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Of the thread that forks: whether nobody is fed meanwhile.
    static FEEDING_IS_HELD: Cell<bool> = const { Cell::new(false) };
}

/// Runs before `main` of every program that the launcher starts.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

extern "C" fn construct() {
    let _ = std::panic::catch_unwind(|| {
        let (records, feeds) = (settings::read().is_some(), settings::feed());
        if !records && feeds.is_none() {
            return;
        }
        IS_ON.store(records, Ordering::Relaxed);
        feeds.into_iter().for_each(feeding::start);
        // Ours alone: the program has another copy of std, if any.
        std::panic::set_hook(Box::new(|_| {}));
        // SAFETY: the functions live as long as the process; the library is
        // never unloaded.
        unsafe {
            libc::pthread_atfork(
                Some(before_fork),
                Some(after_fork),
                Some(after_fork_in_child),
            );
            libc::atexit(at_exit);
        }
    });
}

/// Nobody may hold a lock of ours when memory is copied: in the child there would
/// be nobody to release it.
unsafe extern "C" fn before_fork() {
    STARTING.take();
    inside::take_lock();
    noted_batches::take_lock();
    models::take_lock();
    devices::take_lock();
    FEEDING_IS_HELD.set(feeding::before_fork());
}

unsafe extern "C" fn after_fork() {
    feeding::after_fork_in_parent(FEEDING_IS_HELD.get());
    devices::release_lock();
    models::release_lock();
    noted_batches::release_lock();
    inside::release_lock();
    STARTING.release();
}

unsafe extern "C" fn after_fork_in_child() {
    feeding::after_fork_in_child(FEEDING_IS_HELD.get());
    devices::release_lock();
    models::release_lock();
    noted_batches::release_lock();
    inside::release_lock();
    STARTING.release();
}

extern "C" fn at_exit() {
    let _ = std::panic::catch_unwind(feeding::at_exit);
    // A forked child that ends in `exit` must not touch its parent's streams.
    let process = CURRENT.load(Ordering::Acquire);
    // SAFETY: never freed.
    if let Some(process) = unsafe { process.as_ref() }
        && process.pid == std::process::id()
    {
        let _ = std::panic::catch_unwind(|| streams::close_all(process));
    }
}

/// Whether anything is recorded in this process, now or later.
#[inline]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// This process, which begins to compute if it has not yet. `None` when that
/// cannot be recorded.
#[inline]
pub fn current() -> Option<&'static Process> {
    // SAFETY: never freed.
    match unsafe { CURRENT.load(Ordering::Acquire).as_ref() } {
        // A call of the kernel per evaluation: the only thing that surely notices
        // every kind of fork.
        Some(process) if process.pid == std::process::id() => Some(process),
        _ => start(),
    }
}

#[cold]
fn start() -> Option<&'static Process> {
    let settings = settings::get()?;
    STARTING.with(|()| {
        // SAFETY: never freed.
        let before = unsafe { CURRENT.load(Ordering::Acquire).as_ref() };
        if let Some(process) = before {
            if process.pid == std::process::id() {
                return Some(process);
            }
            streams::forget_all();
            HAS_SPOKEN.store(false, Ordering::Relaxed);
        }
        match Process::open(settings) {
            Ok(process) => {
                let process = Box::leak(Box::new(process));
                CURRENT.store(process, Ordering::Release);
                Some(&*process)
            }
            Err(error) => {
                let folder = settings.log_directory.display();
                switch_off(&format!("{folder}: cannot record into it: {error}"));
                None
            }
        }
    })
}

/// Records nothing from now on, and says why, once.
#[cold]
pub fn switch_off(reason: &str) {
    IS_ON.store(false, Ordering::Relaxed);
    say(&format!(
        "{reason}; the program goes on without being recorded"
    ));
    // SAFETY: never freed.
    if let Some(process) = unsafe { CURRENT.load(Ordering::Acquire).as_ref() } {
        process.note("off", reason);
    }
}

/// The program computes where we cannot see it.
#[cold]
pub fn refuse(reason: &str) {
    match feeding::is_on() {
        true => feeding::refuse(reason),
        false => {
            // So that the launcher reads the reason, too.
            let _started = current();
            switch_off(reason);
        }
    }
}

/// One line on standard error in the life of a process.
pub fn say(text: &str) {
    if !HAS_SPOKEN.swap(true, Ordering::Relaxed) {
        let line = format!("tensorscope: {}\n", text.replace('\n', " "));
        // In one piece, so that lines of other threads do not mix with it.
        // SAFETY: a buffer and its length.
        unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
    }
}

impl Process {
    fn open(settings: &settings::Settings) -> io::Result<Process> {
        let log_directory = settings.log_directory.clone();
        let status = Arc::new(StatusPage::open(&log_directory.join("status"))?);
        let control = Control::open(&log_directory)?;
        let (number, report) = (0..u32::MAX / STREAMS)
            .find_map(|number| {
                let path = log_directory.join(format!("process-{number:04}.txt"));
                match File::create_new(&path) {
                    Ok(_) => Some(Ok((number, path))),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
                    Err(error) => Some(Err(error)),
                }
            })
            .unwrap_or(Err(io::ErrorKind::AlreadyExists.into()))?;
        control.add_process();
        let process = Process {
            number,
            log_directory,
            status,
            control,
            pid: std::process::id(),
            report,
        };
        process.note("pid", &process.pid.to_string());
        if let Ok(program) = std::env::current_exe() {
            process.note("program", &program.to_string_lossy());
        }
        Ok(process)
    }

    /// Adds a line to the report, from which the launcher completes the metadata.
    pub fn note(&self, key: &str, value: &str) {
        let mut line = String::new();
        let _ = writeln!(line, "{key} {}", value.replace('\n', " "));
        // What cannot be noted is missing from the metadata, not from the trace.
        let _ = OpenOptions::new()
            .append(true)
            .open(&self.report)
            .and_then(|mut file| file.write_all(line.as_bytes()));
    }

    pub fn note_library(&self, library: &Library) {
        self.note("library", &library.path);
        self.note("ggml", &library.version);
        if let Some(version) = &library.llama_version {
            self.note("llama", version);
        }
        self.note(
            "rules",
            &format!("{:?} {:?}", library.rules, library.cplan_layout),
        );
    }
}
