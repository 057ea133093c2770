//! Memory on the card, and memory of the host that it reaches fastest.

use std::{ffi::c_void, marker::PhantomData};

use crate::{Argument, Card, CudaError, Result, Stream, Trying as _, driver::Address};

/// What may lie on the card: plain bytes.
///
/// # Safety
/// Any bytes are a value.
pub unsafe trait Element: Copy + Default {}

// SAFETY: numbers.
unsafe impl Element for u8 {}
// SAFETY: as above.
unsafe impl Element for i8 {}
// SAFETY: as above.
unsafe impl Element for u16 {}
// SAFETY: as above.
unsafe impl Element for u32 {}
// SAFETY: as above.
unsafe impl Element for i32 {}
// SAFETY: as above.
unsafe impl Element for u64 {}
// SAFETY: as above.
unsafe impl Element for f32 {}
// SAFETY: as above.
#[cfg(feature = "half")]
unsafe impl Element for half::bf16 {}
// SAFETY: as above.
#[cfg(feature = "half")]
unsafe impl Element for half::f16 {}

/// So many elements on the card.
pub struct Buffer<T> {
    card: Card,
    address: Address,
    elements: usize,
    kind: PhantomData<T>,
}

impl Card {
    pub fn buffer<T: Element>(&self, elements: usize) -> Result<Buffer<T>> {
        let bytes = elements * size_of::<T>();
        let mut address = 0;
        // SAFETY: writes the address to the place given.
        unsafe {
            self.driver()
                .check((self.driver().cuMemAlloc_v2)(&mut address, bytes.max(1)))
        }
        .trying(|| format!("{bytes} bytes on the card"))?;
        Ok(Buffer {
            card: self.clone(),
            address,
            elements,
            kind: PhantomData,
        })
    }

    pub fn buffer_with<T: Element>(&self, values: &[T]) -> Result<Buffer<T>> {
        let buffer = self.buffer(values.len())?;
        buffer.write(values)?;
        Ok(buffer)
    }

    /// Bytes that can still be asked for.
    pub fn free_bytes(&self) -> Result<u64> {
        let (mut free, mut all) = (0, 0);
        // SAFETY: writes to the places given.
        unsafe {
            self.driver()
                .check((self.driver().cuMemGetInfo_v2)(&mut free, &mut all))?
        };
        Ok(free as u64)
    }
}

impl<T: Element> Buffer<T> {
    pub fn elements(&self) -> usize {
        self.elements
    }

