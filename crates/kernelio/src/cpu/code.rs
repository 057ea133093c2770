//! A file with code: its functions' names, and what an unwinder needs of it.

use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use memmap2::Mmap;
use support::elf::{Elf, Table};

/// A library or program that somebody has mapped.
#[derive(Debug)]
pub(super) struct CodeFile {
    /// Without folders.
    pub name: String,
    /// `None` of what is no file, or none that can be read.
    bytes: Option<Arc<Mmap>>,
    functions: OnceLock<Vec<FunctionRange>>,
}

/// A function's addresses before relocation, and where its name is in the file.
#[derive(Debug)]
struct FunctionRange {
    start: u64,
    end: u64,
    name_at: usize,
}

/// A part of a mapped file, which it keeps mapped.
#[derive(Clone, Debug)]
pub(super) struct Part {
    bytes: Arc<Mmap>,
    range: Range<usize>,
}

impl Deref for Part {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }
}

impl CodeFile {
    /// `path` as the kernel names it: perhaps `[vdso]`, or nothing.
    pub fn open(path: &Path) -> CodeFile {
        let name = path.file_name().map_or_else(
            || "[anonymous memory]".to_owned(),
            |name| name.to_string_lossy().into_owned(),
        );
        let bytes = match path.is_absolute() && path.is_file() {
            true => map(path),
            false => None,
        };
        CodeFile {
            name,
            bytes,
            functions: OnceLock::new(),
        }
    }

    fn elf(&self) -> Option<Elf<'_>> {
        Elf::new(self.bytes.as_ref()?).ok()
    }

    /// What is added to an address of the file to get one in memory, for a mapping of code that
    /// begins at `start` with the byte `file_offset`.
    pub fn bias(&self, start: u64, file_offset: u64) -> Option<u64> {
        let segment = self.elf()?.loaded().find(|segment| {
            // Mappings begin at whole pages, segments anywhere.
            let first = segment.file_offset & !0xfff;
            segment.is_code && (first..segment.file_offset + segment.bytes).contains(&file_offset)
        })?;
        let address = segment
            .address
            .wrapping_add(file_offset.wrapping_sub(segment.file_offset));
        Some(start.wrapping_sub(address))
    }

    /// Address before relocation, and bytes of a section.
    pub fn section(&self, name: &[u8]) -> Option<(Range<u64>, Part)> {
        let bytes = self.bytes.as_ref()?;
        let (address, section) = self.elf()?.section_named(name)?;
        let start = (section.as_ptr() as usize).checked_sub(bytes.as_ptr() as usize)?;
        let part = Part {
            bytes: Arc::clone(bytes),
            range: start..start + section.len(),
        };
        Some((address..address.checked_add(section.len() as u64)?, part))
    }

    /// Reads the names of all functions.
    pub fn prepare(&self) {
        self.functions.get_or_init(|| self.list());
    }

    /// The function at an address before relocation, as people write it.
    pub fn function(&self, address: u64) -> Option<String> {
        let functions = self.functions.get_or_init(|| self.list());
        let behind = functions.partition_point(|function| function.start <= address);
        let function = functions.get(behind.checked_sub(1)?)?;
        if address >= function.end {
            return None;
        }
        let bytes = self.bytes.as_ref()?.get(function.name_at..)?;
        let name = bytes.split(|byte| *byte == 0).next()?;
        Some(readable(&String::from_utf8_lossy(name)))
    }

    /// All functions by address. What is stripped has those that others may call.
    fn list(&self) -> Vec<FunctionRange> {
        let (Some(elf), Some(bytes)) = (self.elf(), &self.bytes) else {
            return Vec::new();
        };
        let table = match elf.has_table(Table::All) {
            true => Table::All,
            false => Table::Dynamic,
        };
        let mut list: Vec<FunctionRange> = elf
            .symbols(table)
            .filter(|symbol| symbol.is_function && !symbol.name.is_empty())
            .filter_map(|symbol| {
                let at = symbol.name.as_ptr() as usize;
                Some(FunctionRange {
                    start: symbol.address,
                    end: symbol.address.checked_add(symbol.bytes)?,
                    name_at: at.checked_sub(bytes.as_ptr() as usize)?,
                })
            })
            .collect();
        list.sort_by_key(|function| (function.start, function.end));
        // Functions in assembler have no length: they end where the next one begins.
        for i in 0..list.len() {
            if list[i].start == list[i].end {
                let next = list[i + 1..].iter().find(|next| next.start > list[i].start);
                list[i].end = next.map_or(list[i].end, |next| next.start);
            }
        }
        // Of several names of one function the last in this order is found: the one with a length.
        list
    }
}

/// The file stays as it is while somebody runs it: the kernel refuses to write to a program
/// (ETXTBSY), and package managers replace libraries by renaming.
fn map(path: &Path) -> Option<Arc<Mmap>> {
    let file = File::open(path).ok()?;
    // SAFETY: the mapping is private and read-only; see above.
    unsafe { Mmap::map(&file) }.ok().map(Arc::new)
}

/// C++ and Rust names as people write them, without parameters.
fn readable(name: &str) -> String {
    let plain = name.split('@').next().unwrap_or(name);
    if let Ok(rust) = rustc_demangle::try_demangle(plain) {
        return format!("{rust:#}");
    }
    let options = cpp_demangle::DemangleOptions::new()
        .no_params()
        .no_return_type();
    cpp_demangle::Symbol::new(plain)
        .ok()
        .and_then(|symbol| symbol.demangle_with_options(&options).ok())
        .unwrap_or_else(|| plain.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_people_write() {
        assert_eq!(readable("ggml_vec_dot_q8_0"), "ggml_vec_dot_q8_0");
        assert_eq!(
            readable("_ZN13llama_context6decodeERK11llama_batch"),
            "llama_context::decode"
        );
        assert_eq!(readable("_RNvC6_123foo3bar"), "123foo::bar");
        assert_eq!(readable("memcpy@@GLIBC_2.14"), "memcpy");
        assert_eq!(readable("_Znonsense"), "_Znonsense");
    }

    #[test]
    fn a_function_of_this_program_is_found_by_its_address() {
        let path = std::env::current_exe().unwrap();
        let file = CodeFile::open(&path);
        let maps = support::proc::own_maps().unwrap();
        let here = a_function_of_this_program_is_found_by_its_address as fn() as usize as u64;
        let mapping = support::proc::mappings(&maps)
            .find(|m| m.addresses().contains(&here))
            .unwrap();
        let bias = file.bias(mapping.start, mapping.file_offset).unwrap();
        let name = file.function(here - bias).unwrap();
        assert!(name.ends_with("is_found_by_its_address"), "{name}");
        assert!(file.section(b".eh_frame").is_some());
        assert_eq!(file.function(1), None);
        let nothing = CodeFile::open(Path::new("[vdso]"));
        assert_eq!(nothing.name, "[vdso]");
        assert_eq!((nothing.function(1), nothing.bias(0, 0)), (None, None));
    }
}
