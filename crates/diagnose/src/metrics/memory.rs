//! How fast memory gave what the processor read.

use rules::Unit;

use super::{BYTES_QUERY, Of};

/// Of what a plain sum over memory reads: seen of a dense model of 276 MB in q8_0, two threads.
const REACHED_OF_MEMORY: f64 = 0.88;

impl Of<'_> {
    /// Of bytes that the processor read while it computed, a share of the time.
    pub(super) fn speed_of_memory(&mut self, read: f64, computing: f64) {
        let seconds = computing * self.stack.nanos as f64 / 1e9;
        let rate = read / seconds.max(1e-9);
        self.put(
            "memory.bytes_per_second",
            Unit::BytesPerSecond,
            rate,
            BYTES_QUERY,
        );
        let ceilings = &self.inputs.ceilings;
        let measured = "tensorscope bench ceilings";
        self.put_known(
            "memory.ceiling",
            Unit::BytesPerSecond,
            ceilings.memory,
            measured,
        );
        self.put_known(
            "memory.ceiling_all",
            Unit::BytesPerSecond,
            ceilings.memory_all,
            measured,
        );
        if let Some(ceiling) = ceilings.memory {
            let share = rate / ceiling.max(1) as f64;
            self.put("memory.share", Unit::Share, share, BYTES_QUERY);
        }
        if let Some(ceiling) = ceilings.memory_all {
            // No kernel of llama.cpp reads as fast as a plain sum.
            let nanos = read * 1e9 / (ceiling.max(1) as f64 * REACHED_OF_MEMORY);
            let share = nanos / self.stack.nanos.max(1) as f64;
            self.put("memory.least_share", Unit::Share, share, BYTES_QUERY);
        }
    }
}
