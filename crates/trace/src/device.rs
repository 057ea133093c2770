//! What a device (a GPU) adds to the log: devices, the kernels of a graph, what was measured
//! of an evaluation after the fact, and copies.
//!
//! A device computes after the call that asked for it has returned. So an evaluation of it is
//! logged in two records: the evaluation itself (when it was asked for, what it touches), and
//! later what was measured of it ([`Measured`]): when the device began and ended, in some
//! evaluations each kernel, and index arrays that only the device has. A reader puts the two
//! together again ([`crate::read`]); one whose second record never came has no times.

use crate::{
    coded::take_coded,
    wire::{Decoder, Encoder, WireError},
};

/// Something that computes graphs besides the processor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceDef {
    /// ggml's name (`CUDA0`, `Vulkan0`), a string number.
    pub name: u32,
    /// What it is, in ggml's words, a string number.
    pub description: u32,
    /// All of its memory; 0 if nobody said.
    pub memory_bytes: u64,
}

/// What a device does in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum KernelKind {
    Kernel = 0,
    Copy = 1,
    Set = 2,
}

impl KernelKind {
    pub const ALL: [KernelKind; 3] = [KernelKind::Kernel, KernelKind::Copy, KernelKind::Set];

    pub fn name(self) -> &'static str {
        match self {
            KernelKind::Kernel => "kernel",
            KernelKind::Copy => "copy",
            KernelKind::Set => "set",
        }
    }
}

/// A kernel that a graph launches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelDef {
    /// The step of the template that launches it; `None` if that is not known.
    pub step: Option<u32>,
    pub kind: KernelKind,
    /// A string number.
    pub name: u32,
    pub grid: [u32; 3],
    pub block: [u32; 3],
}

/// The kernels of a graph, in the order of their launches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Launches {
    pub template: u32,
    pub kernels: Vec<KernelDef>,
}

/// Which way bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Way {
    HostToDevice = 0,
    DeviceToHost = 1,
    DeviceToDevice = 2,
}

impl Way {
    const ALL: [Way; 3] = [Way::HostToDevice, Way::DeviceToHost, Way::DeviceToDevice];

    pub fn name(self) -> &'static str {
        match self {
            Way::HostToDevice => "host_to_device",
            Way::DeviceToHost => "device_to_host",
            Way::DeviceToDevice => "device_to_device",
        }
    }
}

/// Bytes of a tensor that were copied between memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The call that asked for it.
    pub begin_nanos: u64,
    pub end_nanos: u64,
    /// The tensor that they are of.
    pub tensor: u32,
    pub way: Way,
    /// The call did not wait for it.
    pub is_async: bool,
    pub tensor_offset: u64,
    pub bytes: u64,
    /// The number in its stream of the evaluation that follows.
    pub evaluation: u64,
    pub context: u64,
    /// To or from where: the number of a device.
    pub device: u32,
}

/// Words of the body of a copy's record.
pub const COPY_WORDS: usize = 8;

impl Copy {
    pub fn to_words(self) -> [u64; COPY_WORDS] {
        let bits =
            u64::from(self.tensor) | (self.way as u64) << 32 | u64::from(self.is_async) << 40;
        [
            self.begin_nanos,
            self.end_nanos,
            bits,
            self.tensor_offset,
            self.bytes,
            self.evaluation,
            self.context,
            u64::from(self.device),
        ]
    }

    pub fn from_words(body: &[u64]) -> Option<Copy> {
        let &[
            begin_nanos,
            end_nanos,
            bits,
            tensor_offset,
            bytes,
            evaluation,
            context,
            device,
        ] = body
        else {
            return None;
        };
        Some(Copy {
            begin_nanos,
            end_nanos,
            tensor: bits as u32,
            way: *Way::ALL.get((bits >> 32) as u8 as usize)?,
            is_async: bits >> 40 & 1 == 1,
            tensor_offset,
            bytes,
            evaluation,
            context,
            device: u32::try_from(device).ok()?,
        })
    }
}

/// What became known of an evaluation on a device after it was logged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Number of the evaluation in its stream.
    pub evaluation: u64,
    /// To be added to those of the evaluation ([`crate::format::flags`]).
    pub flags: u32,
    /// When the device began and ended.
    pub nanos: Option<(u64, u64)>,
    /// Its [`Launches`], where they became known only now.
    pub launches: Option<u32>,
    /// When each of its kernels began and ended, in the order of its [`Launches`]; empty if
    /// that was not measured.
    pub kernels: Vec<(u64, u64)>,
    /// Arrays that were on the device: number of the capture, and its values.
    pub captures: Vec<(u32, Vec<i64>)>,
}

