//! How long a draft should be, if there should be one: by what passes took, and how often guesses
//! were right. Pure: it is told times and answers with numbers.
//!
//! A pass of `m` tokens takes
//!
//! ```text
//! max(reading, computing of m tokens) + waiting for the experts of m tokens
//! ```
//!
//! Reading is what a pass without a draft takes where it waits for weights: it is the same for all
//! tokens. Computing grows with each token; how much is measured, and until then taken to be all
//! that a single token takes. The experts of `m` tokens are the union of their choices. A draft of
//! `k` tokens that are right with probability `p` each, as long as all before them were, gives
//! `1 + p + … + p^k` tokens. The length with the most tokens a second wins.

use std::time::Duration;

use gguf::summary::experts_union_share;

use super::Pass;

/// Kinds of guesses, by how sure they are ([`super::lookup::Match::class`]).
pub const CLASSES: usize = 5;

/// How often a guess of each class is right, before any was judged. A guess; it weighs as much
/// as [`PRIOR_GUESSES`].
const PRIOR: [f64; CLASSES] = [0.15, 0.3, 0.45, 0.6, 0.75];
const PRIOR_GUESSES: f64 = 2.0;
/// What a judgement counts for at the next one: texts change.
const MEMORY: f64 = 0.93;
/// What a new time counts for in a mean.
const NEW: f64 = 0.25;
/// How fast it is forgotten, pass by pass, that drafts took longer than expected: whatever was in their
/// way may be gone.
const FORGOTTEN: f64 = 0.02;
/// A draft has to promise this much: what cannot be measured costs, too.
const MIN_GAIN: f64 = 1.03;
/// Once, a draft is checked to learn what a further token costs, if it is so likely to be right.
const MIN_TRIAL_PROBABILITY: f64 = 0.6;
const TRIAL_TOKENS: usize = 3;
/// Passes without a draft after which a model that was not worth it is asked again.
const REST_PASSES: u32 = 48;

/// Whether a draft is checked once where nothing says that it will pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trials {
    Made,
    NotMade,
}

/// Experts of a layer, and how many of them a token uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    pub count: u32,
    pub used: u32,
}

impl Experts {
    /// How many times as many experts `tokens` tokens use as `than` do.
    fn growth(self, tokens: usize, than: usize) -> f64 {
        let share = |tokens: usize| {
            let (count, used) = (f64::from(self.count), f64::from(self.used));
            experts_union_share(count, used, tokens as f64)
        };
        share(tokens) / share(than).max(1e-9)
    }
}

/// Passes without drafts, on average: seconds.
#[derive(Clone, Copy, Debug)]
struct Plain {
    sequences: usize,
    time: f64,
    computing: f64,
    experts: f64,
}

pub struct Governor {
    experts: Option<Experts>,
    trials: Trials,
    plain: Option<Plain>,
    /// Seconds of computing that a further token takes, once that was measured.
    further: Option<f64>,
    /// What passes with drafts took, over what was expected.
    surprise: f64,
    /// By class: guesses judged and guesses that were right, the recent ones counting more.
    judged: [(f64, f64); CLASSES],
    /// Seconds that guessing a token takes.
    guessing: f64,
    /// Passes since a draft was last checked.
    rested: u32,
}

impl Governor {
    pub fn new(experts: Option<Experts>, trials: Trials) -> Governor {
        Governor {
            experts,
            trials,
            plain: None,
            further: None,
            surprise: 1.0,
            judged: PRIOR.map(|share| (PRIOR_GUESSES, PRIOR_GUESSES * share)),
            guessing: 0.0,
            rested: 0,
        }
    }

    /// How many of `available` guessed tokens of one more sequence are worth to be checked, in a
    /// pass that has `drafted` of other sequences already.
    pub fn worth(&self, class: usize, available: usize, drafted: usize) -> usize {
        let Some(plain) = self.plain else {
            // What a pass takes is not known yet.
            return 0;
        };
        let right = self.probability(class);
        let sequences = plain.sequences as f64;
        let rate = |tokens: usize| {
            let gained: f64 = (1..=tokens as i32).map(|n| right.powi(n)).sum();
            let time =
                self.expected(plain.sequences + drafted + tokens) + self.guessing * tokens as f64;
            (sequences + gained) / time.max(1e-9)
        };
        let without = rate(0);
        let best = (1..=available)
            .map(|tokens| (tokens, rate(tokens)))
            .filter(|&(_, rate)| rate > without * MIN_GAIN)
            .max_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((tokens, _)) = best {
            return tokens;
        }
        let is_unknown = self.further.is_none() && self.trials == Trials::Made;
        let is_tried = is_unknown && right >= MIN_TRIAL_PROBABILITY;
        // Guesses of a model are judged only when they are made.
        let is_asked_again = self.guessing > 0.0 && self.rested >= REST_PASSES;
        match is_tried || is_asked_again {
            true => TRIAL_TOKENS.min(available),
            false => 0,
        }
    }

