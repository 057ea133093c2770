//! What graphics cards allow, through their driver alone: no toolkit is needed.
//!
//! Kernels are PTX (crates/bench/kernels), which the driver compiles. Each has its result checked:
//! a sum against arithmetic, products against the host. A figure is the median of slices of time
//! on the card's own clock; copies from and to pageable memory, which the driver does on the
//! host, are timed there.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::ensure;
use cuda::{Buffer, Card, CudaError, Kernel, Launch, devices};
use kernelio::card::{CardCeiling, CardRate, Quantity};
use terminal::signals;

const MEMORY_PTX: &str = include_str!("../../kernels/memory.ptx");
const FMA_PTX: &str = include_str!("../../kernels/fma.ptx");
const MMA_PTX: &str = include_str!("../../kernels/mma.ptx");

/// A slice is at least so long.
const SLICE: Duration = Duration::from_millis(10);
/// A figure takes at least so long, and so many slices.
const FIGURE: Duration = Duration::from_millis(300);
const MIN_SLICES: usize = 11;
/// Threads of a block, in all kernels.
const BLOCK: u32 = 256;
/// Read within the card, at least; eight times its cache if that is more.
const READ_BYTES: u64 = 1 << 30;
/// Copied between host and card at once.
const COPY_BYTES: u64 = 128 << 20;
/// Of `fma.ptx`: 16 links of 8 chains each.
const FMA_ROUNDS: u32 = 512;
/// Of `mma.ptx`: sums stay below 2^24 of their smallest step, so that they are exact.
const MMA_ROUNDS: u32 = 4096;
/// Tensor cores that take bf16 came with Ampere.
const FIRST_WITH_MMA: i32 = 8;

/// Every card that the driver shows. Where there is no driver there is no card, and nothing is
/// said; of a card that cannot be measured the reason is.
pub fn measure_all() -> Vec<CardCeiling> {
    let found = match devices::installed() {
        Ok(found) => found,
        Err(CudaError::NoDriver { .. }) => return Vec::new(),
        Err(error) => {
            eprintln!("tensorscope: graphics cards were not measured: {error}");
            return Vec::new();
        }
    };
    let mut ceilings = Vec::new();
    for (number, about) in (0..).zip(&found.cards) {
        match measure(number) {
            Ok(ceiling) => ceilings.push(ceiling),
            Err(error) => eprintln!("tensorscope: {} was not measured: {error:#}", about.name),
        }
    }
    ceilings
}

fn measure(number: i32) -> anyhow::Result<CardCeiling> {
    let card = Card::open_number(number)?;
    let about = card.about().clone();
    let mut figures = Figures {
        card: &card,
        values: Vec::new(),
    };
    memory(&mut figures)?;
    host_copies(&mut figures)?;
    fma(&mut figures)?;
    if about.capability.0 >= FIRST_WITH_MMA {
        mma(&mut figures, Quantity::F16, "mma_f16", f16_bits)?;
        mma(&mut figures, Quantity::Bf16, "mma_bf16", bf16_bits)?;
    }
    Ok(CardCeiling {
        device: format!("CUDA{number}"),
        name: about.name,
        memory_bytes: about.memory_bytes,
        driver_version: devices::version_text(about.driver_version),
        values: figures.values,
    })
}

/// What was measured so far.
struct Figures<'a> {
    card: &'a Card,
    values: Vec<CardRate>,
}

/// Whose clock counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Clock {
    Card,
    /// For what the driver does itself.
    Host,
}

