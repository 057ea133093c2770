//! A program or library as it lies in memory: its segments, its functions as the unwinder
//! knows them (which `strip` leaves), and where its code refers to a text.
//!
//! Instructions that refer to a text are recognised by their bytes, not by disassembling
//! everything: the four bytes of a distance that leads to just that text are no accident.

use std::ffi::{CString, c_int, c_void};

/// How far apart two of a function's starts may be: a bound for damaged tables only.
const MAX_FUNCTION_BYTES: usize = 16 << 20;
/// `DW_EH_PE_datarel | DW_EH_PE_sdata4`, the only form of the table that linkers write.
const TABLE_OF_RELATIVE_PAIRS: u8 = 0x3b;
const POINTER_RELATIVE_4: u8 = 0x1b;
const UNSIGNED_4: u8 = 0x03;

#[derive(Clone, Copy, Debug)]
struct Segment {
    start: usize,
    bytes: usize,
    is_code: bool,
}

impl Segment {
    /// # Safety
    /// The object stays loaded.
    unsafe fn bytes(&self) -> &'static [u8] {
        // SAFETY: a readable segment that is loaded.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.bytes) }
    }
}

/// A loaded object. It must stay loaded.
pub struct Image {
    /// Added to the addresses of the file.
    pub bias: usize,
    /// Empty for the program itself.
    pub name: CString,
    segments: Vec<Segment>,
    /// Starts of functions, ascending; empty when they are not listed.
    functions: Vec<usize>,
}

struct Search {
    code: usize,
    found: Option<Image>,
    frames: Option<(usize, usize)>,
}

impl Image {
    /// The object that holds the address `code`.
    pub fn around(code: usize) -> Option<Image> {
        let mut search = Search {
            code,
            found: None,
            frames: None,
        };
        // SAFETY: `look` gets the struct and does not keep it.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
        let mut image = search.found?;
        if let Some((start, bytes)) = search.frames {
            // SAFETY: a segment of a loaded object.
            let table = unsafe { std::slice::from_raw_parts(start as *const u8, bytes) };
            image.functions = function_starts(table, start).unwrap_or_default();
        }
        Some(image)
    }

    pub fn contains(&self, address: usize) -> bool {
        self.segments
            .iter()
            .any(|s| (s.start..s.start + s.bytes).contains(&address))
    }

    /// From its lowest address to behind its highest.
    pub fn range(&self) -> (usize, usize) {
        let start = self.segments.iter().map(|s| s.start).min().unwrap_or(0);
        let end = self.segments.iter().map(|s| s.start + s.bytes).max();
        (start, end.unwrap_or(0))
    }

    /// Start and end of the function that holds an address.
    pub fn function_around(&self, address: usize) -> Option<(usize, usize)> {
        let next = self.functions.partition_point(|&start| start <= address);
        let start = *self.functions.get(next.checked_sub(1)?)?;
        let code_end = self
            .code()
            .find(|s| (s.start..s.start + s.bytes).contains(&start))
            .map(|s| s.start + s.bytes)?;
        let end = self
            .functions
            .get(next)
            .map_or(code_end, |&n| n.min(code_end));
        (address < end && end - start <= MAX_FUNCTION_BYTES).then_some((start, end))
    }

