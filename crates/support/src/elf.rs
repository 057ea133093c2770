//! What a 64-bit little-endian ELF file says of itself: its machine, its loader, the
//! libraries that it needs, its symbols, and what of it is loaded where.
//!
//! Every read is checked against the length of the file: headers may lie.

/// A 64-bit little-endian file.
#[derive(Clone, Copy)]
pub struct Elf<'a> {
    bytes: &'a [u8],
}

/// `e_machine` of the processor that this program was built for.
pub const OUR_MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    62
} else {
    183
};

const SHT_SYMTAB: u32 = 2;
const SHT_RELA: u32 = 4;
const SHT_DYNAMIC: u32 = 6;
const SHT_DYNSYM: u32 = 11;
const DT_NEEDED: u64 = 1;
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PF_X: u32 = 1;
const SECTION_HEADER_BYTES: u64 = 64;
const SYMBOL_BYTES: usize = 24;
const RELOCATION_BYTES: usize = 24;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;

struct Section {
    name: u32,
    ty: u32,
    address: u64,
    offset: u64,
    size: u64,
    link: u32,
}

/// Which of its two tables of symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// All symbols; `strip` removes it.
    All,
    /// What the dynamic linker knows.
    Dynamic,
}

/// A symbol that the file defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    pub name: &'a [u8],
    /// Address before relocation.
    pub address: u64,
    pub bytes: u64,
    pub is_function: bool,
}

/// A part of the file that is loaded as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub file_offset: u64,
    /// Address before relocation.
    pub address: u64,
    /// In the file.
    pub bytes: u64,
    pub is_code: bool,
}

/// Why bytes are no [`Elf`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotElf {
    /// No ELF file at all, or too short for its header.
    Other,
    Is32Bit,
    IsBigEndian,
}

impl<'a> Elf<'a> {
    pub fn new(bytes: &'a [u8]) -> Result<Elf<'a>, NotElf> {
        if !bytes.starts_with(b"\x7fELF") || bytes.len() < 64 {
            return Err(NotElf::Other);
        }
        match (bytes[4], bytes[5]) {
            (1, _) => Err(NotElf::Is32Bit),
            (2, 1) => Ok(Elf { bytes }),
            (2, _) => Err(NotElf::IsBigEndian),
            _ => Err(NotElf::Other),
        }
    }

    pub fn machine(&self) -> u16 {
        self.u16(18).unwrap_or(0)
    }

    /// The path of the dynamic linker; `None` for a library, and for a program that is
    /// linked statically to all that it needs.
    pub fn interpreter(&self) -> Option<&'a [u8]> {
        let segment = self.segments_of_type(PT_INTERP).next()?;
        self.at(segment.file_offset, segment.bytes)
    }

    /// What the kernel maps.
    pub fn loaded(&self) -> impl Iterator<Item = Segment> {
        self.segments_of_type(PT_LOAD)
    }

    fn segments_of_type(&self, ty: u32) -> impl Iterator<Item = Segment> {
        let elf = *self;
        let count = self.u16(56).unwrap_or(0);
        (0..u64::from(count)).filter_map(move |i| {
            let header = elf.u64(32)?.checked_add(i * u64::from(elf.u16(54)?))?;
            (elf.u32(header)? == ty).then_some(())?;
            let number = |at: u64| elf.u64(header.checked_add(at)?);
            Some(Segment {
                file_offset: number(8)?,
                address: number(16)?,
                bytes: number(32)?,
                is_code: elf.u32(header.checked_add(4)?)? & PF_X != 0,
            })
        })
    }

    /// Address before relocation, and bytes of the section with this name.
    pub fn section_named(&self, name: &[u8]) -> Option<(u64, &'a [u8])> {
        let names = self.section(u32::from(self.u16(62)?))?;
        let names = self.at(names.offset, names.size)?;
        let section = self
            .sections()
            .find(|section| c_string(names, section.name as usize) == Some(name))?;
        Some((section.address, self.at(section.offset, section.size)?))
    }

    pub fn has_table(&self, table: Table) -> bool {
        self.sections().any(|section| section.ty == table.number())
    }