impl Measured {
    /// The body of its record. `code` is how arrays are coded (`capture::gather::encode`).
    pub fn to_words(&self, code: impl Fn(&[i64], &mut Vec<u64>)) -> Vec<u64> {
        let (begin, end) = self.nanos.unwrap_or_default();
        let mut words = vec![
            self.evaluation,
            u64::from(self.flags) | (self.kernels.len() as u64) << 32,
            begin,
            end,
            self.launches.map_or(0, |number| u64::from(number) + 1),
        ];
        words.extend(self.kernels.iter().flat_map(|&(begin, end)| [begin, end]));
        words.push(self.captures.len() as u64);
        for (number, values) in &self.captures {
            words.push(u64::from(*number));
            code(values, &mut words);
        }
        words
    }

    /// The evaluation that a record's body is about.
    pub(crate) fn evaluation_of(body: &[u64]) -> Option<u64> {
        body.first().copied()
    }

    /// `elements` is how many elements a capture of the evaluation has.
    pub fn from_words(
        body: &[u64],
        elements: impl Fn(u32) -> Option<u64>,
    ) -> Result<Measured, String> {
        let short = || "a measurement is too short".to_string();
        let (head, rest) = body.split_first_chunk::<5>().ok_or_else(short)?;
        let &[evaluation, bits, begin, end, launches] = head;
        let launches = u32::try_from(launches).map_err(|_| "launches that cannot be")?;
        let count = (bits >> 32) as usize;
        let words = count.checked_mul(2).ok_or_else(short)?;
        let (kernels, rest) = rest.split_at_checked(words).ok_or_else(short)?;
        let (pairs, _) = kernels.as_chunks::<2>();
        let (&arrays, mut rest) = rest.split_first().ok_or_else(short)?;
        let mut captures = Vec::new();
        for _ in 0..arrays {
            let (&number, after) = rest.split_first().ok_or_else(short)?;
            rest = after;
            let number = u32::try_from(number).map_err(|_| "a capture that cannot be")?;
            let elements = elements(number).ok_or("a measured array is of no capture")?;
            let values = take_coded(&mut rest, elements)?;
            if values.len() as u64 != elements {
                return Err("a measured array does not have the length of its capture".into());
            }
            captures.push((number, values));
        }
        if !rest.is_empty() {
            return Err("a measurement is longer than it says".into());
        }
        Ok(Measured {
            evaluation,
            flags: bits as u32,
            nanos: (begin != 0 && end >= begin).then_some((begin, end)),
            launches: launches.checked_sub(1),
            kernels: pairs.iter().map(|&[begin, end]| (begin, end)).collect(),
            captures,
        })
    }
}

pub(crate) fn encode_device(e: &mut Encoder, device: &DeviceDef) {
    e.unsigned(u64::from(device.name));
    e.unsigned(u64::from(device.description));
    e.unsigned(device.memory_bytes);
}

pub(crate) fn decode_device(d: &mut Decoder) -> Result<DeviceDef, WireError> {
    Ok(DeviceDef {
        name: d.narrow()?,
        description: d.narrow()?,
        memory_bytes: d.unsigned()?,
    })
}

pub(crate) fn encode_launches(e: &mut Encoder, launches: &Launches) {
    e.unsigned(u64::from(launches.template));
    e.unsigned(launches.kernels.len() as u64);
    for kernel in &launches.kernels {
        e.unsigned(kernel.step.map_or(0, |step| u64::from(step) + 1));
        e.unsigned(kernel.kind as u64);
        e.unsigned(u64::from(kernel.name));
        for n in kernel.grid.into_iter().chain(kernel.block) {
            e.unsigned(u64::from(n));
        }
    }
}

pub(crate) fn decode_launches(d: &mut Decoder) -> Result<Launches, WireError> {
    let template = d.narrow()?;
    let count = d.count()?;
    let mut kernels = Vec::with_capacity(count);
    for _ in 0..count {
        let step = match d.unsigned()? {
            0 => None,
            n => Some(u32::try_from(n - 1).map_err(|_| WireError::Overflow)?),
        };
        let kind = d.unsigned()?;
        let known = usize::try_from(kind)
            .ok()
            .and_then(|at| KernelKind::ALL.get(at));
        kernels.push(KernelDef {
            step,
            kind: *known.ok_or(WireError::UnknownTag(kind))?,
            name: d.narrow()?,
            grid: [d.narrow()?, d.narrow()?, d.narrow()?],
            block: [d.narrow()?, d.narrow()?, d.narrow()?],
        });
    }
    Ok(Launches { template, kernels })
}
