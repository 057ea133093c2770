//! Running the program: its signals are its own, its exit code is ours.
//!
//! The terminal sends its signals (Ctrl-C, Ctrl-\, hang-up) to the program as
//! well, so we only must not die of them. What somebody sends to us alone
//! (`kill`) is passed on.

use std::{
    io,
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, Command, ExitStatus},
    sync::atomic::{AtomicBool, AtomicI32, Ordering},
};

const PASSED_ON: [libc::c_int; 7] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
];

static CHILD: AtomicI32 = AtomicI32::new(0);

/// Whether SIGPIPE was ignored when we were started. Rust ignores it before `main`
/// and gives children the default, so that it has to be asked before Rust begins.
static IGNORES_PIPE: AtomicBool = AtomicBool::new(false);

#[used]
#[unsafe(link_section = ".init_array")]
static ASK_EARLY: extern "C" fn() = ask_about_pipe;

extern "C" fn ask_about_pipe() {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only asks; zero is a valid value of all fields.
    let action = unsafe {
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    IGNORES_PIPE.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
}

extern "C" fn pass_on(signal: libc::c_int, about: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid struct.
    let was_sent_to_us = unsafe { (*about).si_code } <= 0;
    let child = CHILD.load(Ordering::Relaxed);
    if was_sent_to_us && child > 0 {
        // SAFETY: allowed in a handler.
        unsafe { libc::kill(child, signal) };
    }
}

/// How a program is started and waited for.
pub trait Start {
    fn spawn(&mut self, command: &mut Command) -> io::Result<Child>;
    fn wait(&mut self, child: &mut Child) -> io::Result<ExitStatus>;
}

/// Runs the program to its end, started and waited for by `how`.
pub fn run(command: &mut Command, how: &mut dyn Start) -> io::Result<ExitStatus> {
    // A signal between the start of the program and the moment that we know its
    // number waits.
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the sets are ours and initialised by the first calls.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in PASSED_ON {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
    }
    catch();
    // SAFETY: initialised above.
    let mask = unsafe { before.assume_init() };
    // SAFETY: only calls that are allowed between fork and exec.
    unsafe {
        command.pre_exec(move || {
            // The program gets the mask that we were started with.
            libc::pthread_sigmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
            if IGNORES_PIPE.load(Ordering::Relaxed) {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            }
            Ok(())
        });
    }
    let spawned = how.spawn(command);
    if let Ok(child) = &spawned {
        CHILD.store(child.id() as i32, Ordering::Relaxed);
    }
    // SAFETY: restores what the call above noted.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut()) };
    let status = spawned.and_then(|mut child| how.wait(&mut child));
    CHILD.store(0, Ordering::Relaxed);
    status
}

fn catch() {
    for signal in PASSED_ON {
        let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: zero is a valid value of all fields; the handler lives as long
        // as the program and does what is allowed in one.
        unsafe {
            let mut before = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
            libc::sigaction(signal, std::ptr::null(), before.as_mut_ptr());
            if before.assume_init().sa_sigaction == libc::SIG_IGN {
                // Under `nohup`, or in the background of a script: the program
                // is to be deaf to it as well.
                continue;
            }
            (*action.as_mut_ptr()).sa_sigaction = pass_on as *const () as libc::sighandler_t;
            (*action.as_mut_ptr()).sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigaction(signal, action.as_ptr(), std::ptr::null_mut());
        }
    }
}

/// The program is killed when this thread ends, however that happens: for one that only we
/// wait for.
pub fn die_with_us(command: &mut Command) {
    let us = std::process::id();
    // SAFETY: only system calls with numbers, allowed between fork and exec.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // Nobody tells us of a death before that call.
            match libc::getppid() {
                parent if parent as u32 == us => Ok(()),
                _ => Err(io::ErrorKind::Other.into()),
            }
        });
    }
}

/// How a program failed that computed nothing, in a clause.
pub fn failure(status: ExitStatus) -> String {
    let before = "before it computed a graph";
    match signal(status) {
        Some(libc::SIGILL) => format!(
            "it died of SIGILL {before}: it uses instructions that this processor does not run"
        ),
        Some(libc::SIGKILL) => format!(
            "it was killed (SIGKILL) {before}: by somebody, or by the kernel for the memory it took"
        ),
        Some(signal) => format!("it died of {} {before}", signal_name(signal)),
        None => format!("it failed {before} (exit code {})", exit_code(status)),
    }
}

/// What a program died of.
pub fn signal(status: ExitStatus) -> Option<i32> {
    // A shell in front of it makes an exit code of its death.
    let of_shell = status.code().filter(|code| (129..160).contains(code));
    status.signal().or(of_shell.map(|code| code - 128))
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGTERM => "SIGTERM",
        libc::SIGSYS => "SIGSYS",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

/// As a shell counts: the code, or 128 and the number of the signal.
pub fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128u8.saturating_add(signal as u8),
        (None, None) => 1,
    }
}
