//! On how many processors a program may run.

use std::{io, os::unix::process::CommandExt as _, process::Command};

/// Lets a program use the first `count` of the processors that we may use; all of them where
/// these are fewer. What the kernel refuses is left as it is.
pub fn limit(command: &mut Command, count: usize) {
    let keep = move || {
        keep_first(count);
        io::Result::Ok(())
    };
    // SAFETY: between fork and exec it only makes two system calls on memory of its own.
    unsafe { command.pre_exec(keep) };
}

fn keep_first(count: usize) {
    // SAFETY: sets of bits for which all zeros are valid, looked at and changed within their
    // bounds, and given to the kernel with their size.
    unsafe {
        let size = size_of::<libc::cpu_set_t>();
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size, &mut allowed) != 0 {
            return;
        }
        let mut kept: libc::cpu_set_t = std::mem::zeroed();
        let all = 0..libc::CPU_SETSIZE as usize;
        for processor in all.filter(|n| libc::CPU_ISSET(*n, &allowed)).take(count) {
            libc::CPU_SET(processor, &mut kept);
        }
        if count > 0 {
            libc::sched_setaffinity(0, size, &kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_sees_only_the_processors_that_it_was_given() {
        let mut command = Command::new("nproc");
        limit(&mut command, 1);
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "1");
    }
}
