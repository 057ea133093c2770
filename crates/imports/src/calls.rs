//! Which kind of work a system call is. The one table of this; the recorder uses it too.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    FileRead,
    FileWrite,
    /// Opening, closing, looking up and describing files.
    FileOpen,
    Memory,
    Futex,
    /// Waiting until one of several things happens.
    Poll,
    /// Processes, threads, where they run and when; sleeping.
    Scheduling,
    Network,
    Signal,
    Other,
}

/// All of them, in the order in which they are shown.
pub const CATEGORIES: [Category; 10] = [
    Category::FileRead,
    Category::FileWrite,
    Category::FileOpen,
    Category::Memory,
    Category::Futex,
    Category::Poll,
    Category::Scheduling,
    Category::Network,
    Category::Signal,
    Category::Other,
];

impl Category {
    /// As in names of metrics: `calls.file_read.count`.
    pub fn name(self) -> &'static str {
        match self {
            Category::FileRead => "file_read",
            Category::FileWrite => "file_write",
            Category::FileOpen => "file_open",
            Category::Memory => "memory",
            Category::Futex => "futex",
            Category::Poll => "poll",
            Category::Scheduling => "scheduling",
            Category::Network => "network",
            Category::Signal => "signal",
            Category::Other => "other",
        }
    }

    /// The calls that wait for somebody rather than work; their time is no cost of the kernel's.
    pub fn waits(self) -> bool {
        matches!(
            self,
            Category::Futex | Category::Poll | Category::Scheduling
        )
    }
}

/// Of a call by the name that the kernel and strace give it.
pub fn category(name: &str) -> Category {
    let found = TABLE.iter().find(|(_, names)| names.contains(&name));
    found.map_or(Category::Other, |(category, _)| *category)
}