    /// The symbols that it defines, not those that it only uses.
    pub fn symbols(&self, table: Table) -> impl Iterator<Item = Symbol<'a>> {
        let elf = *self;
        let tables = self.sections().filter(move |s| s.ty == table.number());
        tables.flat_map(move |section| {
            let (entries, names) = elf.entries_and_names(&section);
            entries
                .chunks_exact(SYMBOL_BYTES)
                .filter_map(|entry| symbol(entry, names))
        })
    }

    /// Whether the dynamic linker decides which function of this name it calls, also if it
    /// has one itself.
    pub fn relocates(&self, name: &[u8]) -> bool {
        let elf = *self;
        let is_it = move |section: &Section, entry: &[u8]| {
            let number = u32::from_le_bytes(*entry.get(12..)?.first_chunk()?);
            let symbols = elf.section(section.link)?;
            let names = elf.section(symbols.link)?;
            let at = symbols
                .offset
                .checked_add(u64::from(number) * SYMBOL_BYTES as u64)?;
            let start = elf.u32(at)? as usize;
            let names = elf.at(names.offset, names.size)?;
            (number != 0 && c_string(names, start)? == name).then_some(())
        };
        self.sections().filter(|s| s.ty == SHT_RELA).any(|section| {
            let entries = elf.at(section.offset, section.size).unwrap_or(&[]);
            let mut entries = entries.chunks_exact(RELOCATION_BYTES);
            entries.any(|entry| is_it(&section, entry).is_some())
        })
    }

    /// Names of the shared libraries that it is linked to.
    pub fn needed(&self) -> impl Iterator<Item = &'a [u8]> {
        let elf = *self;
        let tables = self.sections().filter(|s| s.ty == SHT_DYNAMIC);
        tables.flat_map(move |section| {
            let (entries, names) = elf.entries_and_names(&section);
            entries.chunks_exact(16).filter_map(move |entry| {
                let (tag, value) = entry.split_at(8);
                let start = usize::try_from(u64::from_le_bytes(value.try_into().ok()?)).ok()?;
                (tag == DT_NEEDED.to_le_bytes()).then(|| c_string(names, start))?
            })
        })
    }

    /// The bytes of a table, and those of the section that has its names.
    fn entries_and_names(&self, table: &Section) -> (&'a [u8], &'a [u8]) {
        let bytes = |section: &Section| self.at(section.offset, section.size).unwrap_or(&[]);
        let names = self.section(table.link);
        (bytes(table), names.as_ref().map_or(&[], bytes))
    }

    fn at(&self, offset: u64, size: u64) -> Option<&'a [u8]> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(size).ok()?)?;
        self.bytes.get(start..end)
    }

    fn u16(&self, offset: u64) -> Option<u16> {
        Some(u16::from_le_bytes(self.at(offset, 2)?.try_into().ok()?))
    }

    fn u32(&self, offset: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.at(offset, 4)?.try_into().ok()?))
    }

    fn u64(&self, offset: u64) -> Option<u64> {
        Some(u64::from_le_bytes(self.at(offset, 8)?.try_into().ok()?))
    }

    fn section(&self, number: u32) -> Option<Section> {
        let (table, size) = (self.u64(40)?, self.u16(58)?);
        let at = table.checked_add(u64::from(number) * u64::from(size))?;
        let header = self.at(at, SECTION_HEADER_BYTES)?;
        let u32_at = |at: usize| Some(u32::from_le_bytes(*header.get(at..)?.first_chunk()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(*header.get(at..)?.first_chunk()?));
        Some(Section {
            name: u32_at(0)?,
            ty: u32_at(4)?,
            address: u64_at(16)?,
            offset: u64_at(24)?,
            size: u64_at(32)?,
            link: u32_at(40)?,
        })
    }

    fn sections(&self) -> impl Iterator<Item = Section> {
        let elf = *self;
        let count = self.u16(60).unwrap_or(0);
        (0..u32::from(count)).filter_map(move |i| elf.section(i))
    }
}

impl Table {
    fn number(self) -> u32 {
        match self {
            Table::All => SHT_SYMTAB,
            Table::Dynamic => SHT_DYNSYM,
        }
    }
}

fn symbol<'a>(entry: &[u8], names: &'a [u8]) -> Option<Symbol<'a>> {
    let name = u32::from_le_bytes(*entry.first_chunk()?) as usize;
    let is_defined = entry[6] != 0 || entry[7] != 0;
    let kind = entry[4] & 15;
    is_defined.then_some(())?;
    Some(Symbol {
        name: c_string(names, name)?,
        address: u64::from_le_bytes(*entry.get(8..)?.first_chunk()?),
        bytes: u64::from_le_bytes(*entry.get(16..)?.first_chunk()?),
        is_function: kind == STT_FUNC || kind == STT_GNU_IFUNC,
    })
}

fn c_string(names: &[u8], start: usize) -> Option<&[u8]> {
    names.get(start..)?.split(|&byte| byte == 0).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_described_as_it_is() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let elf = Elf::new(&bytes).unwrap();
        assert_eq!(elf.machine(), OUR_MACHINE);
        let interpreter = String::from_utf8_lossy(elf.interpreter().unwrap());
        assert!(interpreter.contains("ld-"), "{interpreter}");
        assert!(elf.needed().any(|name| name.starts_with(b"libc.so")));
        let main = elf
            .symbols(Table::All)
            .find(|symbol| symbol.name == b"main");
        let main = main.expect("a test program is not stripped");
        assert!(
            main.is_function && main.address > 0 && main.bytes > 0,
            "{main:?}"
        );
        // It uses functions of libc's, and defines none.
        assert!(elf.symbols(Table::Dynamic).all(|s| s.name != b"write"));
        assert!(elf.relocates(b"write") && !elf.relocates(b"no_such_function"));
        let (text, code) = elf.section_named(b".text").unwrap();
        let is_loaded = |segment: Segment| {
            let addresses = segment.address..segment.address + segment.bytes;
            segment.is_code && addresses.contains(&text)
        };
        assert!(elf.loaded().any(is_loaded) && !code.is_empty());
        assert!((text..text + code.len() as u64).contains(&main.address));
        assert_eq!(elf.section_named(b".no_such_section"), None);
    }

    #[test]
    fn headers_that_lie_are_survived() {
        let this = std::fs::read("/bin/sh").unwrap();
        let read = |bytes: &[u8]| {
            if let Ok(elf) = Elf::new(bytes) {
                let _ = (elf.machine(), elf.interpreter());
                let _ = (elf.loaded().count(), elf.section_named(b".eh_frame"));
                let _ = (elf.needed().count(), elf.symbols(Table::Dynamic).count());
            }
        };
        (0..this.len().min(4096))
            .step_by(7)
            .for_each(|cut| read(&this[..cut]));
        for at in 0..64 {
            let mut bytes = this.clone();
            bytes[at] = 0xff;
            read(&bytes);
        }
        let mut bytes = this;
        bytes[4] = 1;
        assert_eq!(Elf::new(&bytes).err(), Some(NotElf::Is32Bit));
        assert_eq!(Elf::new(b"\x7fELF").err(), Some(NotElf::Other));
    }
}
