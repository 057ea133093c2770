//! How far a build is, about how long it still takes, and how to say so.
//!
//! Time comes in as a number, so all of this can be replayed. Two promises: what
//! was there from an earlier build is never counted as work, and no estimate
//! looks more exact than it is.

use std::collections::BTreeMap;
use std::time::Duration;

use super::parts::{Artifact, Part, artifact};

/// The package whose build script compiles llama.cpp: for minutes cargo says
/// nothing, but object files appear.
pub const LLAMA: &str = "llama-cpp-sys-2";
/// How many in llama-cpp-sys-2 0.1.160 on x86-64. Only the estimate depends on it.
const LLAMA_FILES: f64 = 74.0;

/// Cargo begins with what is there already; this long after its first word it
/// has named nearly all of that, and the rest is what is to be compiled.
const SETTLED: Duration = Duration::from_secs(1);
/// Cargo, told to be quiet, does not say that it waits for another cargo.
const SILENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq)]
enum State {
    Waiting,
    /// There from an earlier build.
    Fresh,
    Built,
}

/// Built, to be built in all, and listed.
struct Counts {
    built: usize,
    work: usize,
    all: usize,
}

pub struct Progress {
    parts: BTreeMap<Part, (State, f64)>,
    cores: usize,
    llama_files: usize,
    last: Option<String>,
    /// The time left as it was last put into words.
    shown: String,
    /// When cargo first said something. What it did before, looking at files
    /// and waiting for other cargos, tells nothing about its speed.
    first_word: Option<Duration>,
    /// When there was last a sign of life.
    last_word: Duration,
}

impl Progress {
    pub fn new(parts: Vec<Part>, cores: usize) -> Self {
        let waiting = |part: Part| {
            let seconds = part.seconds();
            (part, (State::Waiting, seconds))
        };
        Self {
            parts: parts.into_iter().map(waiting).collect(),
            cores,
            llama_files: 0,
            last: None,
            shown: String::new(),
            first_word: None,
            last_word: Duration::ZERO,
        }
    }

    /// Takes in a line that cargo printed at `now`, which is counted from the start.
    pub fn hear(&mut self, line: &str, now: Duration) {
        self.first_word.get_or_insert(now);
        self.last_word = now;
        let Some(Artifact { part, is_fresh }) = artifact(line) else {
            return;
        };
        let (name, seconds) = (part.name(), part.seconds());
        // What was not listed is work all the same.
        let (state, _) = self.parts.entry(part).or_insert((State::Waiting, seconds));
        if !is_fresh {
            *state = State::Built;
            self.last = Some(name);
        } else if *state == State::Waiting {
            *state = State::Fresh;
        }
    }

