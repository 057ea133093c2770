//! The recorder as one of those who take part in a computation, and what that costs.

use super::{Recorder, Timing, cycles};
use crate::hook::{Call, Ended, Observer, Part, Stop};

impl Observer for Recorder {
    unsafe fn prepare(&mut self, _: &Call<'_>) -> Result<Part, Stop> {
        Ok(match self.is_broken {
            false => Part::Takes { note_words: 0 },
            true => Part::Leaves,
        })
    }

    unsafe fn begin(&mut self, call: &Call<'_>) -> Result<Part, Stop> {
        let timer = self.self_timer();
        // SAFETY: a live graph whose inputs are filled (caller).
        let is_recorded = unsafe { self.begin(call.graph, call.threads, call.note_words) };
        self.add_self_time(timer);
        Ok(match is_recorded {
            true => Part::Takes { note_words: 0 },
            false => Part::Leaves,
        })
    }

    #[inline]
    unsafe fn tick(&mut self, _: u32) -> Result<(), Stop> {
        let timer = self.self_timer();
        // SAFETY: as promised by the caller.
        unsafe { self.tick() };
        self.add_self_time(timer);
        Ok(())
    }

    fn end(&mut self, ended: Ended, notes: &mut Vec<u64>) -> Result<(), Stop> {
        let timer = self.self_timer();
        self.end(ended.is_aborted, notes);
        self.add_self_time(timer);
        Ok(())
    }

    fn steps(&self) -> u32 {
        self.steps as u32
    }

    /// The program goes on, unrecorded.
    fn panicked(&mut self) -> Result<(), Stop> {
        self.is_broken = true;
        Ok(())
    }
}

/// Measuring what recording itself costs (`bench overhead`).
impl Recorder {
    /// From now on every call into the recorder is timed.
    pub fn time_itself(&mut self) {
        self.timing = Some(Timing::default());
    }

    #[inline]
    fn self_timer(&self) -> u64 {
        if self.timing.is_some() { cycles() } else { 0 }
    }

    #[inline]
    fn add_self_time(&mut self, started: u64) {
        if let Some(timing) = &mut self.timing {
            timing.cycles += cycles().wrapping_sub(started);
        }
    }

    /// Cycles (see [`cycles`]) spent inside the recorder since the last call.
    pub fn take_self_cycles(&mut self) -> u64 {
        self.timing
            .as_mut()
            .map_or(0, |timing| std::mem::take(&mut timing.cycles))
    }
}
