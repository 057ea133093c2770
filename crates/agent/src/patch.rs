//! The entry of a function, changed so that calls of it come here first.
//!
//! Its first five bytes become a jump; the instructions that stood there are copied,
//! moved to their new place, and followed by a jump back: the *original*, which is called
//! in its stead. Copies and jumps lie in a page that a jump of 32 bits reaches.

use std::sync::atomic::{AtomicU64, Ordering};

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Decoder, DecoderOptions, Instruction,
    InstructionBlock, Mnemonic,
};

/// A jump with a distance of 32 bits.
const JUMP_BYTES: usize = 5;
const PAGE_BYTES: usize = 4096;
/// From the object to its page of copies: well within a distance of 32 bits.
const REACH_BYTES: usize = 1 << 30;
/// An instruction has at most 15 bytes.
const MAX_MOVED_BYTES: usize = JUMP_BYTES + 15;

/// A page near an object, for copies of entries.
pub struct Page {
    start: usize,
    used: usize,
    patches: Vec<Patch>,
}

#[derive(Clone, Copy)]
struct Patch {
    entry: usize,
    jump_to: usize,
}

impl Page {
    /// A page within reach of an object that lies from `start` to `end`.
    pub fn near((start, end): (usize, usize)) -> Result<Page, String> {
        let below = (1..).map(|n| start.saturating_sub(n * PAGE_BYTES * 16));
        let above = (1..).map(|n| end.saturating_add(n * PAGE_BYTES * 16));
        let places = below.zip(above).flat_map(|(below, above)| [above, below]);
        for place in places.take(2 * REACH_BYTES / (PAGE_BYTES * 16)) {
            let place = place & !(PAGE_BYTES - 1);
            if place == 0 {
                continue;
            }
            // SAFETY: a new mapping, which replaces none.
            let page = unsafe {
                libc::mmap(
                    place as *mut _,
                    PAGE_BYTES,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                    -1,
                    0,
                )
            };
            if page as usize == place {
                return Ok(Page {
                    start: place,
                    used: 0,
                    patches: Vec::new(),
                });
            }
            if page != libc::MAP_FAILED {
                // A kernel before 4.17 takes the address for a wish.
                // SAFETY: mapped above, and not used.
                unsafe { libc::munmap(page, PAGE_BYTES) };
            }
        }
        Err("there is no room near its code".into())
    }

    /// Prepares that calls of the function from `start` to `end` come to `hook`. The address
    /// at which the function goes on as if nothing had happened.
    ///
    /// # Safety
    /// A function that is loaded, and a hook that takes the same arguments.
    pub unsafe fn add(
        &mut self,
        (start, end): (usize, usize),
        hook: usize,
    ) -> Result<usize, String> {
        // SAFETY: as promised by the caller.
        let code = unsafe { std::slice::from_raw_parts(start as *const u8, end - start) };
        let mut moved = first_instructions(code, start)?;
        let next = moved.last().map_or(start, |last| last.next_ip() as usize);
        let back = Instruction::with_branch(Code::Jmp_rel32_64, next as u64);
        moved.push(back.map_err(|error| error.to_string())?);
        let original = self.start + self.used;
        let block = InstructionBlock::new(&moved, original as u64);
        let encoded = BlockEncoder::encode(64, block, BlockEncoderOptions::NONE)
            .map_err(|error| error.to_string())?;
        self.append(&encoded.code_buffer)?;
        let jump_to = self.start + self.used;
        // jmp [rip + 0], with the address behind it.
        let mut jump = vec![0xff, 0x25, 0, 0, 0, 0];
        jump.extend(hook.to_le_bytes());
        self.append(&jump)?;
        self.patches.push(Patch {
            entry: start,
            jump_to,
        });
        Ok(original)
    }

    fn append(&mut self, code: &[u8]) -> Result<(), String> {
        if self.used + code.len() > PAGE_BYTES {
            return Err("more entries than fit into a page".into());
        }
        // SAFETY: inside of the page, which is ours and writable until `patch`.
        unsafe {
            let to = (self.start + self.used) as *mut u8;
            to.copy_from_nonoverlapping(code.as_ptr(), code.len());
        }
        self.used = (self.used + code.len()).next_multiple_of(16);
        Ok(())
    }

    /// Changes the entries.
    ///
    /// # Safety
    /// No thread is inside the first bytes of one of the functions.
    pub unsafe fn patch(self) -> Result<(), String> {
        protect(self.start, PAGE_BYTES, libc::PROT_READ | libc::PROT_EXEC)?;
        for patch in &self.patches {
            // SAFETY: as promised by the caller.
            unsafe { patch.apply() }?;
        }
        Ok(())
    }
}

