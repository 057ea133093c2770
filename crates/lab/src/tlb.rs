//! Experiment `tlb`: what it costs to find a page. The processor keeps the addresses of some
//! thousand pages; with pages of 2 MiB instead of 4 KiB these reach 512 times as far.
//!
//! Each address depends on the number read before: the time of one access is its latency,
//! nothing overlaps.

use anyhow::{Context as _, ensure};

use crate::{
    experiments::Request,
    measure::{self, Spread},
    outcome::{Outcome, Row},
    step::{File, Step},
};

const HERE: File = File {
    path: "crates/lab/src/tlb.rs",
    text: include_str!("tlb.rs"),
};

const fn step(name: &'static str, about: &'static str, function: &'static str) -> Step {
    Step {
        name,
        about,
        file: HERE,
        function,
        defines: &[],
        claims: &[],
    }
}

pub const STEPS: &[Step] = &[
    step(
        "strided, 4 KiB pages",
        "Each access is a page and a line after the one before: a page's address is needed every time.",
        "strided",
    ),
    step(
        "strided, 2 MiB pages",
        "The same in large pages: 500 accesses for each address of a page.",
        "strided",
    ),
    step(
        "random, 4 KiB pages",
        "Each access is anywhere: the line misses the cache, and its page's address too.",
        "random",
    ),
    step(
        "random, 2 MiB pages",
        "The same in large pages: the line misses, but its page's address is there.",
        "random",
    ),
];

/// Bytes of a small page, a large one, and a cache line.
const SMALL: usize = 4096;
const LARGE: usize = 2 << 20;
const LINE: usize = 64;

/// Accesses that are timed at once.
const ACCESSES: u32 = 2_000_000;
const QUICK_ACCESSES: u32 = 200_000;

/// Zeros, in pages of one size.
struct Pages {
    begin: *const u64,
    bytes: usize,
    mapped: *mut libc::c_void,
}

impl Pages {
    fn new(bytes: usize, is_large: bool) -> anyhow::Result<Pages> {
        // SAFETY: a new mapping, anywhere; it is larger by a large page, so that one can
        // begin inside.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes + LARGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            let megabytes = bytes >> 20;
            return Err(std::io::Error::last_os_error())
                .with_context(|| format!("{megabytes} MiB of memory"));
        }
        let begin = mapped.wrapping_byte_add(mapped.align_offset(LARGE));
        let pages = Pages {
            begin: begin.cast(),
            bytes,
            mapped,
        };
        let wish = match is_large {
            true => libc::MADV_HUGEPAGE,
            false => libc::MADV_NOHUGEPAGE,
        };
        // SAFETY: inside of the mapping. What became of the wish, `large_bytes` says.
        unsafe { libc::madvise(begin, bytes, wish) };
        for at in (0..bytes).step_by(SMALL) {
            // SAFETY: inside of the mapping; the write makes the kernel give a page.
            unsafe { begin.cast::<u8>().add(at).write_volatile(0) };
        }
        Ok(pages)
    }

    /// How many of its bytes are in large pages, by the kernel's account.
    fn large_bytes(&self) -> anyhow::Result<usize> {
        let maps = std::fs::read_to_string("/proc/self/smaps").context("/proc/self/smaps")?;
        Ok(large_bytes(&maps, self.begin as usize))
    }

    /// The number at this byte, which must be inside.
    #[inline]
    fn read(&self, byte: usize) -> u64 {
        // SAFETY: callers stay below `bytes`, and all of it was written.
        unsafe { self.begin.byte_add(byte).read_volatile() }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped once, as large.
        unsafe { libc::munmap(self.mapped, self.bytes + LARGE) };
    }
}

/// `AnonHugePages` of the mapping that `address` lies in.
fn large_bytes(maps: &str, address: usize) -> usize {
    let mut is_inside = false;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((begin, end)) = first.split_once('-') {
            let number = |text| usize::from_str_radix(text, 16).unwrap_or(0);
            is_inside = (number(begin)..number(end)).contains(&address);
        } else if is_inside && first == "AnonHugePages:" {
            let kilobytes = words.next().and_then(|text| text.parse::<usize>().ok());
            return kilobytes.unwrap_or(0) << 10;
        }
    }
    0
}

/// Seconds for so many accesses, a page and a line apart.
fn strided(pages: &Pages, accesses: u32, _: u32) -> f64 {
    let mut at = 0;
    let (seconds, _) = measure::seconds(|| {
        for _ in 0..accesses {
            // What is read is zero, but the processor must wait to know.
            at += SMALL + LINE + pages.read(at) as usize;
            if at >= pages.bytes {
                at -= pages.bytes;
            }
        }
        std::hint::black_box(at)
    });
    seconds
}

