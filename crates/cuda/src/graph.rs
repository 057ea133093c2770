//! Launches that cost less: many of them, recorded once and started together.

use crate::{Card, CudaError, Result, Stream, driver};

/// Launches, recorded; as inference engines start the many small kernels of a token.
pub struct Graph {
    card: Card,
    stream: Stream,
    handle: driver::Handle,
}

impl Card {
    /// Records what `work` asks of the stream that it is given; nothing runs yet.
    pub fn record<E: From<CudaError>>(
        &self,
        work: impl FnOnce(&Stream) -> Result<(), E>,
    ) -> Result<Graph, E> {
        self.record_on(self.new_stream()?, work)
    }

    /// The same on a stream that somebody else knows already, where it runs later.
    pub fn record_on<E: From<CudaError>>(
        &self,
        stream: Stream,
        work: impl FnOnce(&Stream) -> Result<(), E>,
    ) -> Result<Graph, E> {
        let driver = self.driver();
        let mut graph = std::ptr::null_mut();
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live stream; 2: other calls on this thread are not restricted. The recording
        // ends whether `work` succeeds or not, and is freed when it was made executable.
        unsafe {
            driver.check((driver.cuStreamBeginCapture_v2)(stream.handle, 2))?;
            let worked = work(&stream);
            let ended = driver.check((driver.cuStreamEndCapture)(stream.handle, &mut graph));
            worked?;
            ended?;
            let made = (driver.cuGraphInstantiateWithFlags)(&mut handle, graph, 0);
            driver.check((driver.cuGraphDestroy)(graph))?;
            driver.check(made)?;
        }
        Ok(Graph {
            card: self.clone(),
            stream,
            handle,
        })
    }
}

impl Graph {
    /// Milliseconds that the card spends on it, by its own clock.
    pub fn time_ms(&self) -> Result<f64> {
        let (begin, end) = (self.card.new_event()?, self.card.new_event()?);
        begin.record(Some(&self.stream))?;
        self.start()?;
        end.record(Some(&self.stream))?;
        end.milliseconds_since(&begin)
    }

    pub fn start(&self) -> Result<()> {
        let driver = self.card.driver();
        // SAFETY: a live graph and stream.
        unsafe { driver.check((driver.cuGraphLaunch)(self.handle, self.stream.handle)) }
    }

    /// Until all that was started has ended.
    pub fn wait(&self) -> Result<()> {
        self.stream.wait()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: a live graph, used by nobody any more.
        unsafe { (self.card.driver().cuGraphExecDestroy)(self.handle) };
    }
}