    pub fn bytes(&self) -> usize {
        self.elements * size_of::<T>()
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn write(&self, values: &[T]) -> Result<()> {
        self.must_hold(0, values.len())?;
        let driver = self.card.driver();
        // SAFETY: both are at least so long.
        unsafe {
            driver.check((driver.cuMemcpyHtoD_v2)(
                self.address,
                values.as_ptr().cast(),
                size_of_val(values),
            ))
        }
    }

    /// Waits for what the card has to do before.
    pub fn read(&self) -> Result<Vec<T>> {
        self.read_part(0, self.elements)
    }

    pub fn read_part(&self, from: usize, elements: usize) -> Result<Vec<T>> {
        self.must_hold(from, elements)?;
        let mut values = vec![T::default(); elements];
        let address = self.address + (from * size_of::<T>()) as u64;
        let driver = self.card.driver();
        // SAFETY: both are so long; any bytes are an element.
        unsafe {
            driver.check((driver.cuMemcpyDtoH_v2)(
                values.as_mut_ptr().cast(),
                address,
                elements * size_of::<T>(),
            ))?
        };
        Ok(values)
    }

    /// The same byte everywhere; 0xff makes every float a NaN.
    pub fn fill_bytes(&self, byte: u8) -> Result<()> {
        let driver = self.card.driver();
        // SAFETY: so many bytes are there.
        unsafe { driver.check((driver.cuMemsetD8_v2)(self.address, byte, self.bytes())) }
    }

    /// Asks for a copy from the host; `stream` orders it.
    pub fn write_pinned(&self, values: &Pinned<T>, stream: Option<&Stream>) -> Result<()> {
        self.must_hold(0, values.elements)?;
        let driver = self.card.driver();
        // SAFETY: both are at least so long, and pinned memory waits for the card when it is freed.
        unsafe {
            driver.check((driver.cuMemcpyHtoDAsync_v2)(
                self.address,
                values.start.cast(),
                values.bytes(),
                Stream::handle_of(stream),
            ))
        }
    }

    /// Asks for a copy to the host.
    pub fn read_pinned(&self, values: &mut Pinned<T>, stream: Option<&Stream>) -> Result<()> {
        self.must_hold(0, values.elements)?;
        let driver = self.card.driver();
        // SAFETY: as above; any bytes are an element.
        unsafe {
            driver.check((driver.cuMemcpyDtoHAsync_v2)(
                values.start.cast(),
                self.address,
                values.bytes(),
                Stream::handle_of(stream),
            ))
        }
    }

    /// Into memory that the caller has; waits for what the card has to do before.
    pub fn read_into(&self, values: &mut [T]) -> Result<()> {
        self.must_hold(0, values.len())?;
        let driver = self.card.driver();
        // SAFETY: both are so long; any bytes are an element.
        unsafe {
            driver.check((driver.cuMemcpyDtoH_v2)(
                values.as_mut_ptr().cast(),
                self.address,
                size_of_val(values),
            ))
        }
    }

    fn must_hold(&self, from: usize, elements: usize) -> Result<()> {
        match from
            .checked_add(elements)
            .is_some_and(|end| end <= self.elements)
        {
            true => Ok(()),
            false => Err(CudaError::Unfit(format!(
                "{from} + {elements} elements of {}",
                self.elements
            ))),
        }
    }

    /// As the card copies by itself.
    pub fn copy_from(&self, other: &Buffer<T>) -> Result<()> {
        let bytes = self.bytes().min(other.bytes());
        let driver = self.card.driver();
        // SAFETY: both are at least so long.
        unsafe {
            driver.check((driver.cuMemcpyDtoDAsync_v2)(
                self.address,
                other.address,
                bytes,
                std::ptr::null_mut(),
            ))
        }
    }
}

impl<T> Argument for Buffer<T> {
    fn pointer(&self) -> *const c_void {
        (&raw const self.address).cast()
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: the driver waits for kernels that still use it.
        unsafe { (self.card.driver().cuMemFree_v2)(self.address) };
    }
}

/// Memory of the host that stays where it is, so that the card copies from and to it by itself.
pub struct Pinned<T> {
    card: Card,
    start: *mut T,
    elements: usize,
}

impl Card {
    /// Zeroes.
    pub fn pinned<T: Element>(&self, elements: usize) -> Result<Pinned<T>> {
        let bytes = elements * size_of::<T>();
        let mut start = std::ptr::null_mut();
        // SAFETY: writes the address to the place given; so many bytes are there.
        unsafe {
            self.driver()
                .check((self.driver().cuMemHostAlloc)(&mut start, bytes.max(1), 0))
                .trying(|| format!("{bytes} bytes of pinned memory"))?;
            start.cast::<u8>().write_bytes(0, bytes.max(1));
        }
        Ok(Pinned {
            card: self.clone(),
            start: start.cast(),
            elements,
        })
    }
}

impl<T: Element> Pinned<T> {
    pub fn bytes(&self) -> usize {
        self.elements * size_of::<T>()
    }

    /// Waits for the card, which may be writing.
    pub fn values(&self) -> Result<&[T]> {
        self.card.wait()?;
        // SAFETY: so many elements are there, and any bytes are one; nothing asks the card for
        // more while they are borrowed, because that needs them mutably.
        Ok(unsafe { std::slice::from_raw_parts(self.start, self.elements) })
    }

    /// Waits for the card, which may be reading.
    pub fn values_mut(&mut self) -> Result<&mut [T]> {
        self.card.wait()?;
        // SAFETY: as above.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start, self.elements) })
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // A copy may be under way.
        let _ = self.card.wait();
        // SAFETY: nobody uses it any more.
        unsafe { (self.card.driver().cuMemFreeHost)(self.start.cast()) };
    }
}
