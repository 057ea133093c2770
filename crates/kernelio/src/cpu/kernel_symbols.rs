//! Functions of the kernel by address, where `/proc/kallsyms` tells them: to root, and to
//! others if `kernel.kptr_restrict` is 0.

use std::fs;
use std::ops::Range;

#[derive(Debug, Default)]
pub(super) struct KernelSymbols {
    text: String,
    /// By address; where the name is in the text, of which there are some 10 MB.
    functions: Vec<(u64, Range<usize>)>,
}

impl KernelSymbols {
    pub fn read() -> KernelSymbols {
        KernelSymbols::parse(fs::read_to_string("/proc/kallsyms").unwrap_or_default())
    }

    /// `ffffffff81000000 T _stext`, behind it perhaps `[module]`. All zeros: not told.
    fn parse(text: String) -> KernelSymbols {
        let start = text.as_ptr() as usize;
        let function = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
            (is_code && address != 0).then_some(())?;
            let name = words.next()?;
            let at = name.as_ptr() as usize - start;
            Some((address, at..at + name.len()))
        };
        let mut functions: Vec<_> = text.lines().filter_map(function).collect();
        functions.sort_unstable_by_key(|(address, _)| *address);
        KernelSymbols { text, functions }
    }

    pub fn function(&self, address: u64) -> Option<&str> {
        let behind = self
            .functions
            .partition_point(|(start, _)| *start <= address);
        let (_, name) = self.functions.get(behind.checked_sub(1)?)?;
        self.text.get(name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_lies_in_the_function_before_it() {
        let text = "ffffffff81000010 T do_fault\nffffffff81000000 t start\n\
                    ffffffff81000020 D data\nffffffffc0000000 t io_read\t[disk]\nbad\n";
        let symbols = KernelSymbols::parse(text.to_owned());
        let check = |address, expect| assert_eq!(symbols.function(address), expect, "{address:x}");
        check(0xffff_ffff_8100_0000, Some("start"));
        check(0xffff_ffff_8100_0018, Some("do_fault"));
        check(0xffff_ffff_8100_0020, Some("do_fault"));
        check(0xffff_ffff_c000_0007, Some("io_read"));
        check(7, None);
        let hidden = KernelSymbols::parse("0000000000000000 T do_fault\n".to_owned());
        assert_eq!(hidden.function(u64::MAX), None);
    }
}