    /// Seconds that a pass of so many tokens is expected to take.
    fn expected(&self, tokens: usize) -> f64 {
        let Some(plain) = self.plain else {
            return 0.0;
        };
        let more = tokens.saturating_sub(plain.sequences) as f64;
        if more == 0.0 {
            return plain.time;
        }
        let growth = self
            .experts
            .map_or(1.0, |experts| experts.growth(tokens, plain.sequences));
        let further = self
            .further
            .unwrap_or(plain.computing / plain.sequences as f64);
        let computing = plain.computing + further * more;
        let pass = (plain.time - plain.experts).max(computing) + plain.experts * growth;
        pass * self.surprise
    }

    fn probability(&self, class: usize) -> f64 {
        let (judged, right) = self.judged[class.min(CLASSES - 1)];
        right / judged.max(1e-9)
    }

    /// Of `checked` guessed tokens the first `right` were right. What came after a wrong one was
    /// not judged.
    pub fn judged(&mut self, class: usize, checked: usize, right: usize) {
        let (judged, was_right) = &mut self.judged[class.min(CLASSES - 1)];
        *judged = *judged * MEMORY + (right + 1).min(checked) as f64;
        *was_right = *was_right * MEMORY + right as f64;
    }

    /// Guessing so many tokens took so long.
    pub fn guessed(&mut self, tokens: usize, time: Duration) {
        // None is a guess, too: its first token was computed.
        let each = time.as_secs_f64() / tokens.max(1) as f64;
        self.guessing = match self.guessing == 0.0 {
            true => each,
            false => mean(self.guessing, each),
        };
    }

    pub fn passed(&mut self, pass: &Pass) {
        let time = pass.time.as_secs_f64();
        let experts = pass.waited.experts.as_secs_f64();
        let waited = experts + pass.waited.streamed.as_secs_f64();
        let computing = (time - waited).max(0.0);
        if pass.tokens == pass.sequences {
            self.rested = self.rested.saturating_add(1);
            self.surprise += FORGOTTEN * (1.0 - self.surprise);
            self.plain = Some(match self.plain {
                Some(plain) if plain.sequences == pass.sequences => Plain {
                    sequences: plain.sequences,
                    time: mean(plain.time, time),
                    computing: mean(plain.computing, computing),
                    experts: mean(plain.experts, experts),
                },
                _ => Plain {
                    sequences: pass.sequences,
                    time,
                    computing,
                    experts,
                },
            });
            return;
        }
        self.rested = 0;
        let Some(plain) = self.plain.filter(|p| p.sequences == pass.sequences) else {
            return;
        };
        let surprise = time / (self.expected(pass.tokens) / self.surprise).max(1e-9);
        self.surprise = mean(self.surprise, surprise).clamp(0.5, 4.0);
        let more = (pass.tokens - pass.sequences) as f64;
        let further = ((computing - plain.computing) / more).max(0.0);
        self.further = Some(match self.further {
            Some(known) => mean(known, further),
            None => further,
        });
    }
}

fn mean(known: f64, new: f64) -> f64 {
    known + NEW * (new - known)
}

#[cfg(test)]
mod tests {
    use trace::format::Phase;

    use super::*;
    use crate::generate::Waited;

    /// A machine: what a pass takes, and how often guesses are right.
    struct World {
        reading: f64,
        computing: f64,
        further: f64,
        routed: f64,
        experts: Option<Experts>,
        right: f64,
    }

    impl World {
        fn pass(&self, tokens: usize) -> Pass {
            let computing = self.computing + self.further * (tokens - 1) as f64;
            let growth = self.experts.map_or(1.0, |e| e.growth(tokens, 1));
            let routed = self.routed * growth;
            let seconds = self.reading.max(computing) + routed;
            Pass {
                phase: Phase::Generate,
                tokens,
                sequences: 1,
                time: Duration::from_secs_f64(seconds),
                waited: Waited {
                    streamed: Duration::from_secs_f64((self.reading - computing).max(0.0)),
                    experts: Duration::from_secs_f64(routed),
                },
            }
        }