    fn code(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|s| s.is_code)
    }

    /// What a pointer in `words` could point to: data, no code.
    fn data_at(&self, address: usize) -> Option<&'static [u8]> {
        let segment = self
            .segments
            .iter()
            .find(|s| !s.is_code && (s.start..s.start + s.bytes).contains(&address))?;
        // SAFETY: loaded, as the type demands.
        let bytes = unsafe { segment.bytes() };
        bytes.get(address - segment.start..)
    }

    /// The text that a pointer of the object's leads to.
    pub fn text_at(&self, address: usize) -> Option<&'static [u8]> {
        let bytes = self.data_at(address)?;
        let length = bytes.iter().take(128).position(|&byte| byte == 0)?;
        Some(&bytes[..length])
    }

    /// Where a C string with just this text lies.
    pub fn texts(&self, text: &str) -> Vec<usize> {
        let wanted = [&[0], text.as_bytes(), &[0]].concat();
        let mut found = Vec::new();
        for segment in self.segments.iter().filter(|s| !s.is_code) {
            // SAFETY: loaded, as the type demands.
            let bytes = unsafe { segment.bytes() };
            let mut at = 0;
            while let Some(next) = position(&bytes[at..], &wanted) {
                found.push(segment.start + at + next + 1);
                at += next + 1;
            }
        }
        found
    }

    /// Whether the object holds these bytes anywhere in its data.
    pub fn has_bytes(&self, wanted: &[u8]) -> bool {
        let mut data = self.segments.iter().filter(|s| !s.is_code);
        // SAFETY: loaded, as the type demands.
        data.any(|segment| position(unsafe { segment.bytes() }, wanted).is_some())
    }

    /// Instructions that take the address of one of `texts`: where they are, and the text.
    pub fn references(&self, texts: &[usize]) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        for segment in self.code() {
            // SAFETY: loaded, as the type demands.
            let bytes = unsafe { segment.bytes() };
            // lea REGISTER, [rip + distance]
            for at in positions(bytes, 0x8d) {
                let Some([form, d0, d1, d2, d3]) = bytes.get(at + 1..at + 6) else {
                    continue;
                };
                if form & 0xc7 != 0x05 || at == 0 || !matches!(bytes[at - 1], 0x48 | 0x4c) {
                    continue;
                }
                let address = segment.start + at - 1;
                let distance = i32::from_le_bytes([*d0, *d1, *d2, *d3]);
                let target = (address + 7).wrapping_add_signed(distance as isize);
                if texts.contains(&target) {
                    found.push((address, target));
                }
            }
            // mov REGISTER, address: in programs that lie where their file says.
            let absolute = texts.iter().filter(|_| self.bias == 0);
            for &text in absolute {
                let Ok(wanted) = u32::try_from(text) else {
                    continue;
                };
                let mut at = 1;
                while let Some(next) = position(&bytes[at..], &wanted.to_le_bytes()) {
                    at += next + 1;
                    if matches!(bytes[at - 2], 0xb8..=0xbf) {
                        found.push((segment.start + at - 2, text));
                    }
                }
            }
        }
        found
    }

    /// How other code reaches each of these functions, given by start and end.
    pub fn ways_into(&self, functions: &[(usize, usize)]) -> Vec<WaysInto> {
        let mut ways: Vec<WaysInto> = functions.iter().map(|_| WaysInto::default()).collect();
        for segment in self.code() {
            // SAFETY: loaded, as the type demands.
            let bytes = unsafe { segment.bytes() };
            let target = |at: usize| {
                let distance = i32::from_le_bytes(*bytes.get(at..)?.first_chunk()?);
                Some((segment.start + at + 4).wrapping_add_signed(distance as isize))
            };
            for at in positions(bytes, 0xe8) {
                let called = target(at + 1);
                for (function, ways) in functions.iter().zip(&mut ways) {
                    ways.is_called |= called == Some(function.0);
                }
            }
            for at in positions(bytes, 0x0f) {
                if !matches!(bytes.get(at + 1), Some(0x80..=0x8f)) {
                    continue;
                }
                let (from, to) = (segment.start + at, target(at + 2).unwrap_or(0));
                for (&(start, end), ways) in functions.iter().zip(&mut ways) {
                    if (start..end).contains(&to) && !(start..end).contains(&from) {
                        ways.conditional_jumps.push(from);
                    }
                }
            }
        }
        ways
    }

    /// The first list of pointers in the object's data that begins with pointers to
    /// `first`: where it is, and how many texts follow one another that `belongs` to it.
    pub fn list_of_texts(&self, first: &[&[u8]], belongs: impl Fn(&[u8]) -> bool) -> Vec<usize> {
        let word = |bytes: &[u8]| {
            usize::from_ne_bytes(*bytes.first_chunk().expect("as many as a pointer has"))
        };
        for segment in self.segments.iter().filter(|s| !s.is_code) {
            // SAFETY: loaded, as the type demands.
            let bytes = unsafe { segment.bytes() };
            let words = &bytes[segment.start.wrapping_neg() % 8..];
            for (at, bytes) in words.chunks_exact(8).enumerate() {
                if self.text_at(word(bytes)) != Some(first[0]) {
                    continue;
                }
                let list = words.chunks_exact(8).skip(at).map(word);
                let texts: Vec<usize> = list
                    .take_while(|&pointer| self.text_at(pointer).is_some_and(&belongs))
                    .collect();
                let begins = texts.len() > first.len()
                    && texts
                        .iter()
                        .zip(first)
                        .all(|(&p, &text)| self.text_at(p) == Some(text));
                if begins {
                    return texts;
                }
            }
        }
        Vec::new()
    }
}

/// See [`Image::ways_into`].
#[derive(Default)]
pub struct WaysInto {
    /// Somebody calls its start.
    pub is_called: bool,
    /// From other functions, to anywhere in it.
    pub conditional_jumps: Vec<usize>,
}

