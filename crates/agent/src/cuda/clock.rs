//! When the card began and ended what it was told, on the host's clock, without waiting for it.
//!
//! Two events stand around each launch. The driver tells times between events only, as a
//! number that is exact for seconds and not for hours; so now and then an event is waited for,
//! when the stream has little to do anyway, and the host's time noted: other events are counted
//! from there.

use std::ffi::c_void;

use trace::clock::now_nanos;

use super::driver::{Driver, Event, Reached};
use crate::lock::Lock;

/// How long an event that was waited for serves: a 32-bit float tells half a microsecond then.
const ANCHOR_NANOS: u64 = 5_000_000_000;

/// The two events around a launch.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    stream: usize,
    begin: Event,
    end: Event,
    is_ended: bool,
}

impl Span {
    pub fn stream(&self) -> *mut c_void {
        self.stream as *mut c_void
    }
}

/// An event whose time on the host's clock is known.
#[derive(Clone, Copy)]
struct Anchor {
    event: Event,
    nanos: u64,
}

struct Events {
    free: Vec<Event>,
    /// One for each context.
    anchors: Vec<Anchor>,
}

/// Of all threads: who looks at an evaluation may be another than who launched it.
static EVENTS: Lock<Events> = Lock::new(Events {
    free: Vec::new(),
    anchors: Vec::new(),
});

/// Something is about to be launched on a stream of the context of this thread.
pub fn begin(stream: *mut c_void) -> Option<Span> {
    let driver = Driver::get()?;
    EVENTS.with(|events| {
        let context = driver.current_context()?;
        events.anchor(driver, context, stream)?;
        let begin = events.take(driver, context)?;
        let Some(end) = events.take(driver, context) else {
            events.free.push(begin);
            return None;
        };
        if !driver.record(begin, stream) {
            events.free.extend([begin, end]);
            return None;
        }
        Some(Span {
            stream: stream as usize,
            begin,
            end,
            is_ended: false,
        })
    })
}

/// Everything was launched.
pub fn end(span: &mut Span) {
    if let Some(driver) = Driver::get() {
        span.is_ended = driver.record(span.end, span.stream as *mut c_void);
    }
}

/// Whether the card has ended it.
pub fn reached(span: &Span) -> Reached {
    match Driver::get() {
        Some(driver) if span.is_ended => driver.reached(span.end),
        _ => Reached::Unknown,
    }
}

/// When it began and ended; `reached` said yes. Its events may be used again.
pub fn take(span: Span) -> Option<(u64, u64)> {
    let driver = Driver::get()?;
    EVENTS.with(|events| {
        let anchors = &mut events.anchors;
        let anchor = anchors
            .iter()
            .find(|a| a.event.context == span.begin.context)
            .copied();
        events.free.extend([span.begin, span.end]);
        let anchor = anchor?;
        let at = |event| {
            let after = driver.nanos_between(anchor.event, event)?;
            anchor.nanos.checked_add_signed(after)
        };
        let begin = at(span.begin)?;
        // Closer together than to the anchor, so told more exactly.
        let nanos = driver.nanos_between(span.begin, span.end)?;
        Some((begin, begin.checked_add_signed(nanos.max(0))?))
    })
}

/// It is not asked for any more.
pub fn drop_span(span: Span) {
    EVENTS.with(|events| events.free.extend([span.begin, span.end]));
}

impl Events {
    fn take(&mut self, driver: &Driver, context: usize) -> Option<Event> {
        match self.free.iter().position(|event| event.context == context) {
            Some(at) => Some(self.free.swap_remove(at)),
            None => driver.event(),
        }
    }

    /// Sees to it that there is an anchor that is young enough.
    fn anchor(&mut self, driver: &Driver, context: usize, stream: *mut c_void) -> Option<()> {
        let now = now_nanos();
        let known = self.anchors.iter().position(|a| a.event.context == context);
        if known.is_some_and(|at| now - self.anchors[at].nanos < ANCHOR_NANOS) {
            return Some(());
        }
        let event = match known {
            Some(at) => self.anchors.swap_remove(at).event,
            None => driver.event()?,
        };
        if !driver.record(event, stream) || !driver.wait(event) {
            return None;
        }
        let nanos = now_nanos();
        self.anchors.push(Anchor { event, nanos });
        Some(())
    }
}