        /// Tokens a second over those without drafts, with guesses always at hand.
        fn gain(&self, trials: Trials) -> f64 {
            let mut governor = Governor::new(self.experts, trials);
            let mut random = support::random::Random(7);
            let (mut tokens, mut seconds) = (0.0, 0.0);
            let class = 3;
            for _ in 0..400 {
                let drafted = governor.worth(class, 16, 0);
                let right = (0..drafted)
                    .take_while(|_| random.unit() < self.right)
                    .count();
                let pass = self.pass(1 + drafted);
                tokens += 1.0 + right as f64;
                seconds += pass.time.as_secs_f64();
                if drafted > 0 {
                    governor.judged(class, drafted, right);
                } else {
                    governor.judged(class, 1, usize::from(random.unit() < self.right));
                }
                governor.passed(&pass);
            }
            tokens / seconds * self.pass(1).time.as_secs_f64()
        }
    }

    const DISK: World = World {
        reading: 1.0,
        computing: 0.18,
        further: 0.12,
        routed: 0.0,
        experts: None,
        right: 0.85,
    };

    #[test]
    fn where_the_disk_is_waited_for_drafts_pay() {
        let gain = DISK.gain(Trials::NotMade);
        assert!(gain > 3.0, "{gain}");
        // Also before anything but a single token was measured.
        let governor = Governor::new(None, Trials::NotMade);
        assert_eq!(governor.worth(4, 16, 0), 0);
        let mut governor = governor;
        governor.passed(&DISK.pass(1));
        let first = governor.worth(4, 16, 0);
        assert!((3..=5).contains(&first), "{first}");
    }

    #[test]
    fn guesses_that_are_wrong_cost_next_to_nothing() {
        for (right, computing) in [(0.0, 0.18), (0.1, 0.9), (0.02, 1.0)] {
            let world = World {
                right,
                computing,
                further: computing,
                ..DISK
            };
            let gain = world.gain(Trials::Made);
            assert!(gain > 0.98, "{right} {computing}: {gain}");
        }
    }

    #[test]
    fn in_memory_drafts_pay_only_where_a_further_token_is_cheap() {
        let memory = World {
            reading: 0.0,
            ..DISK
        };
        let dear = World {
            further: 0.18,
            right: 0.7,
            ..memory
        };
        assert!(dear.gain(Trials::Made) > 0.98);
        let cheap = World {
            further: 0.02,
            ..memory
        };
        assert!(cheap.gain(Trials::Made) > 2.0);
        // Without a trial nobody finds out.
        let gain = cheap.gain(Trials::NotMade);
        assert!((gain - 1.0).abs() < 1e-9, "{gain}");
    }

    #[test]
    fn a_mixture_counts_the_union_of_experts() {
        let experts = Experts {
            count: 128,
            used: 8,
        };
        // Two tokens read nearly twice as much as one.
        assert!(experts.growth(2, 1) > 1.9 && experts.growth(64, 1) < 16.0);
        let world = World {
            reading: 0.0,
            computing: 0.05,
            further: 0.03,
            routed: 0.5,
            experts: Some(experts),
            right: 0.6,
        };
        let gain = world.gain(Trials::NotMade);
        assert!(gain > 0.98 && gain < 1.3, "{gain}");
        // Few experts of which a token uses half: the union ends soon.
        let few = World {
            experts: Some(Experts { count: 4, used: 2 }),
            right: 0.9,
            ..world
        };
        assert!(few.gain(Trials::NotMade) > 1.8);
    }

    #[test]
    fn more_sequences_are_weighed_together() {
        let worth = |world: &World| {
            let mut governor = Governor::new(None, Trials::NotMade);
            governor.passed(&Pass {
                sequences: 4,
                ..world.pass(4)
            });
            governor.worth(4, 16, 0)
        };
        assert!(worth(&DISK) > 0);
        // Where all of a pass is computing, a guess takes as long as a token of somebody else.
        assert_eq!(
            worth(&World {
                reading: 0.0,
                ..DISK
            }),
            0
        );
    }
}
