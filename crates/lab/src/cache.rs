//! Experiment `cache`: which order of loops and which layout of keys a cache likes.
//!
//! Each loop's accesses go through the engine of crate `analysis`, level by level, with the
//! sizes of this machine's caches. Where valgrind is installed, cachegrind counts the misses
//! of the same loops as they really run, and must count the same.

mod cachegrind;
mod counters;
mod levels;
mod loops;
mod simulate;

use anyhow::{Context as _, anyhow, ensure};

use self::{
    cachegrind::Counts,
    counters::Misses,
    levels::Level,
    loops::{Axis, LINE_BYTES, Layout, Loop, Memory as _, Real, Recorder, Size},
};
use crate::{
    experiments::Request,
    measure::Spread,
    outcome::{Outcome, Row},
    step::{File, Step},
};

const LOOPS: File = File {
    path: "crates/lab/src/cache/loops.rs",
    text: include_str!("cache/loops.rs"),
};

const fn step(name: &'static str, about: &'static str, function: &'static str) -> Step {
    Step {
        name,
        about,
        file: LOOPS,
        function,
        defines: &[],
        claims: &[],
    }
}

pub const STEPS: &[Step] = &[
    step(
        "ijk",
        "As the formula is written: B is walked down a column, a line for every number.",
        "product",
    ),
    step(
        "jik",
        "The same inner loop, column by column of C.",
        "product",
    ),
    step(
        "ikj",
        "The inner loop walks rows of B and C: a miss for 16 numbers at most.",
        "product",
    ),
    step(
        "kij",
        "The same inner loop, but all of C for each k.",
        "product",
    ),
    step(
        "jki",
        "The inner loop walks columns of A and C: the worst for rows in memory.",
        "product",
    ),
    step(
        "kji",
        "The same inner loop, but all of C for each k.",
        "product",
    ),
    step(
        "blocked",
        "i, k, j inside of blocks of 48×48, which stay in the first level.",
        "blocked",
    ),
    step(
        "rows",
        "Keys as [token][head][dim]: a token's key is one run of lines.",
        "decode",
    ),
    step(
        "columns",
        "Keys as [head][dim][token]: each number of a key is in another line, and all in few sets.",
        "decode",
    ),
    step(
        "padded",
        "The same with one more line a column: they spread over all sets.",
        "decode",
    ),
    step(
        "blocks",
        "Columns of 16 tokens, one line each: a block lies together and stays.",
        "decode",
    ),
];

/// The loop of a step, or none that is known.
fn find(name: &str) -> Option<Loop> {
    use Axis::{I, J, K};
    Some(match name {
        "ijk" => Loop::Order([I, J, K]),
        "jik" => Loop::Order([J, I, K]),
        "ikj" => Loop::Order([I, K, J]),
        "kij" => Loop::Order([K, I, J]),
        "jki" => Loop::Order([J, K, I]),
        "kji" => Loop::Order([K, J, I]),
        "blocked" => Loop::Blocked,
        "rows" => Loop::Decode(Layout::Rows),
        "columns" => Loop::Decode(Layout::Columns),
        "padded" => Loop::Decode(Layout::Padded),
        "blocks" => Loop::Decode(Layout::Blocks),
        "idle" => Loop::Idle,
        _ => return None,
    })
}

/// How much cachegrind may count more or fewer misses, of its own count. Most are within 1 %.
/// But it sees two lines of the process's stack too. Where columns just fill the sets, these
/// make all of their sets miss, and where the stack lies depends on the environment: jki at
/// 200 is 8 to 11 % apart. (Traced with lackey, the loop's own accesses are missed exactly as
/// often as we count, and with the stack's as often as cachegrind does.)
const TOLERANCE: f64 = 0.25;

/// Misses that tell nothing: what differs from run to run of the same program.
const NOISE: f64 = 2000.0;

/// Steps that `--quick` gives to cachegrind unless steps are named: a start of valgrind takes
/// a second.
const QUICK_CHECKS: [&str; 2] = ["ijk", "columns"];

/// Tokens of a sequence.
const CONTEXT: usize = 512;
const QUICK_CONTEXT: usize = 128;

