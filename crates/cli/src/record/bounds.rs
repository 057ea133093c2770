//! When the built-in engine has generated enough.

use std::time::Instant;

use launch::attach;

/// How long and how much is recorded.
pub struct Bounds {
    pub end: Option<Instant>,
    pub log_bytes: Option<u64>,
    pub reached: Option<&'static str>,
}

impl Bounds {
    pub fn check(&mut self, log_bytes: u64) -> Option<&'static str> {
        if self.end.is_some_and(|end| Instant::now() >= end) {
            self.reached = Some(attach::DURATION_OVER);
        } else if self.log_bytes.is_some_and(|most| log_bytes >= most) {
            self.reached = Some(attach::LOG_FULL);
        }
        self.reached
    }
}