    /// Whether llama.cpp is still to be compiled, so that its files say something.
    pub fn waits_for_llama(&self) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|(part, (state, _))| *state == State::Waiting && part.name() == LLAMA)
    }

    /// Takes in how many files of llama.cpp are compiled.
    pub fn see_llama_files(&mut self, files: usize, now: Duration) {
        if self.llama_files != files {
            self.llama_files = files;
            self.last_word = now;
        }
    }

    /// To be said once, as soon as cargo has told what it has already.
    pub fn opening(&self, now: Duration) -> Option<String> {
        let (packages, programs) = (self.packages(), self.programs());
        if now < self.first_word? + SETTLED || packages.work + programs.work == 0 {
            return None;
        }
        let what = self.of_all(packages.work, programs.work);
        let time = amount(self.seconds_left(now));
        Some(match self.cores {
            1 => format!("to compile: {what}; {time} on one core"),
            cores => format!("to compile: {what}; {time} on {cores} cores"),
        })
    }

    /// What fits into the columns, the most important first.
    pub fn line(&mut self, now: Duration, columns: usize) -> String {
        let mut line = format!("{}  ", clock(now));
        if self.first_word.is_none() {
            line += if now < SILENCE {
                "cargo looks at what there is to compile"
            } else {
                "no word from cargo yet; it may be waiting for another cargo"
            };
            return line;
        }
        let (packages, programs) = (self.packages(), self.programs());
        let shows_llama = self.llama_files > 0 && self.waits_for_llama();
        line += &match (packages.work, programs.built) {
            (0, _) => format!("{} of {} tests", programs.built, programs.work),
            (work, 0) => format!("{} of {work} packages", packages.built),
            (work, _) if shows_llama => format!("{} of {work} packages", packages.built),
            (work, tests) => format!(
                "{} of {work} packages, {tests} of {} tests",
                packages.built, programs.work
            ),
        };
        if packages.built + programs.built < packages.work + programs.work {
            self.shown = steady(&self.shown, self.seconds_left(now));
            line += &format!(", {} left", self.shown);
        } else {
            line += ", linking";
        }
        if shows_llama {
            let files = format!("; llama.cpp: {} files", self.llama_files);
            if line.len() + files.len() <= columns {
                line += &files;
            }
        }
        if let Some(last) = &self.last {
            line += &name_in(last, columns.saturating_sub(line.len()));
        }
        line
    }

    /// To be said of a build that ended well.
    pub fn closing(&self, now: Duration) -> String {
        let (packages, programs) = (self.packages(), self.programs());
        if packages.built + programs.built == 0 {
            return "nothing to compile: everything is up to date".into();
        }
        let what = self.of_all(packages.built, programs.built);
        format!("compiled {what} in {}", clock(now))
    }

    fn of_all(&self, packages: usize, programs: usize) -> String {
        let (all_packages, all_programs) = (self.packages().all, self.programs().all);
        let packages = format!("{packages} of {all_packages} packages");
        match all_programs {
            0 => packages,
            _ => format!("{packages}, {programs} of {all_programs} tests and examples"),
        }
    }

    fn packages(&self) -> Counts {
        self.counts(Part::is_package)
    }

    fn programs(&self) -> Counts {
        self.counts(|part| !part.is_package())
    }

    fn counts(&self, which: impl Fn(&Part) -> bool) -> Counts {
        let mut counts = Counts {
            built: 0,
            work: 0,
            all: 0,
        };
        for (_, (state, _)) in self.parts.iter().filter(|(part, _)| which(part)) {
            counts.built += usize::from(*state == State::Built);
            counts.work += usize::from(*state != State::Fresh);
            counts.all += 1;
        }
        counts
    }

    fn seconds_left(&self, now: Duration) -> f64 {
        let mut done = 0.0;
        let mut waiting = Vec::new();
        for (part, &(state, seconds)) in &self.parts {
            match state {
                State::Fresh => {}
                State::Built => done += seconds,
                State::Waiting => {
                    let share = self.share_done(part);
                    done += seconds * share;
                    waiting.push(seconds * (1.0 - share));
                }
            }
        }
        let since = |then: Duration| now.saturating_sub(then).as_secs_f64();
        let elapsed = since(self.first_word.unwrap_or(now));
        // Whatever takes longer than expected will hardly end the next moment.
        // Better to promise more than to promise the same seconds for minutes.
        let overdue = since(self.last_word) / 2.0;
        seconds_left(done, waiting, elapsed, self.cores).max(overdue)
    }

    /// Never all of it: after the files comes the library.
    fn share_done(&self, part: &Part) -> f64 {
        if part.name() == LLAMA {
            (self.llama_files as f64 / LLAMA_FILES).min(0.95)
        } else {
            0.0
        }
    }
}

/// `done` and `waiting` are work in seconds of one core, the latter part by part.
fn seconds_left(done: f64, mut waiting: Vec<f64>, elapsed: f64, cores: usize) -> f64 {
    /// What is expected weighs like so many seconds of measurement, or the first
    /// package would decide about the whole estimate.
    const TRUST: f64 = 60.0;
    let expected = expected_rate(cores);
    waiting.sort_by(|a, b| b.total_cmp(a));
    // Cargo does not say what it is working on, but it is working: what it should
    // have done by now and has not reported is under way, so the time left goes
    // down between two reports. That is one part for each core, on the average
    // half done, and the heavier a part the likelier it is met under way.
    let sum: f64 = waiting.iter().sum();
    let heaviest: f64 = waiting.iter().take(cores).sum();
    let likely = waiting.iter().map(|w| w * w).sum::<f64>() / sum.max(1.0) * cores as f64;
    let under_way = (expected * elapsed - done).clamp(0.0, likely.min(heaviest) / 2.0);
    let rate = (done + under_way + expected * TRUST) / (elapsed + TRUST);
    (sum - under_way) / rate
}