pub fn run(request: &Request) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new(
        "cache",
        "How many accesses miss each cache, by the order of loops and the layout of data?",
        "level",
        "misses of 100",
        None,
        request.seed,
    );
    let mut levels = levels::here();
    if levels.is_empty() {
        levels = levels::usual();
        let note = "This machine does not describe its caches: those of a usual one.";
        outcome.notes.push(note.to_owned());
    }
    ensure!(
        levels
            .iter()
            .all(|level| level.line_bytes == LINE_BYTES as u64),
        "lines of caches have {LINE_BYTES} bytes in this experiment, not {} as here",
        levels[0].line_bytes
    );
    for level in &levels {
        outcome.notes.push(format!(
            "{}: {} KiB in {} sets of {} lines.",
            level.name,
            level.bytes >> 10,
            level.sets(),
            level.ways
        ));
    }
    let mut judge = Judge::new(request, &levels, &mut outcome.notes)?;
    for matrix in request.sizes_or(&[128, 200], &[64]) {
        ensure!(
            (1..=512).contains(&matrix),
            "matrices have from 1 to 512 rows here, not {matrix}"
        );
        let size = Size {
            matrix,
            batch: 0,
            context: 0,
        };
        let steps = STEPS.iter().filter(|step| step.function != "decode");
        let case = format!("product of {matrix}");
        look(&mut outcome, request, &mut judge, steps, &case, size)?;
    }
    let batches: &[usize] = if request.is_quick {
        &[1, 4]
    } else {
        &[1, 4, 16]
    };
    for &batch in batches {
        let size = Size {
            matrix: 0,
            batch,
            context: if request.is_quick {
                QUICK_CONTEXT
            } else {
                CONTEXT
            },
        };
        let steps = STEPS.iter().filter(|step| step.function == "decode");
        let case = format!("decode, batch {batch}");
        look(&mut outcome, request, &mut judge, steps, &case, size)?;
    }
    judge.conclude(&mut outcome.notes);
    Ok(outcome)
}

/// All steps at one size: a row for each at each level.
fn look<'s>(
    outcome: &mut Outcome,
    request: &Request,
    judge: &mut Judge,
    steps: impl Iterator<Item = &'s Step>,
    case: &str,
    size: Size,
) -> anyhow::Result<()> {
    let x = (size.matrix + size.batch) as f64;
    let mut rows: Vec<Vec<Row>> = vec![Vec::new(); judge.levels.len() + 1];
    for step in steps.filter(|step| request.wants(step.name)) {
        let which = find(step.name).ok_or_else(|| anyhow!("there is no loop {}", step.name))?;
        let mut recorder = Recorder::default();
        which.run(size, &mut recorder);
        let accesses = recorder.lines.len();
        let of_hundred = |misses: u64| {
            let share = 100.0 * misses as f64 / accesses as f64;
            Spread::of(&[share])
        };
        let missed = simulate::misses_of_levels(&recorder.lines, &judge.levels);
        let found = judge.compare(step.name, which, size, accesses as u64, &missed)?;
        for (i, (level, &misses)) in judge.levels.iter().zip(&missed).enumerate() {
            let case = format!("{}, {case}", level.name);
            let mut row = Row::of(step, case, x, of_hundred(misses));
            if let Some(theirs) = found.as_ref().and_then(|found| found.misses.get(i)) {
                let ratio = misses as f64 / (*theirs as f64).max(1.0);
                row = row.against("cachegrind", Spread::of(&[ratio]));
            }
            rows[i].push(row);
        }
        let anywhere = simulate::misses(&recorder.lines, &judge.levels[0].without_sets());
        let case = format!("{} without sets, {case}", judge.levels[0].name);
        let value = of_hundred(anywhere.len() as u64);
        rows[judge.levels.len()].push(Row::of(step, case, x, value));
    }
    // The first level with and without sets, side by side; then the others.
    let without_sets = rows.pop().unwrap_or_default();
    rows.insert(1, without_sets);
    outcome.rows.extend(rows.into_iter().flatten());
    Ok(())
}

/// Whoever else can count misses.
struct Judge {
    levels: Vec<Level>,
    /// What a process does without any loop; none without valgrind.
    idle: Option<Counts>,
    /// Whether it compares [`QUICK_CHECKS`] only.
    is_brief: bool,
    compared: usize,
    furthest: f64,
    /// What the processor counted, in words.
    counted: Vec<String>,
    counts: bool,
}

impl Judge {
    fn new(request: &Request, levels: &[Level], notes: &mut Vec<String>) -> anyhow::Result<Judge> {
        let mut judge = Judge {
            levels: levels.to_vec(),
            idle: None,
            is_brief: request.is_quick && request.steps.is_empty(),
            compared: 0,
            furthest: 0.0,
            counted: Vec::new(),
            counts: false,
        };
        match cachegrind::is_here() && levels.len() > 1 {
            true => {
                let nothing = Size {
                    matrix: 0,
                    batch: 0,
                    context: 0,
                };
                judge.idle = Some(judge.cachegrind("idle", nothing)?);
            }
            false => notes.push("Not compared with cachegrind: valgrind is not installed.".into()),
        }
        match Misses::count() {
            Ok(_) => judge.counts = true,
            Err(error) => notes.push(format!("The processor's counters cannot be read: {error}.")),
        }
        Ok(judge)
    }

