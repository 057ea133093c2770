//! What code each process has in memory, whose an address is, and who called whom.
//!
//! The kernel gives registers and the top of a thread's stack. llama.cpp is compiled
//! without frame pointers, so that the callers are found by the tables that exceptions use
//! (`.eh_frame`, by crate `framehop`), and where a file has none, by frame pointers.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use framehop::{
    CacheNative, ExplicitModuleSectionInfo, MayAllocateDuringUnwind, Module, UnwindRegsNative,
    Unwinder as _, UnwinderNative,
};
use support::proc;

use super::code::{CodeFile, Part};
use crate::kernel_log::stacks::Function;

/// More are callers of callers that nobody reads.
const MAX_FRAMES: usize = 96;
/// Of files that were found unreadable or replaced, none is looked at again.
type Files = HashMap<PathBuf, Arc<CodeFile>>;

/// The registers that unwinding begins with.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Registers {
    pub instruction: u64,
    pub stack: u64,
    pub frame: u64,
    /// Where a function returns to, on AArch64.
    #[cfg_attr(
        not(target_arch = "aarch64"),
        expect(dead_code, reason = "x86-64 keeps it on the stack")
    )]
    pub link: u64,
}

#[derive(Default)]
pub(super) struct Programs {
    by_pid: HashMap<u32, Program>,
    files: Files,
    cache: CacheNative<MayAllocateDuringUnwind>,
}

/// A process.
#[derive(Clone, Default)]
struct Program {
    unwinder: UnwinderNative<Part, MayAllocateDuringUnwind>,
    mapped: Vec<MappedCode>,
}

#[derive(Clone)]
struct MappedCode {
    start: u64,
    end: u64,
    bias: Option<u64>,
    file: Arc<CodeFile>,
}

impl std::fmt::Debug for Programs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Programs")
            .field("processes", &self.by_pid.len())
            .field("files", &self.files.len())
            .finish_non_exhaustive()
    }
}

impl Programs {
    /// Code at new addresses.
    pub fn map(&mut self, pid: u32, start: u64, end: u64, file_offset: u64, path: &Path) {
        // One that is not known yet is read whole when it is first needed.
        if let Some(program) = self.by_pid.get_mut(&pid) {
            program.map(&mut self.files, start, end, file_offset, path);
        }
    }

    /// Reads what a process has mapped and the names of its functions, which takes long for
    /// large files.
    pub fn prepare(&mut self, pid: u32) {
        let program = program(&mut self.by_pid, &mut self.files, pid);
        for code in &program.mapped {
            code.file.prepare();
        }
    }

    /// Another program begins.
    pub fn exec(&mut self, pid: u32) {
        self.by_pid.remove(&pid);
    }

    /// Addresses of a thread's calls, the innermost first; return addresses less one, so
    /// that each lies in its call.
    pub fn unwind(&mut self, pid: u32, registers: Registers, stack: &[u8], calls: &mut Vec<u64>) {
        let program = program(&mut self.by_pid, &mut self.files, pid);
        let mut read = |address: u64| -> Result<u64, ()> {
            let at = address.checked_sub(registers.stack).ok_or(())?;
            let at = usize::try_from(at).map_err(|_| ())?;
            let bytes = stack
                .get(at..)
                .and_then(|rest| rest.first_chunk())
                .ok_or(())?;
            Ok(u64::from_ne_bytes(*bytes))
        };
        let begin = native(registers);
        let mut frames =
            program
                .unwinder
                .iter_frames(registers.instruction, begin, &mut self.cache, &mut read);
        while let Ok(Some(frame)) = frames.next() {
            calls.push(frame.address_for_lookup());
            if calls.len() >= MAX_FRAMES {
                break;
            }
        }
    }

    /// Whose an address is.
    pub fn function(&mut self, pid: u32, address: u64) -> Function {
        let program = program(&mut self.by_pid, &mut self.files, pid);
        let mut mapped = program.mapped.iter();
        let found = mapped.find(|code| (code.start..code.end).contains(&address));
        let Some(code) = found else {
            return Function {
                name: "[unknown]".to_owned(),
                module: "[unknown]".to_owned(),
            };
        };
        let name = code
            .bias
            .and_then(|bias| code.file.function(address.wrapping_sub(bias)));
        Function {
            name: name.unwrap_or_else(|| format!("[{}]", code.file.name.trim_matches(['[', ']']))),
            module: code.file.name.clone(),
        }
    }
}

fn native(registers: Registers) -> UnwindRegsNative {
    #[cfg(target_arch = "aarch64")]
    return UnwindRegsNative::new(registers.link, registers.stack, registers.frame);
    #[cfg(not(target_arch = "aarch64"))]
    UnwindRegsNative::new(registers.instruction, registers.stack, registers.frame)
}

fn program<'a>(by_pid: &'a mut HashMap<u32, Program>, files: &mut Files, pid: u32) -> &'a Program {
    by_pid.entry(pid).or_insert_with(|| {
        let mut program = Program::default();
        let maps = proc::maps(pid).unwrap_or_default();
        for line in proc::mappings(&maps).filter(|m| m.protection & libc::PROT_EXEC != 0) {
            let path = PathBuf::from(String::from_utf8_lossy(line.path).into_owned());
            program.map(files, line.start, line.end, line.file_offset, &path);
        }
        program
    })
}

impl Program {
    fn map(&mut self, files: &mut Files, start: u64, end: u64, file_offset: u64, path: &Path) {
        // What lies there now was unmapped.
        let gone: Vec<u64> = self
            .mapped
            .iter()
            .filter(|code| code.start < end && start < code.end)
            .map(|code| code.start)
            .collect();
        for old in gone {
            self.unwinder.remove_module(old);
            self.mapped.retain(|code| code.start != old);
        }
        let file = files
            .entry(path.to_owned())
            .or_insert_with(|| Arc::new(CodeFile::open(path)));
        let bias = file.bias(start, file_offset);
        if let Some(bias) = bias {
            self.unwinder.add_module(module(file, start..end, bias));
        }
        self.mapped.push(MappedCode {
            start,
            end,
            bias,
            file: Arc::clone(file),
        });
    }
}

fn module(file: &CodeFile, range: std::ops::Range<u64>, bias: u64) -> Module<Part> {
    let (text_svma, text) = file.section(b".text").unzip();
    let (eh_frame_svma, eh_frame) = file.section(b".eh_frame").unzip();
    let (eh_frame_hdr_svma, eh_frame_hdr) = file.section(b".eh_frame_hdr").unzip();
    let (got_svma, _) = file.section(b".got").unzip();
    let sections = ExplicitModuleSectionInfo {
        base_svma: 0,
        text_svma,
        text,
        got_svma,
        eh_frame_svma,
        eh_frame,
        eh_frame_hdr_svma,
        eh_frame_hdr,
        // What other systems have.
        stubs_svma: None,
        stub_helper_svma: None,
        unwind_info: None,
        debug_frame: None,
        text_segment_svma: None,
        text_segment: None,
    };
    Module::new(file.name.clone(), range, bias, sections)
}
