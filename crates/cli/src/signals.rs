//! Ctrl-C: the first asks the program to stop and lose nothing, the second kills.

use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(signal: libc::c_int) {
    ASKED.store(true, Ordering::Relaxed);
    // SAFETY: allowed in a handler; the next signal has its default effect.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// From now on SIGINT, SIGTERM and SIGHUP are noted instead of killing.
pub fn catch() {
    let handler = note as *const () as libc::sighandler_t;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic and resets itself, both
        // allowed there, and lives as long as the program.
        unsafe { libc::signal(signal, handler) };
    }
}

/// Whether the user asked to stop.
pub fn stop_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}
