//! Reading real files with every method: what is counted, what is refused, what
//! is said. Speeds are not asserted.

use std::fs;
use std::path::Path;
use std::time::Duration;

use kernelio::CeilingError;
use kernelio::disk::{
    Caveat, DiskCeiling, DiskOptions, Event, Method, MethodChoice, Setting, SettingChoice, Stop,
    measure,
};

fn options(method: MethodChoice, block_bytes: u32, depth: u32, passes: u32) -> DiskOptions {
    DiskOptions {
        method,
        setting: SettingChoice::Fixed(Setting { block_bytes, depth }),
        stop: Stop::Passes(passes),
    }
}

fn write(folder: &Path, bytes: usize) -> std::path::PathBuf {
    let path = folder.join(format!("model-{bytes}"));
    let content: Vec<u8> = (0..bytes).map(|i| (i / 7) as u8).collect();
    fs::write(&path, content).unwrap();
    path
}

/// Every method that this file system and this kernel have; the last is always
/// there.
fn check_every_method(check: impl Fn(Method) -> Result<DiskCeiling, CeilingError>) {
    for method in Method::ALL {
        match check(method) {
            Ok(found) => assert_eq!(found.method, method),
            Err(CeilingError::Unavailable { .. }) if method != Method::PreadBuffered => {}
            Err(error) => panic!("{method}: {error}"),
        }
    }
}

#[test]
fn bytes_counted_are_the_size_times_the_passes() {
    let folder = tempfile::tempdir().unwrap();
    for bytes in [1, 511, 512, 4095, 4096, 4097, 131_072, 1_000_003] {
        let path = write(folder.path(), bytes);
        for (block_bytes, depth, passes) in
            [(1, 1, 1), (4096, 5, 3), (131_072, 4, 7), (5000, 32, 2)]
        {
            check_every_method(|method| {
                let options = options(MethodChoice::Only(method), block_bytes, depth, passes);
                let found = measure(&path, options, &mut |_| {})?;
                assert_eq!(found.file_bytes, bytes as u64);
                assert_eq!(found.bytes_read, bytes as u64 * u64::from(passes));
                assert_eq!(found.setting.depth, depth);
                let alignment = found.alignment_bytes.unwrap_or(1);
                assert_eq!(
                    found.setting.block_bytes,
                    block_bytes.next_multiple_of(alignment)
                );
                assert!(found.bytes_per_second > 0);
                Ok(found)
            });
        }
    }
}

#[test]
fn the_file_is_left_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 70_001);
    // A file that may not be written to can be measured.
    let mut permissions = fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&path, permissions).unwrap();
    let (content, modified) = (
        fs::read(&path).unwrap(),
        fs::metadata(&path).unwrap().modified(),
    );
    check_every_method(|method| {
        measure(
            &path,
            options(MethodChoice::Only(method), 8192, 4, 2),
            &mut |_| {},
        )
    });
    assert_eq!(fs::read(&path).unwrap(), content);
    assert_eq!(
        fs::metadata(&path).unwrap().modified().unwrap(),
        modified.unwrap()
    );
}

#[test]
fn a_sweep_picks_one_of_its_settings_and_announces_each() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 3_000_000);
    check_every_method(|method| {
        let options = DiskOptions {
            method: MethodChoice::Only(method),
            setting: SettingChoice::Sweep,
            stop: Stop::After(Duration::from_millis(120)),
        };
        let mut events = Vec::new();
        let found = measure(&path, options, &mut |event| events.push(event))?;
        assert_eq!(events.len(), found.sweep.len() + 1);
        assert_eq!(events.last(), Some(&Event::Measuring));
        assert!(
            found
                .sweep
                .iter()
                .any(|trial| trial.setting == found.setting)
        );
        assert!(found.sweep.iter().all(|trial| trial.bytes_per_second > 0));
        assert!(found.bytes_read > 0 && found.elapsed_nanos > 0);
        Ok(found)
    });
}

#[test]
fn small_and_cached_figures_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 10_000);
    let buffered = options(MethodChoice::Only(Method::PreadBuffered), 4096, 2, 1);
    let found = measure(&path, buffered, &mut |_| {}).unwrap();
    assert_eq!(found.alignment_bytes, None);
    assert!(found.caveats.contains(&Caveat::PageCache));
    assert!(
        found.caveats.contains(&Caveat::SmallFile) || found.caveats.contains(&Caveat::InMemory)
    );
}

#[test]
fn a_file_in_memory_is_measured_and_named() {
    // Not every container has it.
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        return;
    };
    let path = write(folder.path(), 100_000);
    let found = measure(&path, options(MethodChoice::Best, 8192, 3, 2), &mut |_| {}).unwrap();
    assert_eq!(found.bytes_read, 200_000);
    assert!(found.caveats.contains(&Caveat::InMemory));
}

