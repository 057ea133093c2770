//! What a system call is for, by its name.

/// Kinds of calls, and the beginnings of their names. The first that fits counts.
const KINDS: &[(&str, &[&str])] = &[
    (
        "waiting for threads",
        &["futex", "sched_yield", "set_robust_list", "rseq"],
    ),
    (
        "memory",
        &[
            "mmap", "munmap", "mremap", "mprotect", "madvise", "brk", "mlock", "munlock",
            "mincore", "msync",
        ],
    ),
    ("devices", &["ioctl"]),
    (
        "waiting for events",
        &[
            "poll", "ppoll", "select", "pselect", "epoll", "eventfd", "io_uring", "io_",
        ],
    ),
    (
        "time",
        &["nanosleep", "clock_", "timer", "gettimeofday", "time"],
    ),
    (
        "files",
        &[
            "open",
            "close",
            "read",
            "pread",
            "write",
            "pwrite",
            "lseek",
            "fstat",
            "newfstat",
            "stat",
            "lstat",
            "access",
            "faccess",
            "getdents",
            "fcntl",
            "dup",
            "unlink",
            "rename",
            "mkdir",
            "ftruncate",
            "fallocate",
            "fadvise",
            "flock",
            "statx",
            "fsync",
            "pipe",
            "copy_file",
            "sendfile",
        ],
    ),
    (
        "network",
        &[
            "socket", "connect", "accept", "bind", "listen", "send", "recv", "getsock", "setsock",
            "shutdown",
        ],
    ),
    (
        "processes and threads",
        &[
            "clone",
            "fork",
            "vfork",
            "exec",
            "exit",
            "wait",
            "kill",
            "tgkill",
            "set_tid",
            "prctl",
            "arch_prctl",
            "prlimit",
            "getr",
            "setr",
            "sched_",
            "get",
            "set",
            "uname",
            "sysinfo",
        ],
    ),
    ("signals", &["rt_sig", "sigaltstack", "pause"]),
];

pub fn kind_of(call: &str) -> &'static str {
    let kind = KINDS
        .iter()
        .find(|(_, names)| names.iter().any(|name| call.starts_with(name)));
    kind.map_or("other", |(kind, _)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_sorted_into_kinds() {
        for (call, kind) in [
            ("futex", "waiting for threads"),
            ("ioctl", "devices"),
            ("newfstatat", "files"),
            ("sched_yield", "waiting for threads"),
            ("sched_getaffinity", "processes and threads"),
            ("clock_nanosleep", "time"),
            ("quotactl", "other"),
        ] {
            assert_eq!(kind_of(call), kind, "{call}");
        }
    }
}