/// Seconds for so many accesses, anywhere.
fn random(pages: &Pages, accesses: u32, seed: u32) -> f64 {
    let lines = (pages.bytes / LINE) as u64;
    let mut state = u64::from(seed) | 1;
    let (seconds, _) = measure::seconds(|| {
        for _ in 0..accesses {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            // The high bits are the random ones; below `lines` without a division.
            let line = ((state >> 32) * lines) >> 32;
            state = state.wrapping_add(pages.read(line as usize * LINE));
        }
        std::hint::black_box(state)
    });
    seconds
}

/// Of the setting `always [madvise] never`, the one that holds.
fn setting(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

pub fn run(request: &Request) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new(
        "tlb",
        "What does an access cost with small and with large pages?",
        "MiB",
        "ns/access",
        None,
        request.seed,
    );
    let accesses = match request.is_quick {
        true => QUICK_ACCESSES,
        false => ACCESSES,
    };
    for megabytes in request.sizes_or(&[16, 64, 256, 1024], &[64]) {
        ensure!(
            (1..=65_536).contains(&megabytes),
            "sizes are from 1 to 65536 MiB, not {megabytes}"
        );
        let bytes = (megabytes << 20).next_multiple_of(LARGE);
        let [small, large] = [Pages::new(bytes, false)?, Pages::new(bytes, true)?];
        ensure!(
            small.large_bytes()? == 0,
            "small pages were asked for, and the kernel gave large ones"
        );
        let given = large.large_bytes()?;
        let has_large = given >= bytes / 10 * 9;
        if !has_large {
            let path = "/sys/kernel/mm/transparent_hugepage/enabled";
            let text = std::fs::read_to_string(path).unwrap_or_default();
            outcome.notes.push(format!(
                "{megabytes} MiB: the kernel gave {} MiB in large pages (the setting is {}). \
                 This allows them: echo madvise | sudo tee {path}",
                given >> 20,
                setting(&text).unwrap_or("unknown")
            ));
        }
        measure_case(
            &mut outcome,
            request,
            accesses,
            &small,
            has_large.then_some(&large),
        )?;
    }
    Ok(outcome)
}

fn measure_case(
    outcome: &mut Outcome,
    request: &Request,
    accesses: u32,
    small: &Pages,
    large: Option<&Pages>,
) -> anyhow::Result<()> {
    type Walk = fn(&Pages, u32, u32) -> f64;
    let walks: [(Walk, Option<&Pages>); 4] = [
        (strided, Some(small)),
        (strided, large),
        (random, Some(small)),
        (random, large),
    ];
    let members: Vec<(&Step, Walk, &Pages)> = STEPS
        .iter()
        .zip(walks)
        .filter(|(step, _)| request.wants(step.name))
        .filter_map(|(step, (walk, pages))| Some((step, walk, pages?)))
        .collect();
    let mut round = 0;
    let times = measure::in_turns(members.len(), request.rounds, |i| {
        let (_, walk, pages) = members[i];
        round += 1;
        let seconds = walk(pages, accesses, request.seed.wrapping_add(round));
        Ok(seconds * 1e9 / f64::from(accesses))
    })?;
    let megabytes = small.bytes >> 20;
    for ((step, ..), these) in members.iter().zip(&times) {
        let case = megabytes.to_string();
        let mut row = Row::of(step, case, megabytes as f64, Spread::of(these));
        // Large pages against the same walk in small ones.
        let other = step.name.replace("2 MiB", "4 KiB");
        let reference = members.iter().position(|(step, ..)| step.name == other);
        if let Some(at) = reference.filter(|_| other != step.name) {
            let ratio = measure::speed_against(these, &times[at]);
            row = row.against("4 KiB pages", ratio);
        }
        outcome.rows.push(row);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pages_are_found_in_the_account_of_the_mapping() {
        let maps = "7f00-7f80 rw-p 0 00:00 0\nRss: 4 kB\nAnonHugePages:  2048 kB\n\
            8000-9000 rw-p 0 00:00 0\nAnonHugePages:  0 kB\n";
        assert_eq!(large_bytes(maps, 0x7f10), 2 << 20);
        assert_eq!(large_bytes(maps, 0x8000), 0);
        assert_eq!(large_bytes(maps, 0x1), 0);
        assert_eq!(setting("always [madvise] never\n"), Some("madvise"));
    }

    #[test]
    fn walks_stay_inside() {
        for is_large in [false, true] {
            let pages = Pages::new(LARGE, is_large).unwrap();
            assert!(strided(&pages, 10_000, 1) > 0.0);
            assert!(random(&pages, 10_000, 1) > 0.0);
            assert!(is_large || pages.large_bytes().unwrap() == 0);
        }
    }
}