/// Seconds of work done in a second. Packages wait for each other, so of many
/// cores some stand idle: half of those above two, and all above sixteen.
fn expected_rate(cores: usize) -> f64 {
    let cores = cores.clamp(1, 16) as f64;
    cores.min(2.0) + (cores - 2.0).max(0.0) / 2.0
}

/// The name or, where that is too long, enough of it to be recognised, or nothing.
fn name_in(name: &str, columns: usize) -> String {
    let text = format!("; last: {name}");
    if text.chars().count() <= columns {
        return text;
    }
    match columns.checked_sub(3) {
        Some(kept) if kept >= "; last: a-name".len() => {
            text.chars().take(kept).chain("...".chars()).collect()
        }
        _ => String::new(),
    }
}

/// The amount as it was shown last, while that is not clearly wrong: words that
/// go to and fro are not believed.
fn steady(shown: &str, seconds: f64) -> String {
    match [0.95, 1.05].map(|nearly| amount(seconds * nearly)) {
        [low, high] if shown == low || shown == high => shown.to_owned(),
        _ => amount(seconds),
    }
}

/// As exact as it can be believed.
fn amount(seconds: f64) -> String {
    let rounded = |unit: f64, step: f64| (seconds / unit / step).round() * step;
    match seconds {
        s if s < 10.0 => "less than 10 seconds".into(),
        s if s < 55.0 => format!("about {} seconds", rounded(1.0, 10.0)),
        s if s < 90.0 => "about a minute".into(),
        s if s < 20.0 * 60.0 => format!("about {} minutes", rounded(60.0, 1.0)),
        s if s < 90.0 * 60.0 => format!("about {} minutes", rounded(60.0, 5.0)),
        _ => format!("about {} hours", rounded(3600.0, 1.0)),
    }
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::parts::packages;
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn message(name: &str, is_test: bool, is_fresh: bool) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","package_id":"registry+https://i#{name}@1.0.0","target":{{"kind":["lib"],"name":"{name}"}},"profile":{{"test":{is_test}}},"fresh":{is_fresh}}}"#
        )
    }

    fn built(name: &str) -> String {
        message(name, false, false)
    }

    fn fresh(name: &str) -> String {
        message(name, false, true)
    }

    fn unit_test(package: &str) -> Part {
        Part::Program {
            package: package.into(),
            kind: "lib".into(),
            name: package.into(),
        }
    }

    fn progress(tree: &str) -> Progress {
        Progress::new(packages(tree), 2)
    }

    #[test]
    fn finished_packages_are_counted_once() {
        let mut progress = progress("a v1.0.0\na v1.0.0 (*)\nb v1.0.0\nb v2.0.0\n");
        progress.hear(&built("a"), at(0));
        progress.hear(&built("a"), at(1));
        assert_eq!(
            progress.line(at(4), 200),
            "0:04  1 of 3 packages, less than 10 seconds left; last: a"
        );
    }

    #[test]
    fn what_is_there_already_is_no_work() {
        let mut progress = progress("a v1.0.0\nllama-cpp-sys-2 v1.0.0\n");
        progress.hear(&fresh("llama-cpp-sys-2"), at(0));
        assert!(!progress.waits_for_llama());
        assert_eq!(
            progress.opening(at(1)).unwrap(),
            "to compile: 1 of 2 packages; less than 10 seconds on 2 cores"
        );
        progress.hear(&built("a"), at(2));
        assert_eq!(progress.closing(at(2)), "compiled 1 of 2 packages in 0:02");
    }

    #[test]
    fn a_test_of_a_library_that_is_there_is_work() {
        let mut parts = packages("a v1.0.0\n");
        parts.push(unit_test("a"));
        let mut progress = Progress::new(parts, 2);
        progress.hear(&fresh("a"), at(0));
        assert_eq!(
            progress.opening(at(1)).unwrap(),
            "to compile: 0 of 1 packages, 1 of 1 tests and examples; less than 10 seconds on 2 cores"
        );
        assert_eq!(
            progress.line(at(1), 75),
            "0:01  0 of 1 tests, less than 10 seconds left"
        );
        progress.hear(&message("a", true, false), at(2));
        assert_eq!(
            progress.closing(at(3)),
            "compiled 0 of 1 packages, 1 of 1 tests and examples in 0:03"
        );
    }

    #[test]
    fn what_is_there_in_part_is_work() {
        let mut progress = progress("a v1.0.0\n");
        progress.hear(&fresh("a"), at(0));
        progress.hear(&built("a"), at(1));
        progress.hear(&fresh("a"), at(2));
        assert_eq!(progress.closing(at(3)), "compiled 1 of 1 packages in 0:03");
    }

    #[test]
    fn nothing_to_do_is_one_short_line() {
        let mut progress = progress("a v1.0.0\n");
        progress.hear(&fresh("a"), at(0));
        assert_eq!(progress.opening(at(5)), None);
        assert_eq!(
            progress.closing(at(5)),
            "nothing to compile: everything is up to date"
        );
    }

    #[test]
    fn a_package_that_nobody_listed_counts() {
        let mut progress = progress("a v1.0.0\n");
        progress.hear(&built("b"), at(0));
        let line = progress.line(at(1), 200);
        assert!(line.starts_with("0:01  1 of 2 packages, "), "{line}");
    }

    #[test]
    fn nothing_is_promised_before_cargo_has_spoken() {
        let mut progress = progress("a v1.0.0\n");
        assert_eq!(progress.opening(at(60)), None);
        assert_eq!(
            progress.line(at(9), 200),
            "0:09  cargo looks at what there is to compile"
        );
        assert_eq!(
            progress.line(at(10), 200),
            "0:10  no word from cargo yet; it may be waiting for another cargo"
        );
        progress.hear("anything", at(60));
        assert_eq!(progress.opening(at(60)), None);
        assert!(progress.opening(at(61)).is_some());
    }

    #[test]
    fn files_of_llama_are_named_and_shorten_the_time_left() {
        let mut progress = progress("llama-cpp-sys-2 v1.0.0\nb v1.0.0\n");
        progress.hear(&built("b"), at(0));
        let before = progress.seconds_left(at(1));
        progress.see_llama_files(43, at(1));
        assert!(progress.seconds_left(at(1)) < before);
        assert!(
            progress
                .line(at(1), 200)
                .contains("; llama.cpp: 43 files; last: b")
        );
        // More files than there were when this was written are no less than nothing left.
        progress.see_llama_files(100_000, at(1));
        assert!(progress.seconds_left(at(1)) > 0.0);
        progress.hear(&built(LLAMA), at(2));
        assert_eq!(
            progress.line(at(2), 200),
            "0:02  2 of 2 packages, linking; last: llama-cpp-sys-2"
        );
    }

    #[test]
    fn a_name_is_shown_as_far_as_there_is_room() {
        let mut progress = progress("a v1.0.0\n");
        progress.hear(&built("éclair-with-a-long-name"), at(0));
        let mut line = |columns| progress.line(at(1), columns);
        let bare = "0:01  1 of 2 packages, less than 10 seconds left";
        assert_eq!(line(79), format!("{bare}; last: éclair-with-a-long-name"));
        assert_eq!(line(78), format!("{bare}; last: éclair-with-a-long-..."));
        assert_eq!(line(65), format!("{bare}; last: éclair..."));
        assert_eq!(line(64), bare);
        assert_eq!(line(0), bare);
    }

    #[test]
    fn files_of_llama_are_more_important_than_tests_and_names() {
        let mut parts = packages("a v1.0.0\nb v1.0.0\nllama-cpp-sys-2 v1.0.0\n");
        parts.push(unit_test("a"));
        let mut progress = Progress::new(parts, 2);
        progress.hear(&message("a", true, false), at(0));
        let line = progress.line(at(1), 75);
        assert!(line.starts_with("0:01  0 of 3 packages, 1 of 1 tests, about "));
        assert!(line.ends_with(" left; last: a/a"));
        progress.see_llama_files(43, at(1));
        let line = progress.line(at(1), 70);
        assert!(line.starts_with("0:01  0 of 3 packages, about "));
        assert!(line.ends_with(" left; llama.cpp: 43 files"));
    }

    #[test]
    fn estimates_begin_with_what_is_expected_of_the_cores() {
        let left = |cores| seconds_left(0.0, vec![1.0; 1200], 0.0, cores);
        assert_eq!(left(1), 1200.0);
        assert_eq!(left(2), 600.0);
        assert_eq!(left(4), 400.0);
        assert_eq!(left(16), left(200));
    }

    #[test]
    fn time_left_goes_down_while_cargo_is_silent_about_something_heavy() {
        let left = |elapsed| seconds_left(0.0, vec![200.0, 1.0], elapsed, 2);
        assert_eq!(left(0.0) - left(30.0), 30.0);
    }

    #[test]
    fn seconds_are_not_promised_for_minutes() {
        let mut progress = progress("a v1.0.0\nb v1.0.0\n");
        progress.hear(&built("a"), at(1));
        assert!(
            progress
                .line(at(5), 200)
                .contains("less than 10 seconds left")
        );
        assert!(progress.line(at(130), 200).contains("about a minute left"));
    }

    #[test]
    fn words_do_not_go_to_and_fro() {
        let mut shown = String::new();
        let mut words = Vec::new();
        for seconds in [
            430.0, 388.0, 392.0, 388.0, 392.0, 370.0, 388.0, 392.0, 420.0,
        ] {
            shown = steady(&shown, seconds);
            words.push(shown.replace("about ", "").replace(" minutes", ""));
        }
        assert_eq!(words.join(" "), "7 7 7 7 7 6 6 6 7");
    }

    #[test]
    fn a_slow_machine_is_believed_in_the_end() {
        // Half of the work in ten minutes: about ten minutes for the other half.
        let left = seconds_left(300.0, vec![1.0; 300], 600.0, 2);
        assert!((450.0..600.0).contains(&left), "{left}");
        // So is a fast one.
        let left = seconds_left(6000.0, vec![1.0; 6000], 600.0, 2);
        assert!((600.0..750.0).contains(&left), "{left}");
    }

    #[test]
    fn estimates_are_numbers_whatever_happens() {
        for done in [0.0, 1e9] {
            for waiting in [vec![], vec![1.0], vec![1e9; 3]] {
                for elapsed in [0.0, 1e9] {
                    for cores in [0, 1, 1000] {
                        let left = seconds_left(done, waiting.clone(), elapsed, cores);
                        assert!(left.is_finite() && left >= 0.0, "{left}");
                    }
                }
            }
        }
    }

    #[test]
    fn amounts_are_no_more_exact_than_they_are_known() {
        for (seconds, words) in [
            (0.0, "less than 10 seconds"),
            (9.9, "less than 10 seconds"),
            (10.0, "about 10 seconds"),
            (38.0, "about 40 seconds"),
            (54.9, "about 50 seconds"),
            (55.0, "about a minute"),
            (90.0, "about 2 minutes"),
            (434.0, "about 7 minutes"),
            (1199.0, "about 20 minutes"),
            (1600.0, "about 25 minutes"),
            (5399.0, "about 90 minutes"),
            (5400.0, "about 2 hours"),
        ] {
            assert_eq!(amount(seconds), words, "{seconds}");
        }
        assert_eq!(clock(at(59)), "0:59");
        assert_eq!(clock(at(3725)), "1:02:05");
    }
}
