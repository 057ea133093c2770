//! What caches miss of a stream of lines, by the engine that computes reuse distances for
//! `tensorscope analyze`: an item is a cache line here.
//!
//! A set of a cache is a small cache of its own, which holds the latest `ways` of the lines
//! that belong to it. So each set's part of the stream is given to the engine by itself.

use analysis::{cache_trace::CacheTrace, reuse::for_each_distance};

use super::{levels::Level, loops::LINE_BYTES};

/// The lines that miss, in order. They are what the next level sees.
pub fn misses(lines: &[u32], level: &Level) -> Vec<u32> {
    let sets = level.sets() as u32;
    // Positions by set: counted first, then filled in.
    let mut ends = vec![0u32; sets as usize + 1];
    for line in lines {
        ends[(line % sets) as usize + 1] += 1;
    }
    for set in 0..sets as usize {
        ends[set + 1] += ends[set];
    }
    let mut next = ends.clone();
    let mut positions = vec![0u32; lines.len()];
    for (position, line) in lines.iter().enumerate() {
        let next = &mut next[(line % sets) as usize];
        positions[*next as usize] = position as u32;
        *next += 1;
    }
    let room = level.ways * LINE_BYTES as u64;
    let mut is_missed = vec![false; lines.len()];
    for bounds in ends.windows(2) {
        let positions = &positions[bounds[0] as usize..bounds[1] as usize];
        let items = positions.iter().map(|&at| lines[at as usize] / sets);
        let items: Vec<u32> = items.collect();
        let Some(&last) = items.iter().max() else {
            continue;
        };
        let sizes = vec![LINE_BYTES as u64; last as usize + 1];
        let trace = CacheTrace::whole_items(sizes, items);
        for_each_distance(&trace, |at, _, distance| {
            let is_hit = distance.is_some_and(|bytes| bytes + LINE_BYTES as u64 <= room);
            is_missed[positions[at] as usize] = !is_hit;
        });
    }
    let missed = lines.iter().zip(&is_missed).filter(|(_, missed)| **missed);
    missed.map(|(&line, _)| line).collect()
}

/// How many miss at each level, from the processor on.
pub fn misses_of_levels(lines: &[u32], levels: &[Level]) -> Vec<u64> {
    let mut seen: Option<Vec<u32>> = None;
    let mut counts = Vec::with_capacity(levels.len());
    for level in levels {
        let missed = misses(seen.as_deref().unwrap_or(lines), level);
        counts.push(missed.len() as u64);
        seen = Some(missed);
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache as textbooks draw it: the latest line of a set first.
    fn textbook(lines: &[u32], level: &Level) -> u64 {
        let mut sets = vec![Vec::new(); level.sets() as usize];
        let mut count = 0;
        for &line in lines {
            let set: &mut Vec<u32> = &mut sets[(u64::from(line) % level.sets()) as usize];
            match set.iter().position(|&held| held == line) {
                Some(at) => drop(set.remove(at)),
                None => count += 1,
            }
            set.insert(0, line);
            set.truncate(level.ways as usize);
        }
        count
    }

    #[test]
    fn a_set_holds_its_latest_lines() {
        let mut random = support::random::Random(3);
        let lines: Vec<u32> = (0..20_000)
            .map(|at| match at % 3 {
                0 => random.below(40) as u32,
                1 => random.below(600) as u32,
                _ => at as u32 % 900,
            })
            .collect();
        for (bytes, ways) in [(4096, 1), (4096, 4), (4096, 64), (16_384, 8)] {
            let level = Level::new("L1", bytes, ways, 64);
            let counted = misses(&lines, &level).len() as u64;
            assert_eq!(
                counted,
                textbook(&lines, &level),
                "{bytes} bytes, {ways} ways"
            );
        }
    }

    #[test]
    fn the_next_level_sees_what_was_missed() {
        // 100 lines in turn: too many for 64, and 100 cold ones for 128.
        let lines: Vec<u32> = (0..1000).map(|at| at % 100).collect();
        let levels = [
            Level::new("L1", 4096, 64, 64),
            Level::new("L2", 8192, 128, 64),
        ];
        assert_eq!(misses_of_levels(&lines, &levels), [1000, 100]);
        assert_eq!(misses_of_levels(&[], &levels), [0, 0]);
    }
}
