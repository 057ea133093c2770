//! Memory on the card.

use std::{ffi::c_void, marker::PhantomData};

use anyhow::{Context as _, ensure};

use super::{Argument, Card, driver::Address};

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
unsafe impl Element for u32 {}
// SAFETY: as above.
unsafe impl Element for i32 {}
// SAFETY: as above.
unsafe impl Element for u64 {}
// SAFETY: as above.
unsafe impl Element for f32 {}
// SAFETY: as above.
unsafe impl Element for half::bf16 {}
// SAFETY: as above.
unsafe impl Element for half::f16 {}

/// So many elements on the card.
pub struct Buffer<T> {
    card: Card,
    address: Address,
    elements: usize,
    kind: PhantomData<T>,
}

impl Card {
    pub fn buffer<T: Element>(&self, elements: usize) -> anyhow::Result<Buffer<T>> {
        let bytes = elements * size_of::<T>();
        let mut address = 0;
        // SAFETY: writes the address to the place given.
        unsafe {
            self.driver()
                .check((self.driver().cuMemAlloc_v2)(&mut address, bytes.max(1)))
        }
        .with_context(|| format!("{bytes} bytes on the card"))?;
        Ok(Buffer {
            card: self.clone(),
            address,
            elements,
            kind: PhantomData,
        })
    }

    pub fn buffer_with<T: Element>(&self, values: &[T]) -> anyhow::Result<Buffer<T>> {
        let buffer = self.buffer(values.len())?;
        buffer.write(values)?;
        Ok(buffer)
    }

    /// Bytes that can still be asked for.
    pub fn free_bytes(&self) -> anyhow::Result<u64> {
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

    pub fn write(&self, values: &[T]) -> anyhow::Result<()> {
        ensure!(
            values.len() <= self.elements,
            "{} elements do not fit into {}",
            values.len(),
            self.elements
        );
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
    pub fn read(&self) -> anyhow::Result<Vec<T>> {
        self.read_part(0, self.elements)
    }

    pub fn read_part(&self, from: usize, elements: usize) -> anyhow::Result<Vec<T>> {
        ensure!(
            from + elements <= self.elements,
            "{from} + {elements} elements of {}",
            self.elements
        );
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
    pub fn fill_bytes(&self, byte: u8) -> anyhow::Result<()> {
        let driver = self.card.driver();
        // SAFETY: so many bytes are there.
        unsafe { driver.check((driver.cuMemsetD8_v2)(self.address, byte, self.bytes())) }
    }

    /// As the card copies by itself.
    pub fn copy_from(&self, other: &Buffer<T>) -> anyhow::Result<()> {
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