impl Figures<'_> {
    /// Times `once`, which does `amount` of it; how often it ran.
    fn add(
        &mut self,
        what: Quantity,
        amount: u64,
        clock: Clock,
        mut once: impl FnMut() -> cuda::Result<()>,
    ) -> anyhow::Result<u32> {
        let mut runs = 0;
        let mut seconds = |repeats: u32| -> cuda::Result<f64> {
            runs += repeats;
            let mut work = || (0..repeats).try_for_each(|_| once());
            match clock {
                Clock::Card => Ok(self.card.time_ms(work)? / 1e3),
                Clock::Host => {
                    let begin = Instant::now();
                    work()?;
                    self.card.wait()?;
                    Ok(begin.elapsed().as_secs_f64())
                }
            }
        };
        // The first run compiles, and wakes the card up.
        seconds(1)?;
        let alone = seconds(1)?.max(1e-6);
        let repeats = (SLICE.as_secs_f64() / alone).ceil().clamp(1.0, 10_000.0) as u32;
        let begin = Instant::now();
        let mut slices = Vec::new();
        while slices.len() < MIN_SLICES || begin.elapsed() < FIGURE {
            ensure!(!signals::stop_asked(), "it was interrupted");
            let taken = seconds(repeats)?.max(1e-9);
            slices.push((amount as f64 * f64::from(repeats) / taken) as u64);
        }
        self.values.extend(CardRate::of(what, slices));
        Ok(runs)
    }

    /// As many threads as the card runs at once, in blocks.
    fn whole_card(&self, kernel: &Kernel) -> cuda::Result<u32> {
        let blocks = kernel.blocks_at_once(BLOCK, 0)?.max(1);
        Ok(blocks * self.card.about().multiprocessors.max(1))
    }
}

/// Reads by a kernel, and copies by the driver.
fn memory(figures: &mut Figures) -> anyhow::Result<()> {
    let card = figures.card;
    let module = Rc::new(card.load_ptx("memory.ptx", MEMORY_PTX)?);
    let (fill, read) = (module.kernel("fill")?, module.kernel("read_sum")?);
    let blocks = figures.whole_card(&read)?;
    let how = Launch::new((blocks, 1, 1), BLOCK, 0);
    // Each thread of the grid reads 64 bytes a round.
    let round_bytes = u64::from(blocks * BLOCK) * 64;
    let free_bytes = card.free_bytes()?;
    let wanted = READ_BYTES
        .max(8 * card.about().l2_bytes)
        .min(free_bytes / 4);
    let bytes = wanted / round_bytes * round_bytes;
    ensure!(
        bytes > 0,
        "only {free_bytes} bytes of the card's memory are free; end the programs that use it"
    );
    let count = bytes / 4;
    let from: Buffer<u32> = card.buffer(count as usize)?;
    let to: Buffer<u32> = card.buffer(count as usize)?;
    let sum = card.buffer_with(&[0u32])?;
    // SAFETY: the kernel takes numbers and how many there are, which is a multiple of 4.
    unsafe { fill.launch(how, &[&from, &count])? };
    let sum_of = |numbers: &Buffer<u32>| {
        // SAFETY: numbers, how many there are (whole rounds), and one number for the sum.
        unsafe { read.launch(how, &[numbers, &count, &sum]) }
    };
    let runs = figures.add(Quantity::Read, bytes, Clock::Card, || sum_of(&from))?;
    let each = sum_of_filled(count);
    let found = sum.read()?[0];
    ensure!(
        found == each.wrapping_mul(runs),
        "the sum of what a kernel read is wrong: {found:#x}"
    );
    // Read and written.
    figures.add(Quantity::Copy, 2 * bytes, Clock::Card, || {
        to.copy_from(&from)
    })?;
    sum.fill_bytes(0)?;
    sum_of(&to)?;
    ensure!(sum.read()?[0] == each, "a copy within the card is wrong");
    Ok(())
}

/// Of so many numbers as `fill` in memory.ptx writes them, modulo 2^32.
fn sum_of_filled(count: u64) -> u32 {
    let pairs = u128::from(count) * u128::from(count.saturating_sub(1)) / 2;
    (pairs as u32)
        .wrapping_mul(0x9e37_79b9)
        .wrapping_add((count as u32).wrapping_mul(12_345))
}

