//! What a graphics card allows.
//!
//! Those who can talk to one measure it (crate `bench`, through the card's driver); the figures
//! are kept here, in the same file as those of the disk, of memory and of the processor.

use serde::{Deserialize, Serialize};

use crate::rate::Rates;

/// One card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardCeiling {
    /// As llama.cpp calls it: `CUDA0`.
    pub device: String,
    /// As its driver calls it.
    pub name: String,
    pub memory_bytes: u64,
    /// The latest CUDA that the driver knows: "13.0".
    pub driver_version: String,
    /// Those that could be measured.
    pub values: Vec<CardRate>,
}

/// One figure, with the slices of time that it is the median of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardRate {
    pub what: Quantity,
    /// Bytes, or operations: a product and a sum are two.
    pub per_second: u64,
    pub slices: u32,
    pub lowest: u64,
    pub lower_quartile: u64,
    pub upper_quartile: u64,
    pub highest: u64,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Bytes read by a kernel.
    Read,
    /// Bytes read and bytes written, together, by the driver's copy within the card.
    Copy,
    HostToDevicePinned,
    HostToDevicePageable,
    DeviceToHostPinned,
    DeviceToHostPageable,
    /// Fused products of 32-bit numbers.
    F32,
    /// Products of 16-bit numbers in tensor cores, added up in 32 bits.
    F16,
    Bf16,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Operations,
}

impl Quantity {
    pub fn unit(self) -> Unit {
        match self {
            Quantity::F32 | Quantity::F16 | Quantity::Bf16 => Unit::Operations,
            _ => Unit::Bytes,
        }
    }

    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Quantity::Read => "read by a kernel",
            Quantity::Copy => "copied within the card, read and written together",
            Quantity::HostToDevicePinned => "host to card, from pinned memory",
            Quantity::HostToDevicePageable => "host to card, from pageable memory",
            Quantity::DeviceToHostPinned => "card to host, into pinned memory",
            Quantity::DeviceToHostPageable => "card to host, into pageable memory",
            Quantity::F32 => "f32 in registers",
            Quantity::F16 => "f16 in tensor cores, sums in f32",
            Quantity::Bf16 => "bf16 in tensor cores, sums in f32",
        }
    }
}

impl CardRate {
    /// `None` when there is no slice.
    pub fn of(what: Quantity, slices: Vec<u64>) -> Option<CardRate> {
        let rates = Rates::of(slices)?;
        Some(CardRate {
            what,
            per_second: rates.median_bytes_per_second,
            slices: rates.slices,
            lowest: rates.lowest_bytes_per_second,
            lower_quartile: rates.lower_quartile_bytes_per_second,
            upper_quartile: rates.upper_quartile_bytes_per_second,
            highest: rates.highest_bytes_per_second,
        })
    }
}

impl CardCeiling {
    /// Bytes or operations a second; `None` where it was not measured.
    pub fn per_second(&self, what: Quantity) -> Option<f64> {
        let mut values = self.values.iter();
        let found = values.find(|value| value.what == what && value.per_second > 0)?;
        Some(found.per_second as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_median_of_its_slices() {
        let rate = CardRate::of(Quantity::Read, vec![50, 10, 30, 20, 40]).unwrap();
        assert_eq!((rate.per_second, rate.slices), (30, 5));
        assert_eq!((rate.lower_quartile, rate.upper_quartile), (20, 40));
        assert_eq!((rate.lowest, rate.highest), (10, 50));
        assert_eq!(CardRate::of(Quantity::Read, vec![]), None);
    }

    #[test]
    fn names_in_files_are_those_of_the_documents() {
        let name = serde_json::to_string(&Quantity::HostToDevicePinned).unwrap();
        assert_eq!(name, "\"host_to_device_pinned\"");
        assert_eq!(serde_json::to_string(&Quantity::Bf16).unwrap(), "\"bf16\"");
    }
}
