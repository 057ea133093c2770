//! Work in order, and moments on the card's clock.

use crate::{Card, Result, driver};

/// Work in order, beside the default stream.
pub struct Stream {
    card: Card,
    pub(crate) handle: driver::Handle,
}

impl Card {
    pub fn new_event(&self) -> Result<Event> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes the new event to the place given.
        unsafe {
            self.driver()
                .check((self.driver().cuEventCreate)(&mut handle, 0))?
        };
        Ok(Event {
            card: self.clone(),
            handle,
        })
    }

    pub fn new_stream(&self) -> Result<Stream> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: as above; 1: it does not wait for the default stream.
        unsafe {
            self.driver()
                .check((self.driver().cuStreamCreate)(&mut handle, 1))?
        };
        Ok(Stream {
            card: self.clone(),
            handle,
        })
    }
}

impl Stream {
    /// As the driver and the vendor's libraries know it; null is the default stream.
    pub fn handle_of(stream: Option<&Stream>) -> driver::Handle {
        stream.map_or(std::ptr::null_mut(), |stream| stream.handle)
    }

    pub fn wait(&self) -> Result<()> {
        let driver = self.card.driver();
        // SAFETY: a live stream.
        unsafe { driver.check((driver.cuStreamSynchronize)(self.handle)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: a live stream, used by nobody any more.
        unsafe { (self.card.driver().cuStreamDestroy_v2)(self.handle) };
    }
}

// A stream has no `Debug` of its own; it is only a handle.
impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stream")
    }
}

/// A moment on the card's clock.
pub struct Event {
    card: Card,
    handle: driver::Handle,
}

impl Event {
    pub fn record(&self, stream: Option<&Stream>) -> Result<()> {
        let stream = Stream::handle_of(stream);
        let driver = self.card.driver();
        // SAFETY: a live event and stream (null is the default one).
        unsafe { driver.check((driver.cuEventRecord)(self.handle, stream)) }
    }

    /// Waits for this event.
    pub fn milliseconds_since(&self, before: &Event) -> Result<f64> {
        let driver = self.card.driver();
        let mut milliseconds = 0.0f32;
        // SAFETY: live events, both recorded.
        unsafe {
            driver.check((driver.cuEventSynchronize)(self.handle))?;
            driver.check((driver.cuEventElapsedTime)(
                &mut milliseconds,
                before.handle,
                self.handle,
            ))?;
        }
        Ok(f64::from(milliseconds))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: a live event, used by nobody any more.
        unsafe { (self.card.driver().cuEventDestroy_v2)(self.handle) };
    }
}