#[test]
fn what_cannot_be_read_is_named_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let check = |path: &Path, expect: &str| {
        let mut events = 0;
        let error = measure(path, DiskOptions::default(), &mut |_| events += 1).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(&path.display().to_string()), "{text}");
        assert!(text.contains(expect), "{text}");
        assert_eq!(events, 0);
    };
    let vanished = write(folder.path(), 5000);
    fs::remove_file(&vanished).unwrap();
    check(&vanished, "cannot be opened: no such file or directory");
    check(folder.path(), "not a regular file");
    check(&write(folder.path(), 0), "the file is empty");
}

#[test]
fn a_file_removed_while_it_is_read_is_read_to_the_end() {
    let folder = tempfile::tempdir().unwrap();
    check_every_method(|method| {
        let path = write(folder.path(), 300_000);
        let found = measure(
            &path,
            options(MethodChoice::Only(method), 16_384, 4, 3),
            &mut |_| fs::remove_file(&path).unwrap(),
        )?;
        assert_eq!(found.bytes_read, 900_000);
        Ok(found)
    });
}

#[test]
fn impossible_settings_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 5000);
    for (block_bytes, depth, passes) in [
        (0, 1, 1),
        (4096, 0, 1),
        (4096, 1025, 1),
        (u32::MAX, 1, 1),
        (64 << 20, 2, 1),
        (4096, 1, 0),
    ] {
        let options = options(MethodChoice::Best, block_bytes, depth, passes);
        let error = measure(&path, options, &mut |_| {}).unwrap_err();
        assert!(matches!(error, CeilingError::Setting { .. }), "{error}");
    }
}

/// System calls that a container may forbid, forbidden to one thread and to those
/// it starts.
mod forbid {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const IF_BITS: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

    fn line(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
        libc::sock_filter { code, jt, jf, k }
    }

    fn answer(errno: i32) -> libc::sock_filter {
        line(RETURN, libc::SECCOMP_RET_ERRNO | errno as u32, 0, 0)
    }

    fn allow() -> libc::sock_filter {
        line(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0)
    }

    fn install(mut filter: Vec<libc::sock_filter>) {
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: takes no memory.
        let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: `program` and its lines live through the call.
        let result =
            unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    pub fn io_uring() {
        install(vec![
            line(LOAD, 0, 0, 0),
            line(IF_EQUAL, libc::SYS_io_uring_setup as u32, 0, 1),
            answer(libc::EPERM),
            allow(),
        ]);
    }

    pub fn o_direct() {
        // The third argument's lower half, on machines with the small end first.
        const FLAGS: u32 = 16 + 2 * 8;
        install(vec![
            line(LOAD, 0, 0, 0),
            line(IF_EQUAL, libc::SYS_openat as u32, 0, 3),
            line(LOAD, FLAGS, 0, 0),
            line(IF_BITS, libc::O_DIRECT as u32, 0, 1),
            answer(libc::EINVAL),
            allow(),
        ]);
    }

    pub fn pread_with(errno: i32) {
        install(vec![
            line(LOAD, 0, 0, 0),
            line(IF_EQUAL, libc::SYS_pread64 as u32, 0, 1),
            answer(errno),
            allow(),
        ]);
    }
}

/// Measures in a thread of its own that is forbidden something.
fn measure_without(forbid: fn(), path: &Path) -> Result<DiskCeiling, CeilingError> {
    std::thread::scope(|scope| {
        let work = || {
            forbid();
            measure(path, options(MethodChoice::Best, 8192, 3, 2), &mut |_| {})
        };
        scope.spawn(work).join().unwrap()
    })
}

#[test]
fn without_io_uring_threads_read_and_the_reason_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 100_000);
    let found = measure_without(forbid::io_uring, &path).unwrap();
    assert_ne!(found.method, Method::IoUringDirect);
    assert_eq!(found.bytes_read, 200_000);
    assert_eq!(found.refused[0].method, Method::IoUringDirect);
    let is_direct = found.method == Method::PreadDirect;
    if is_direct {
        assert_eq!(found.refused[0].why, "io_uring: operation not permitted");
    }
}

#[test]
fn without_o_direct_the_page_cache_is_used_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 100_000);
    let found = measure_without(forbid::o_direct, &path).unwrap();
    assert_eq!(found.method, Method::PreadBuffered);
    assert_eq!(found.bytes_read, 200_000);
    assert!(found.caveats.contains(&Caveat::PageCache));
    let refused: Vec<Method> = found.refused.iter().map(|r| r.method).collect();
    assert_eq!(refused, Method::ALL[..2]);
}

#[test]
fn a_disk_error_names_file_and_offset() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 100_000);
    let error = measure_without(
        || {
            forbid::io_uring();
            forbid::pread_with(libc::EIO);
        },
        &path,
    )
    .unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with(&path.display().to_string()), "{text}");
    assert!(text.contains("bytes at offset 0 with pread"), "{text}");
    assert!(matches!(error, CeilingError::Read { file_offset: 0, .. }));
}
