//! Ctrl-C: the first asks the program to stop and lose nothing, the second kills.

use std::sync::atomic::{AtomicI32, Ordering};

/// The signal that asked, or 0.
static ASKED: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    ASKED.store(signal, Ordering::Relaxed);
    // SAFETY: allowed in a handler; the next signal has its default effect.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// From now on SIGINT, SIGTERM and SIGHUP are noted instead of killing.
pub fn catch() {
    let handler = note as *const () as libc::sighandler_t;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic and resets itself, both
        // allowed there, and lives as long as the program.
        let before = unsafe { libc::signal(signal, handler) };
        if before == libc::SIG_IGN {
            // Under `nohup`, or in the background of a script: stay deaf to it.
            // SAFETY: restores what was there.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
}

/// From now on signals kill again: what is left to do can be done later.
pub fn release() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: asks for the default effect, which needs no handler.
        let before = unsafe { libc::signal(signal, libc::SIG_DFL) };
        if before == libc::SIG_IGN {
            // SAFETY: restores what was there.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
}

/// The signal by which the user asked to stop.
pub fn asked() -> Option<u8> {
    u8::try_from(ASKED.load(Ordering::Relaxed))
        .ok()
        .filter(|&signal| signal != 0)
}

/// The exit code of a program that a signal ended, as shells count.
pub fn exit_code(signal: u8) -> u8 {
    128u8.saturating_add(signal)
}

/// Whether the user asked to stop.
pub fn stop_asked() -> bool {
    asked().is_some()
}