/// Copies from and to the host.
fn host_copies(figures: &mut Figures) -> anyhow::Result<()> {
    let card = figures.card;
    let bytes = COPY_BYTES.min(card.free_bytes()? / 4);
    let pattern = |i: usize| (i % 251) as u8;
    let on_card: Buffer<u8> = card.buffer(bytes as usize)?;
    let mut pinned = card.pinned::<u8>(bytes as usize)?;
    for (i, byte) in pinned.values_mut()?.iter_mut().enumerate() {
        *byte = pattern(i);
    }
    figures.add(Quantity::HostToDevicePinned, bytes, Clock::Card, || {
        on_card.write_pinned(&pinned, None)
    })?;
    pinned.values_mut()?.fill(0);
    figures.add(Quantity::DeviceToHostPinned, bytes, Clock::Card, || {
        on_card.read_pinned(&mut pinned, None)
    })?;
    let is_right = |values: &[u8]| values.iter().enumerate().all(|(i, &b)| b == pattern(i));
    ensure!(
        is_right(pinned.values()?),
        "a copy of pinned memory is wrong"
    );
    drop(pinned);
    let mut pageable: Vec<u8> = (0..bytes as usize).map(pattern).collect();
    on_card.fill_bytes(0)?;
    figures.add(Quantity::HostToDevicePageable, bytes, Clock::Host, || {
        on_card.write(&pageable)
    })?;
    pageable.fill(0);
    figures.add(Quantity::DeviceToHostPageable, bytes, Clock::Host, || {
        on_card.read_into(&mut pageable)
    })?;
    ensure!(is_right(&pageable), "a copy of pageable memory is wrong");
    Ok(())
}

/// Fused products of 32-bit numbers in registers.
fn fma(figures: &mut Figures) -> anyhow::Result<()> {
    let card = figures.card;
    let module = Rc::new(card.load_ptx("fma.ptx", FMA_PTX)?);
    let kernel = module.kernel("fma_f32")?;
    let blocks = figures.whole_card(&kernel)?;
    let threads = blocks * BLOCK;
    let how = Launch::new((blocks, 1, 1), BLOCK, 0);
    let out: Buffer<f32> = card.buffer(threads as usize)?;
    let launch = |rounds: u32| {
        // SAFETY: the kernel takes a number for each thread, and how many rounds.
        unsafe { kernel.launch(how, &[&out, &rounds]) }
    };
    let check = |rounds: u32, looked_at: usize| -> anyhow::Result<()> {
        for (thread, found) in out.read()?.into_iter().take(looked_at).enumerate() {
            let expected = chain(thread as u32, rounds);
            ensure!(
                found.to_bits() == expected.to_bits(),
                "fused products are wrong: {found}, not {expected}, in thread {thread}"
            );
        }
        Ok(())
    };
    out.fill_bytes(0xff)?;
    launch(3)?;
    check(3, threads as usize)?;
    let flops = u64::from(threads) * u64::from(FMA_ROUNDS) * 16 * 8 * 2;
    figures.add(Quantity::F32, flops, Clock::Card, || launch(FMA_ROUNDS))?;
    check(FMA_ROUNDS, 16)
}

/// What `fma_f32` in fma.ptx writes for a thread.
fn chain(thread: u32, rounds: u32) -> f32 {
    let begin = (thread & 1023) as f32 / 1024.0;
    let chains = (0..8).map(|chain| {
        let first = begin + chain as f32 / 8.0;
        (0..16 * rounds).fold(first, |x, _| x.mul_add(1.0 - 1.0 / 2048.0, 1.0 / 32.0))
    });
    chains.reduce(|sum, x| sum + x).unwrap_or_default()
}

/// One product of mma.ptx is M × K by K × N; a warp has so many side by side.
const M: usize = 16;
const N: usize = 8;
const K: usize = 16;
const PRODUCTS: usize = 8;

/// Products of 16-bit numbers in tensor cores.
fn mma(
    figures: &mut Figures,
    what: Quantity,
    name: &str,
    bits: fn(f32) -> u16,
) -> anyhow::Result<()> {
    let card = figures.card;
    let module = Rc::new(card.load_ptx("mma.ptx", MMA_PTX)?);
    let kernel = module.kernel(name)?;
    let blocks = figures.whole_card(&kernel)?;
    let warps = u64::from(blocks) * u64::from(BLOCK / 32);
    let how = Launch::new((blocks, 1, 1), BLOCK, 0);
    let (left, right) = (Operand::new(M * K, 13), Operand::new(PRODUCTS * N * K, 5));
    let a = card.buffer_with(&left.as_bits(bits))?;
    let b = card.buffer_with(&right.as_bits(bits))?;
    let out: Buffer<f32> = card.buffer(warps as usize * PRODUCTS * M * N)?;
    let launch = |rounds: u32| {
        // SAFETY: the kernel takes a matrix, eight others, room for eight results of each warp,
        // and how many rounds.
        unsafe { kernel.launch(how, &[&a, &b, &out, &rounds]) }
    };
    let expected = product(&left, &right);
    let check = |rounds: u32| -> anyhow::Result<()> {
        let found = out.read()?;
        for (at, (&found, &once)) in found.iter().zip(expected.iter().cycle()).enumerate() {
            let expected = once * rounds as f32;
            let allowed = match rounds {
                0..100 => 0.0,
                _ => 1e-5 * expected.abs().max(1.0),
            };
            ensure!(
                (found - expected).abs() <= allowed,
                "{name} is wrong: {found}, not {expected}, at {at}"
            );
        }
        Ok(())
    };
    out.fill_bytes(0xff)?;
    launch(3)?;
    check(3)?;
    let each = (2 * M * N * K * PRODUCTS) as u64;
    let flops = warps * u64::from(MMA_ROUNDS) * each;
    figures.add(what, flops, Clock::Card, || launch(MMA_ROUNDS))?;
    check(MMA_ROUNDS)
}