unsafe extern "C" fn look(about: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader's description of a loaded object, and the struct of `around`.
    let (about, search) = unsafe { (&*about, &mut *search.cast::<Search>()) };
    let bias = about.dlpi_addr as usize;
    // SAFETY: as many headers as the loader says.
    let headers =
        unsafe { std::slice::from_raw_parts(about.dlpi_phdr, usize::from(about.dlpi_phnum)) };
    let mut segments = Vec::new();
    let mut frames = None;
    for header in headers {
        let start = bias.wrapping_add(header.p_vaddr as usize);
        match header.p_type {
            libc::PT_LOAD if header.p_flags & libc::PF_R != 0 => segments.push(Segment {
                start,
                bytes: header.p_memsz as usize,
                is_code: header.p_flags & libc::PF_X != 0,
            }),
            libc::PT_GNU_EH_FRAME => frames = Some((start, header.p_memsz as usize)),
            _ => {}
        }
    }
    let holds = segments
        .iter()
        .any(|s| (s.start..s.start + s.bytes).contains(&search.code));
    if holds {
        // SAFETY: the loader's string.
        let name = unsafe { std::ffi::CStr::from_ptr(about.dlpi_name) }.to_owned();
        search.frames = frames;
        search.found = Some(Image {
            bias,
            name,
            segments,
            functions: Vec::new(),
        });
    }
    c_int::from(holds)
}

/// From `.eh_frame_hdr` at `address`.
fn function_starts(table: &[u8], address: usize) -> Option<Vec<usize>> {
    let [1, POINTER_RELATIVE_4, UNSIGNED_4, TABLE_OF_RELATIVE_PAIRS] = *table.first_chunk()? else {
        return None;
    };
    let count = u32::from_le_bytes(*table.get(8..)?.first_chunk()?) as usize;
    let pairs = table.get(12..)?.chunks_exact(8).take(count);
    let starts = pairs.map(|pair| {
        let distance = i32::from_le_bytes([pair[0], pair[1], pair[2], pair[3]]);
        address.wrapping_add_signed(distance as isize)
    });
    let starts: Vec<usize> = starts.collect();
    starts.is_sorted().then_some(starts)
}

/// Where a byte occurs.
fn positions(bytes: &[u8], wanted: u8) -> impl Iterator<Item = usize> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let rest = bytes.get(from..)?;
        // SAFETY: a buffer with its length.
        let found = unsafe { libc::memchr(rest.as_ptr().cast(), wanted.into(), rest.len()) };
        let at = (!found.is_null()).then(|| found as usize - bytes.as_ptr() as usize)?;
        from = at + 1;
        Some(at)
    })
}

fn position(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    // SAFETY: two buffers with their lengths.
    let found = unsafe {
        libc::memmem(
            bytes.as_ptr().cast(),
            bytes.len(),
            wanted.as_ptr().cast(),
            wanted.len(),
        )
    };
    (!found.is_null()).then(|| found as usize - bytes.as_ptr() as usize)
}

// Only there objects are looked into: on AArch64 linkers put texts and code into one segment.
#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[inline(never)]
    fn says_something() -> &'static str {
        std::hint::black_box("a text that only this function has\0")
    }

    #[test]
    fn a_function_is_found_by_its_text() {
        let code = says_something as *const () as usize;
        let image = Image::around(code).unwrap();
        assert!(image.contains(code) && !image.contains(1));
        let (start, end) = image.function_around(code).unwrap();
        assert_eq!(start, code);
        assert!(end - start < 4096, "{}", end - start);
        let text = says_something().as_ptr() as usize;
        assert!(
            image
                .text_at(text)
                .unwrap()
                .starts_with(b"a text that only")
        );
        let references = image.references(&[text]);
        let functions: Vec<_> = references
            .iter()
            .filter_map(|&(from, _)| Some(image.function_around(from)?.0))
            .collect();
        assert!(functions.contains(&code), "{references:x?} {code:x}");
    }

    #[test]
    fn lists_of_texts_are_found() {
        static LIST: [&std::ffi::CStr; 3] = [c"list-first", c"list-second", c"LAST"];
        // As C has them: pointers without lengths.
        struct Pointers([*const std::ffi::c_char; 4]);
        // SAFETY: never written.
        unsafe impl Sync for Pointers {}
        static POINTERS: Pointers = Pointers([
            LIST[0].as_ptr(),
            LIST[1].as_ptr(),
            LIST[1].as_ptr(),
            LIST[2].as_ptr(),
        ]);
        std::hint::black_box(&POINTERS.0);
        let image = Image::around(lists_of_texts_are_found as *const () as usize).unwrap();
        let is_small = |text: &[u8]| text.first().is_some_and(u8::is_ascii_lowercase);
        let found = image.list_of_texts(&[b"list-first", b"list-second"], is_small);
        assert_eq!(found.len(), 3);
        assert!(
            image
                .list_of_texts(&[b"list-second", b"no"], is_small)
                .is_empty()
        );
    }
}