    fn cachegrind(&self, name: &str, size: Size) -> anyhow::Result<Counts> {
        let Size {
            matrix,
            batch,
            context,
        } = size;
        let program = std::env::current_exe().context("this program's file")?;
        let arguments = [
            "lab".to_owned(),
            "--bare-loop".to_owned(),
            format!("{name},{matrix},{batch},{context}"),
        ];
        let levels = [&self.levels[0], &self.levels[1]];
        cachegrind::run(&program, &arguments, levels)
    }

    /// Cachegrind's counts of this loop, which must be ours.
    fn compare(
        &mut self,
        name: &str,
        which: Loop,
        size: Size,
        accesses: u64,
        ours: &[u64],
    ) -> anyhow::Result<Option<Counts>> {
        if self.counts {
            let misses = count(which, size)?;
            let share = 100.0 * misses as f64 / accesses as f64;
            let at = size.matrix + size.batch;
            self.counted.push(format!("{name} at {at}: {share:.2}"));
        }
        let Some(idle) = self.idle else {
            return Ok(None);
        };
        if self.is_brief && !QUICK_CHECKS.contains(&name) {
            return Ok(None);
        }
        let theirs = self.cachegrind(name, size)?.without(idle);
        for (level, (&ours, theirs)) in self.levels.iter().zip(ours.iter().zip(theirs.misses)) {
            let apart = (ours as f64 - theirs as f64).abs();
            ensure!(
                apart <= TOLERANCE * theirs as f64 + NOISE,
                "{name} misses {} {ours} times by our count, {theirs} times by cachegrind's",
                level.name
            );
            let beyond = (apart - NOISE).max(0.0) / (theirs as f64).max(1.0);
            self.furthest = self.furthest.max(beyond);
            self.compared += 1;
        }
        Ok(Some(theirs))
    }

    fn conclude(self, notes: &mut Vec<String>) {
        if self.idle.is_some() {
            notes.push(format!(
                "Cachegrind counted {} of these with the loops as they run: {:.1} % apart at most, \
                 besides {NOISE} misses of the rest of the process (allowed: {:.0} %).",
                self.compared,
                100.0 * self.furthest,
                100.0 * TOLERANCE
            ));
        }
        if !self.counted.is_empty() {
            notes.push(format!(
                "Reads of 100 accesses that missed the first level by the processor's counter, \
                 which knows prefetching: {}.",
                self.counted.join(", ")
            ));
        }
    }
}

/// Misses of the first level by the processor's counter.
fn count(which: Loop, size: Size) -> anyhow::Result<u64> {
    let mut memory = Real::new(which.numbers(size))?;
    // Pages first: the kernel's work for a new one would count.
    for place in (0..which.numbers(size)).step_by(1024) {
        memory.write(place, 0.0);
    }
    let mut counter = Misses::count()?;
    let before = counter.so_far()?;
    which.run(size, &mut memory);
    Ok(counter.so_far()? - before)
}

/// `--bare-loop`: runs a loop on real memory, and nothing else.
pub fn run_bare(words: &str) -> anyhow::Result<()> {
    let parts: Vec<&str> = words.split(',').collect();
    let &[name, matrix, batch, context] = parts.as_slice() else {
        return Err(anyhow!("--bare-loop NAME,MATRIX,BATCH,CONTEXT"));
    };
    let which = find(name).ok_or_else(|| anyhow!("there is no loop {name:?}"))?;
    let number = |text: &str| text.parse::<usize>().with_context(|| text.to_owned());
    let size = Size {
        matrix: number(matrix)?,
        batch: number(batch)?,
        context: number(context)?,
    };
    which.run(size, &mut Real::new(which.numbers(size))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(name: &str, size: Size, level: &Level) -> f64 {
        let mut recorder = Recorder::default();
        find(name).unwrap().run(size, &mut recorder);
        let missed = simulate::misses(&recorder.lines, level).len();
        missed as f64 / recorder.lines.len() as f64
    }

    #[test]
    fn every_step_has_a_loop() {
        assert!(STEPS.iter().all(|step| find(step.name).is_some()));
        assert!(find("kkk").is_none());
        assert!(run_bare("ijk,4,0,0").is_ok() && run_bare("ijk,4").is_err());
    }

    #[test]
    fn orders_and_layouts_differ_as_they_should() {
        let first = &levels::usual()[0];
        let size = Size {
            matrix: 128,
            batch: 1,
            context: 256,
        };
        let of = |name| share(name, size, first);
        assert!(of("ikj") < 0.1 && of("ijk") > 0.4 && of("jki") > 0.6);
        assert!(of("blocked") < of("ikj") / 2.0);
        // A conflict: without sets the columns fit.
        assert!(of("columns") > 0.4, "{}", of("columns"));
        assert!(share("columns", size, &first.without_sets()) < 0.1);
        assert!(of("padded") < 0.1 && of("blocks") < 0.1 && of("rows") < 0.1);
    }
}
