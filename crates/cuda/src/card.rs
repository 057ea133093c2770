//! A card that is open: the way to its memory, kernels, streams and clock.

use std::rc::Rc;

use crate::{
    About, CudaError, Module, Result, Trying as _,
    driver::{self, Driver},
    kernel::LAUNCHED,
};

/// One card, ready for work on its default stream.
#[derive(Clone)]
pub struct Card(Rc<Inner>);

struct Inner {
    driver: Driver,
    context: driver::Handle,
    about: About,
}

impl Card {
    /// The first card; an error says in a line what is missing.
    pub fn open() -> Result<Card> {
        Card::open_number(0)
    }

    /// As the driver counts them, from 0.
    pub fn open_number(number: i32) -> Result<Card> {
        let driver = Driver::load()?;
        // SAFETY: calls of the driver with places to write to, in the order that it asks for.
        unsafe {
            driver
                .check((driver.basics.cuInit)(0))
                .trying(|| "the driver does not start".to_owned())?;
            let (device, about) = About::of(&driver.basics, number)?;
            let mut context = std::ptr::null_mut();
            driver.check((driver.cuDevicePrimaryCtxRetain)(&mut context, device))?;
            driver.check((driver.cuCtxSetCurrent)(context))?;
            Ok(Card(Rc::new(Inner {
                driver,
                context,
                about,
            })))
        }
    }

    pub fn about(&self) -> &About {
        &self.0.about
    }

    /// Whether it has the instructions that Hopper brought (TMA, wgmma, clusters).
    pub fn is_hopper(&self) -> bool {
        self.about().capability.0 == 9
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.0.driver
    }

    /// Waits for everything that was asked of the card; errors of kernels show here.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the context is current on this thread.
        unsafe { self.driver().check((self.driver().cuCtxSynchronize)()) }
    }

    /// Loads machine code for this card, or PTX with a zero at its end; `name` is for messages.
    ///
    /// # Safety
    /// The image is complete, as a compiler gave it: the driver is not told where it ends.
    pub unsafe fn load_image(&self, name: &str, image: &[u8]) -> Result<Module> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: as promised by the caller.
        unsafe {
            self.driver().check((self.driver().cuModuleLoadData)(
                &mut handle,
                image.as_ptr().cast(),
            ))
        }
        .trying(|| format!("the driver does not take {name}"))?;
        Ok(Module {
            card: self.clone(),
            handle,
        })
    }

    /// Loads kernels in PTX, which the driver compiles for this card.
    pub fn load_ptx(&self, name: &str, text: &str) -> Result<Module> {
        if !text.starts_with("//") && !text.starts_with(".version") {
            return Err(CudaError::Unfit(format!("{name} is no PTX")));
        }
        let mut image = text.as_bytes().to_vec();
        image.push(0);
        // SAFETY: text, not machine code, and it ends with a zero.
        unsafe { self.load_image(name, &image) }
    }

    /// Does `work` while a profiler that waits for it is on; the kernels that were launched.
    pub fn profiled<E: From<CudaError>>(
        &self,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Vec<String>, E> {
        self.wait()?;
        // SAFETY: both take nothing.
        unsafe { self.driver().check((self.driver().cuProfilerStart)())? };
        LAUNCHED.set(Some(Vec::new()));
        let worked = work().and_then(|()| Ok(self.wait()?));
        let launched = LAUNCHED.take().unwrap_or_default();
        // SAFETY: as above.
        unsafe { self.driver().check((self.driver().cuProfilerStop)())? };
        worked.map(|()| launched)
    }

    /// Milliseconds that the card spends on `work`, by its own clock, on the default stream.
    pub fn time_ms<E: From<CudaError>>(
        &self,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<f64, E> {
        let (begin, end) = (self.new_event()?, self.new_event()?);
        begin.record(None)?;
        work()?;
        end.record(None)?;
        Ok(end.milliseconds_since(&begin)?)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Module, buffers and events hold the card, so nothing of ours is left in it.
        let _ = self.context;
    }
}