impl Patch {
    unsafe fn apply(&self) -> Result<(), String> {
        let first = self.entry & !(PAGE_BYTES - 1);
        let last = (self.entry + 7) & !(PAGE_BYTES - 1);
        let bytes = last - first + PAGE_BYTES;
        protect(
            first,
            bytes,
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
        )?;
        let distance = (self.jump_to as isize - (self.entry + JUMP_BYTES) as isize) as i32;
        let mut jump = [0; JUMP_BYTES];
        jump[0] = 0xe9;
        jump[1..].copy_from_slice(&distance.to_le_bytes());
        // SAFETY: code of a loaded function, which is writable now. Where the entry is
        // aligned, as compilers do it, the bytes change at once.
        unsafe {
            match self.entry.is_multiple_of(8) {
                true => {
                    let word = AtomicU64::from_ptr(self.entry as *mut u64);
                    let mut bytes = word.load(Ordering::Relaxed).to_le_bytes();
                    bytes[..JUMP_BYTES].copy_from_slice(&jump);
                    word.store(u64::from_le_bytes(bytes), Ordering::SeqCst);
                }
                false => {
                    (self.entry as *mut u8).copy_from_nonoverlapping(jump.as_ptr(), JUMP_BYTES)
                }
            }
        }
        protect(first, bytes, libc::PROT_READ | libc::PROT_EXEC)
    }
}

fn protect(start: usize, bytes: usize, protection: i32) -> Result<(), String> {
    // SAFETY: whole pages of code, of an object that is loaded or of ours.
    match unsafe { libc::mprotect(start as *mut _, bytes, protection) } {
        0 => Ok(()),
        _ => Err(format!(
            "its code cannot be changed: {}",
            std::io::Error::last_os_error()
        )),
    }
}

/// The instructions that stand where the jump goes.
fn first_instructions(code: &[u8], start: usize) -> Result<Vec<Instruction>, String> {
    let decoder = Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE);
    let (mut moved, mut bytes) = (Vec::new(), 0);
    let mut targets_inside = false;
    for instruction in decoder {
        if instruction.is_invalid() {
            // Padding behind a function may be anything.
            if bytes < JUMP_BYTES {
                return Err("its first instructions are none that we know".into());
            }
            break;
        }
        if bytes < JUMP_BYTES {
            let goes_on = !matches!(
                instruction.mnemonic(),
                Mnemonic::Ret | Mnemonic::Jmp | Mnemonic::Int3 | Mnemonic::Ud2 | Mnemonic::Hlt
            );
            bytes += instruction.len();
            moved.push(instruction);
            if !goes_on && bytes < JUMP_BYTES || bytes > MAX_MOVED_BYTES {
                return Err("it is too short to be changed".into());
            }
        }
        let target = instruction.near_branch_target() as usize;
        targets_inside |= instruction.near_branch_target() != 0
            && target > start
            && target < start + bytes.min(JUMP_BYTES);
    }
    match (bytes >= JUMP_BYTES, targets_inside) {
        (false, _) => Err("it is too short to be changed".into()),
        (true, true) => Err("it jumps back to its first instructions".into()),
        (true, false) => Ok(moved),
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    static ORIGINAL: AtomicUsize = AtomicUsize::new(0);
    type Function = extern "C" fn(u64, u64) -> u64;

    #[inline(never)]
    #[unsafe(no_mangle)]
    extern "C" fn tensorscope_test_function(a: u64, b: u64) -> u64 {
        static FACTOR: AtomicU64 = AtomicU64::new(3);
        if a == 7 {
            return 1;
        }
        a * FACTOR.load(Ordering::Relaxed) + b
    }

    extern "C" fn hook(a: u64, b: u64) -> u64 {
        // SAFETY: the original, of the same type.
        let original: Function = unsafe { std::mem::transmute(ORIGINAL.load(Ordering::Relaxed)) };
        1000 + original(a, b)
    }

    #[test]
    fn calls_come_here_and_go_on() {
        let function: Function = std::hint::black_box(tensorscope_test_function);
        assert_eq!((function(2, 1), function(7, 1)), (7, 1));
        let image = crate::image::Image::around(function as usize).unwrap();
        let range = image.function_around(function as usize).unwrap();
        let mut page = Page::near(image.range()).unwrap();
        // SAFETY: a function of this test, which nobody else calls.
        unsafe {
            let original = page.add(range, hook as *const () as usize).unwrap();
            ORIGINAL.store(original, Ordering::Relaxed);
            page.patch().unwrap();
        }
        assert_eq!((function(2, 1), function(7, 1)), (1007, 1001));
    }

    #[test]
    fn entries_that_cannot_be_moved_are_refused() {
        let refused = |code: &[u8]| first_instructions(code, 0x1000).unwrap_err();
        assert_eq!(
            refused(&[0xc3, 0x90, 0x90, 0x90, 0x90, 0x90]),
            "it is too short to be changed"
        );
        assert_eq!(refused(&[0x90, 0x90]), "it is too short to be changed");
        // nop × 8, jmp to the second nop.
        let mut code = [0x90; 10];
        code[8..].copy_from_slice(&[0xeb, 0xf7]);
        assert_eq!(refused(&code), "it jumps back to its first instructions");
        // The same, but to the first: that is a call of itself.
        code[9] = 0xf6;
        assert_eq!(first_instructions(&code, 0x1000).unwrap().len(), 5);
        assert_eq!(
            refused(&[0x06, 0x90, 0x90, 0x90, 0x90, 0x90]),
            "its first instructions are none that we know"
        );
    }
}
