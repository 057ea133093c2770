//! The one clock of a trace: CLOCK_MONOTONIC in nanoseconds, which perf events
//! and block tracepoints can use too.

/// Nanoseconds of CLOCK_MONOTONIC.
#[inline]
pub fn now_nanos() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec; CLOCK_MONOTONIC always exists, and the
    // call goes to the vDSO, so it neither allocates nor takes a lock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
