//! Whether reading experts ahead pays, and how many are worth a try.
//!
//! What is read while the disk would idle is free, right or wrong. A wrong slice that is still
//! in flight when the router has chosen delays what is needed. So the width follows what the
//! disk gets done between two choices, and when too little of it is used, reading ahead rests.

/// What became of the slices that were to be read ahead for one choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Begun, of experts that were chosen.
    pub used: u32,
    /// Begun, of others.
    pub wrong: u32,
    /// Of the wrong ones, still in flight when the router had chosen.
    pub in_the_way: u32,
    /// Never begun: the router was faster.
    pub too_late: u32,
}

/// Choices over which outcomes fade to a third.
const MEMORY_CHOICES: f64 = 64.0;
/// Choices before anything is judged.
const MIN_CHOICES: u32 = 32;
/// Choices that a rest lasts. After it some are tried again: texts change.
const REST_CHOICES: u32 = 1024;
/// What a wrong slice costs even if it is in nobody's way, as a share of what a right one gives:
/// work for the processor, and the slot of another expert.
const WRONG_COST: f64 = 0.125;

#[derive(Debug)]
pub struct Worth {
    width: u32,
    max_width: u32,
    gain: f64,
    cost: f64,
    judged: u32,
    rest: u32,
}

impl Worth {
    /// At most so many experts of a layer are read ahead.
    pub fn new(max_width: u32) -> Worth {
        Worth {
            width: 2.min(max_width),
            max_width,
            gain: 0.0,
            cost: 0.0,
            judged: 0,
            rest: 0,
        }
    }

    /// Experts to be read ahead of the next choice.
    pub fn width(&mut self) -> u32 {
        if self.rest > 0 {
            self.rest -= 1;
            return 0;
        }
        self.width
    }

    pub fn note(&mut self, outcome: Outcome) {
        let begun = outcome.used + outcome.wrong;
        if begun + outcome.too_late == 0 {
            return;
        }
        if outcome.too_late == 0 {
            self.width = (self.width + 1).min(self.max_width);
        } else if outcome.too_late > begun / self.width.max(1) {
            self.width = (self.width - 1).max(1);
        }
        let kept = 1.0 - 1.0 / MEMORY_CHOICES;
        let cost = f64::from(outcome.in_the_way) + f64::from(outcome.wrong) * WRONG_COST;
        self.gain = self.gain * kept + f64::from(outcome.used);
        self.cost = self.cost * kept + cost;
        self.judged += 1;
        if self.judged >= MIN_CHOICES && self.gain <= self.cost {
            *self = Worth {
                rest: REST_CHOICES,
                ..Worth::new(self.max_width)
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: Outcome = Outcome {
        used: 5,
        wrong: 1,
        in_the_way: 1,
        too_late: 0,
    };
    const WRONG: Outcome = Outcome {
        used: 1,
        wrong: 5,
        in_the_way: 3,
        too_late: 0,
    };

    #[test]
    fn the_width_follows_what_the_disk_gets_done() {
        let mut worth = Worth::new(8);
        (0..20).for_each(|_| worth.note(RIGHT));
        assert_eq!(worth.width(), 8);
        let slow = Outcome {
            used: 3,
            too_late: 9,
            ..Outcome::default()
        };
        (0..20).for_each(|_| worth.note(slow));
        assert_eq!(worth.width(), 1);
    }

    #[test]
    fn guesses_that_are_wrong_end_in_a_rest_and_are_tried_again() {
        let mut worth = Worth::new(8);
        (0..1000).for_each(|_| worth.note(RIGHT));
        assert!(worth.width() > 0);
        let mut tried = 0;
        while worth.width() > 0 {
            worth.note(WRONG);
            tried += 1;
        }
        assert!((10..400).contains(&tried), "{tried}");
        let rested = (0..).take_while(|_| worth.width() == 0).count();
        assert_eq!(rested + 1, REST_CHOICES as usize);
        // What is read in nobody's way, and wrong all the same, is for nothing.
        let idle = Outcome {
            wrong: 6,
            ..Outcome::default()
        };
        (0..MIN_CHOICES).for_each(|_| worth.note(idle));
        assert_eq!(worth.width(), 0);
    }
}