const TABLE: &[(Category, &[&str])] = &[
    (
        Category::FileRead,
        &[
            "read",
            "pread64",
            "pread",
            "readv",
            "preadv",
            "preadv2",
            "readahead",
            "getdents",
            "getdents64",
            "lseek",
            "_llseek",
            "sendfile",
            "sendfile64",
            "copy_file_range",
            "splice",
            "tee",
            "io_getevents",
            "io_pgetevents",
            "io_submit",
            "io_uring_enter",
        ],
    ),
    (
        Category::FileWrite,
        &[
            "write",
            "pwrite64",
            "pwrite",
            "writev",
            "pwritev",
            "pwritev2",
            "fsync",
            "fdatasync",
            "sync",
            "syncfs",
            "sync_file_range",
            "ftruncate",
            "truncate",
            "fallocate",
            "vmsplice",
            "msync",
        ],
    ),
    (
        Category::FileOpen,
        &[
            "open",
            "openat",
            "openat2",
            "creat",
            "close",
            "close_range",
            "stat",
            "fstat",
            "lstat",
            "newfstatat",
            "fstatat64",
            "statx",
            "access",
            "faccessat",
            "faccessat2",
            "readlink",
            "readlinkat",
            "statfs",
            "fstatfs",
            "mkdir",
            "mkdirat",
            "rmdir",
            "unlink",
            "unlinkat",
            "rename",
            "renameat",
            "renameat2",
            "link",
            "linkat",
            "symlink",
            "symlinkat",
            "chmod",
            "fchmod",
            "fchmodat",
            "chown",
            "fchown",
            "lchown",
            "fchownat",
            "utimensat",
            "chdir",
            "fchdir",
            "getcwd",
            "dup",
            "dup2",
            "dup3",
            "fcntl",
            "fcntl64",
            "flock",
            "ioctl",
            "pipe",
            "pipe2",
            "umask",
            "getxattr",
            "lgetxattr",
            "fgetxattr",
            "listxattr",
            "inotify_init1",
            "inotify_add_watch",
            "inotify_rm_watch",
            "memfd_create",
            "fadvise64",
            "io_uring_setup",
            "io_uring_register",
            "io_setup",
            "io_destroy",
        ],
    ),
    (
        Category::Memory,
        &[
            "mmap",
            "mmap2",
            "munmap",
            "mremap",
            "mprotect",
            "madvise",
            "process_madvise",
            "brk",
            "mlock",
            "mlock2",
            "munlock",
            "mlockall",
            "munlockall",
            "mincore",
            "mbind",
            "set_mempolicy",
            "get_mempolicy",
            "migrate_pages",
            "move_pages",
            "shmget",
            "shmat",
            "shmdt",
            "shmctl",
            "pkey_mprotect",
            "userfaultfd",
            "membarrier",
            "process_vm_readv",
            "process_vm_writev",
            "cachestat",
        ],
    ),
    (
        Category::Futex,
        &[
            "futex",
            "futex_waitv",
            "futex_wait",
            "futex_wake",
            "futex_requeue",
            "futex_time64",
            "set_robust_list",
            "get_robust_list",
            "semop",
            "semtimedop",
            "semget",
            "semctl",
        ],
    ),
    (
        Category::Poll,
        &[
            "poll",
            "ppoll",
            "select",
            "pselect6",
            "_newselect",
            "epoll_wait",
            "epoll_pwait",
            "epoll_pwait2",
            "epoll_ctl",
            "epoll_create",
            "epoll_create1",
            "eventfd",
            "eventfd2",
            "timerfd_create",
            "timerfd_settime",
            "timerfd_gettime",
            "signalfd",
            "signalfd4",
        ],
    ),
    (
        Category::Scheduling,
        &[
            "sched_yield",
            "sched_setaffinity",
            "sched_getaffinity",
            "sched_setscheduler",
            "sched_getscheduler",
            "sched_setparam",
            "sched_getparam",
            "sched_setattr",
            "sched_getattr",
            "sched_get_priority_max",
            "sched_get_priority_min",
            "sched_rr_get_interval",
            "nanosleep",
            "clock_nanosleep",
            "pause",
            "clone",
            "clone3",
            "fork",
            "vfork",
            "execve",
            "execveat",
            "exit",
            "exit_group",
            "wait4",
            "waitid",
            "waitpid",
            "setpriority",
            "getpriority",
            "nice",
            "getcpu",
            "set_tid_address",
            "rseq",
            "gettid",
            "getpid",
            "getppid",
            "prctl",
            "arch_prctl",
            "prlimit64",
            "getrlimit",
            "setrlimit",
            "getrusage",
            "times",
        ],
    ),
    (
        Category::Network,
        &[
            "socket",
            "socketpair",
            "bind",
            "listen",
            "accept",
            "accept4",
            "connect",
            "shutdown",
            "send",
            "sendto",
            "sendmsg",
            "sendmmsg",
            "recv",
            "recvfrom",
            "recvmsg",
            "recvmmsg",
            "getsockname",
            "getpeername",
            "setsockopt",
            "getsockopt",
            "socketcall",
        ],
    ),
    (
        Category::Signal,
        &[
            "rt_sigaction",
            "rt_sigprocmask",
            "rt_sigreturn",
            "rt_sigpending",
            "rt_sigtimedwait",
            "rt_sigsuspend",
            "rt_sigqueueinfo",
            "rt_tgsigqueueinfo",
            "sigaction",
            "sigprocmask",
            "sigreturn",
            "signal",
            "sigaltstack",
            "kill",
            "tkill",
            "tgkill",
            "alarm",
            "setitimer",
            "getitimer",
            "timer_create",
            "timer_settime",
            "timer_delete",
            "pidfd_send_signal",
            "restart_syscall",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_call_has_one_category() {
        let mut seen = BTreeSet::new();
        for (_, names) in TABLE {
            for name in *names {
                assert!(seen.insert(name), "{name} is in the table twice");
            }
        }
        assert_eq!(category("pread64"), Category::FileRead);
        assert_eq!(category("futex"), Category::Futex);
        assert_eq!(category("made_up"), Category::Other);
    }

    #[test]
    fn every_category_has_the_name_that_it_is_written_as() {
        for category in CATEGORIES {
            let written = serde_json::to_value(category).unwrap();
            assert_eq!(written, category.name());
        }
    }
}
