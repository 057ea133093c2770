//! When the card began and ended what it was told, on the host's clock, without waiting for it.
//!
//! Two events stand around each launch. The driver tells times between events only, as a
//! number that is exact for seconds and not for hours; so now and then an event is waited for,
//! when the stream has little to do anyway, and the host's time noted: other events are counted
//! from there. An event that a later one has replaced serves those that were counted from it for
//! as long as they are asked for: one evaluation is looked at when the next one begins, which may
//! be after a long pause.

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
    /// What they are counted from.
    anchor: Anchor,
}

impl Span {
    pub fn stream(&self) -> *mut c_void {
        self.stream as *mut c_void
    }

    /// What the card comes to when it has ended it; `None` before everything was launched.
    pub fn end(&self) -> Option<Event> {
        self.is_ended.then_some(self.end)
    }
}

/// An event whose time on the host's clock is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Anchor {
    event: Event,
    nanos: u64,
}

/// An anchor, and how many spans are counted from it.
struct Used {
    anchor: Anchor,
    spans: usize,
    /// New spans of its context are counted from it.
    is_newest: bool,
}

struct Events {
    free: Vec<Event>,
    /// For each context the newest, and those before it that spans still need.
    anchors: Vec<Used>,
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
        let anchor = events.anchor(driver, context, stream)?;
        let begin = events.take(driver, context)?;
        let Some(end) = events.take(driver, context) else {
            events.free.push(begin);
            return None;
        };
        if !driver.record(begin, stream) {
            events.free.extend([begin, end]);
            return None;
        }
        events.hold(anchor);
        Some(Span {
            stream: stream as usize,
            begin,
            end,
            is_ended: false,
            anchor,
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
        // Nobody records an event again before it is given back.
        let after = driver.nanos_between(span.anchor.event, span.begin);
        // Closer together than to the anchor, so told more exactly.
        let nanos = driver.nanos_between(span.begin, span.end);
        events.release(&span);
        let begin = span.anchor.nanos.checked_add_signed(after?)?;
        Some((begin, begin.checked_add_signed(nanos?.max(0))?))
    })
}

/// It is not asked for any more.
pub fn drop_span(span: Span) {
    EVENTS.with(|events| events.release(&span));
}

impl Events {
    fn take(&mut self, driver: &Driver, context: usize) -> Option<Event> {
        match self.free.iter().position(|event| event.context == context) {
            Some(at) => Some(self.free.swap_remove(at)),
            None => driver.event(),
        }
    }

    /// The anchor of a context, a new one where it is too old.
    fn anchor(&mut self, driver: &Driver, context: usize, stream: *mut c_void) -> Option<Anchor> {
        let newest = self.newest(context).map(|at| self.anchors[at].anchor);
        let now = now_nanos();
        if let Some(young) = newest.filter(|a| now.saturating_sub(a.nanos) < ANCHOR_NANOS) {
            return Some(young);
        }
        let event = self.take(driver, context)?;
        if !driver.record(event, stream) || !driver.wait(event) {
            self.free.push(event);
            return None;
        }
        let anchor = Anchor {
            event,
            nanos: now_nanos(),
        };
        self.replace(anchor);
        Some(anchor)
    }

    fn newest(&self, context: usize) -> Option<usize> {
        let is_it = |used: &Used| used.is_newest && used.anchor.event.context == context;
        self.anchors.iter().position(is_it)
    }

    /// New spans of its context are counted from this one.
    fn replace(&mut self, anchor: Anchor) {
        if let Some(at) = self.newest(anchor.event.context) {
            self.anchors[at].is_newest = false;
            self.free_unused(at);
        }
        self.anchors.push(Used {
            anchor,
            spans: 0,
            is_newest: true,
        });
    }

    /// One more span is counted from this anchor.
    fn hold(&mut self, anchor: Anchor) {
        if let Some(used) = self.anchors.iter_mut().find(|used| used.anchor == anchor) {
            used.spans += 1;
        }
    }

    /// The events of a span may be used again.
    fn release(&mut self, span: &Span) {
        self.free.extend([span.begin, span.end]);
        let of = |used: &Used| used.anchor == span.anchor;
        if let Some(at) = self.anchors.iter().position(of) {
            self.anchors[at].spans = self.anchors[at].spans.saturating_sub(1);
            self.free_unused(at);
        }
    }

    fn free_unused(&mut self, at: usize) {
        let used = &self.anchors[at];
        if used.spans == 0 && !used.is_newest {
            self.free.push(self.anchors.swap_remove(at).anchor.event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_serves_for_as_long_as_a_span_is_counted_from_it() {
        let event = |handle| Event::of_test(1, handle);
        let mut events = Events {
            free: Vec::new(),
            anchors: Vec::new(),
        };
        let [first, second] = [(1, 1_000), (2, 9_000)].map(|(handle, nanos)| Anchor {
            event: event(handle),
            nanos,
        });
        let span = |begin, anchor| Span {
            stream: 0,
            begin: event(begin),
            end: event(begin + 1),
            is_ended: true,
            anchor,
        };
        events.replace(first);
        let before = [span(10, first), span(20, first)];
        before.iter().for_each(|span| events.hold(span.anchor));
        // After a pause.
        events.replace(second);
        assert_eq!(events.newest(1), Some(1));
        events.hold(second);
        events.release(&before[0]);
        assert_eq!(
            events.free,
            [10, 11].map(event),
            "the first is still needed"
        );
        events.release(&before[1]);
        assert_eq!(events.free, [10, 11, 20, 21, 1].map(event));
        // The newest stays, whether it is needed or not.
        events.release(&span(30, second));
        assert!(!events.free.contains(&second.event));
        assert_eq!(events.newest(1), Some(0));
        assert_eq!(events.newest(2), None);
    }
}