/// Multiples of 1/8 below 2, so that 16 bits hold them exactly.
struct Operand(Vec<f32>);

impl Operand {
    fn new(elements: usize, seed: usize) -> Operand {
        let eighths = |i: usize| (i * 7919 + seed) % 31;
        Operand(
            (0..elements)
                .map(|i| eighths(i) as f32 / 8.0 - 15.0 / 8.0)
                .collect(),
        )
    }

    fn as_bits(&self, bits: fn(f32) -> u16) -> Vec<u16> {
        self.0.iter().map(|&value| bits(value)).collect()
    }
}

/// What one round of mma.ptx gives, product after product; sums are exact.
fn product(left: &Operand, right: &Operand) -> Vec<f32> {
    let (rows, columns) = (left.0.chunks(K), right.0.chunks(K));
    let columns: Vec<&[f32]> = columns.collect();
    let of_one = |columns: &[&[f32]]| -> Vec<f32> {
        let dot = |row: &[f32], column: &[f32]| -> f32 {
            row.iter().zip(column).map(|(a, b)| a * b).sum()
        };
        let rows = rows.clone();
        rows.flat_map(|row| columns.iter().map(move |column| dot(row, column)))
            .collect()
    };
    columns.chunks(N).flat_map(of_one).collect()
}

/// Of a number that half precision holds exactly, and that is not too small for it.
fn f16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    if value == 0.0 {
        return sign;
    }
    let exponent = ((bits >> 23) & 0xff) + 15 - 127;
    let mantissa = (bits >> 13) & 0x3ff;
    sign | ((exponent << 10) | mantissa) as u16
}

/// Of a number that bf16 holds exactly.
fn bf16_bits(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_sixteen_bits() {
        assert_eq!((f16_bits(1.0), bf16_bits(1.0)), (0x3c00, 0x3f80));
        assert_eq!((f16_bits(-1.875), bf16_bits(-1.875)), (0xbf80, 0xbff0));
        assert_eq!((f16_bits(0.125), bf16_bits(0.125)), (0x3000, 0x3e00));
        assert_eq!((f16_bits(0.0), bf16_bits(0.0)), (0, 0));
    }

    #[test]
    fn the_sum_of_what_is_filled_is_that_of_its_numbers() {
        for count in [0u64, 1, 4, 1000, 65_536] {
            let numbers =
                (0..count).map(|i| (i as u32).wrapping_mul(0x9e37_79b9).wrapping_add(12_345));
            let sum = numbers.fold(0u32, u32::wrapping_add);
            assert_eq!(sum_of_filled(count), sum, "{count}");
        }
    }

    #[test]
    fn sums_of_products_stay_exact() {
        let (left, right) = (Operand::new(M * K, 13), Operand::new(PRODUCTS * N * K, 5));
        let largest = product(&left, &right)
            .into_iter()
            .fold(0.0f32, |most, sum| most.max(sum.abs()));
        // In steps of 1/64.
        assert!(
            largest * 64.0 * MMA_ROUNDS as f32 <= 16_777_216.0,
            "{largest}"
        );
        assert_eq!(product(&left, &right).len(), PRODUCTS * M * N);
        assert!(left.0.iter().chain(&right.0).all(|v| v.abs() < 2.0));
    }
}
