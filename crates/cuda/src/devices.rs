//! Which cards there are, and what they say of themselves; no context is made for that.

use std::ffi::{CStr, c_int};

use crate::{Result, Trying as _, driver::Basics};

/// The driver and its cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// As CUDA counts versions: 13000 for 13.0.
    pub driver_version: i32,
    /// In the driver's order, which CUDA_VISIBLE_DEVICES may change; may be none.
    pub cards: Vec<About>,
}

/// What a card says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    pub name: String,
    /// Of its instructions: (9, 0) for Hopper.
    pub capability: (i32, i32),
    pub multiprocessors: u32,
    pub memory_bytes: u64,
    pub l2_bytes: u64,
    /// Shared memory that one block may ask for.
    pub shared_bytes: u32,
    /// As CUDA counts versions: 13000 for 13.0.
    pub driver_version: i32,
}

/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: c_int = 100;

/// An error says why there can be none; a driver without cards is none.
pub fn installed() -> Result<Installed> {
    let (_, basics) = Basics::load()?;
    // SAFETY: calls of the driver with places to write to, in the order that it asks for.
    let (driver_version, count) = unsafe {
        let mut driver_version = 0;
        // The only call that may be made before the driver is started.
        basics.check((basics.cuDriverGetVersion)(&mut driver_version))?;
        let started = (basics.cuInit)(0);
        if started == NO_DEVICE {
            return Ok(Installed {
                driver_version,
                cards: Vec::new(),
            });
        }
        basics
            .check(started)
            .trying(|| "the driver does not start".to_owned())?;
        let mut count = 0;
        basics.check((basics.cuDeviceGetCount)(&mut count))?;
        (driver_version, count)
    };
    let cards = (0..count).map(|number| About::of(&basics, number).map(|(_, about)| about));
    Ok(Installed {
        driver_version,
        cards: cards.collect::<Result<_>>()?,
    })
}

/// 13.0 of 13000.
pub fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

impl About {
    /// Of a driver that was started; its handle beside it.
    pub(crate) fn of(basics: &Basics, number: c_int) -> Result<(c_int, About)> {
        // SAFETY: as above.
        unsafe {
            let mut device: c_int = 0;
            basics
                .check((basics.cuDeviceGet)(&mut device, number))
                .trying(|| "there is no NVIDIA card that this program may use".to_owned())?;
            let attribute = |which: c_int| -> Result<c_int> {
                let mut value = 0;
                basics.check((basics.cuDeviceGetAttribute)(&mut value, which, device))?;
                Ok(value)
            };
            let mut name = [0; 256];
            basics.check((basics.cuDeviceGetName)(name.as_mut_ptr(), 256, device))?;
            let mut memory_bytes = 0;
            basics.check((basics.cuDeviceTotalMem_v2)(&mut memory_bytes, device))?;
            let mut driver_version = 0;
            basics.check((basics.cuDriverGetVersion)(&mut driver_version))?;
            let about = About {
                name: CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned(),
                capability: (attribute(75)?, attribute(76)?),
                multiprocessors: attribute(16)? as u32,
                memory_bytes: memory_bytes as u64,
                l2_bytes: attribute(38)? as u64,
                shared_bytes: attribute(97)? as u32,
                driver_version,
            };
            Ok((device, about))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::version_text;

    #[test]
    fn versions_are_written_as_people_do() {
        assert_eq!(version_text(13000), "13.0");
        assert_eq!(version_text(12040), "12.4");
        assert_eq!(version_text(11080), "11.8");
    }
}
