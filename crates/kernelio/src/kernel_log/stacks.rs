//! Which functions had called each other, in `log/stacks`: text, a line each.
//!
//! ```text
//! tensorscope stacks 1
//! f ggml_compute_forward_mul_mat<TAB>libggml-cpu.so    function 0
//! f main<TAB>llama-cli                                 function 1
//! s 0 1       stack 1: function 1, called by nothing
//! s 1 0       stack 2: function 0, called by stack 1
//! ```
//!
//! Both are numbered in the order of their lines; stack 0 is the empty one. A stack names
//! only stacks and functions before it, so that a file that was cut off anywhere is a
//! beginning of itself.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use crate::error::KernelError;

const FIRST_LINE: &str = "tensorscope stacks 1";

/// A function, and the file that it is in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    pub name: String,
    pub module: String,
}

/// Appends what is new.
#[derive(Debug)]
pub struct StackWriter {
    path: PathBuf,
    file: BufWriter<File>,
    functions: HashMap<Function, u32>,
    stacks: HashMap<(u32, u32), u32>,
}

impl StackWriter {
    /// Makes the file, which must not exist.
    pub fn create(path: &Path) -> Result<StackWriter, KernelError> {
        let failed = KernelError::io(path, "cannot create");
        let file = OpenOptions::new().write(true).create_new(true).open(path);
        let mut writer = StackWriter {
            path: path.to_owned(),
            file: BufWriter::new(file.map_err(failed)?),
            functions: HashMap::new(),
            stacks: HashMap::new(),
        };
        writer.line(FIRST_LINE)?;
        writer.flush()?;
        Ok(writer)
    }

    pub fn function(&mut self, function: Function) -> Result<u32, KernelError> {
        if let Some(number) = self.functions.get(&function) {
            return Ok(*number);
        }
        let number = self.functions.len() as u32;
        let plain = |text: &str| text.replace(['\t', '\n'], " ");
        self.line(&format!(
            "f {}\t{}",
            plain(&function.name),
            plain(&function.module)
        ))?;
        self.functions.insert(function, number);
        Ok(number)
    }

    /// The stack of `function`, called by `caller`.
    pub fn stack(&mut self, caller: u32, function: u32) -> Result<u32, KernelError> {
        if let Some(number) = self.stacks.get(&(caller, function)) {
            return Ok(*number);
        }
        let number = self.stacks.len() as u32 + 1;
        self.line(&format!("s {caller} {function}"))?;
        self.stacks.insert((caller, function), number);
        Ok(number)
    }

    pub fn flush(&mut self) -> Result<(), KernelError> {
        let failed = KernelError::io(&self.path, "cannot write");
        self.file.flush().map_err(failed)
    }

    fn line(&mut self, line: &str) -> Result<(), KernelError> {
        let failed = KernelError::io(&self.path, "cannot write");
        writeln!(self.file, "{line}").map_err(failed)
    }
}

/// All stacks of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stacks {
    functions: Vec<Function>,
    /// Caller and function of stack 1 and on.
    stacks: Vec<(u32, u32)>,
}

impl Stacks {
    pub fn read(path: &Path) -> Result<Stacks, KernelError> {
        let text = std::fs::read(path).map_err(KernelError::io(path, "cannot read"))?;
        Stacks::parse(&text, path)
    }

    fn parse(text: &[u8], path: &Path) -> Result<Stacks, KernelError> {
        let mut stacks = Stacks::default();
        let mut at = 0;
        let mut rest = text;
        // What a kill has left of a last line is none.
        while let Some(length) = rest.iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(&rest[..length]);
            stacks
                .line(at == 0, &line)
                .map_err(|what| KernelError::Damaged {
                    path: path.to_owned(),
                    at,
                    what,
                })?;
            at += length as u64 + 1;
            rest = &rest[length + 1..];
        }
        Ok(stacks)
    }

    fn line(&mut self, is_first: bool, line: &str) -> Result<(), &'static str> {
        if is_first {
            return match line == FIRST_LINE {
                true => Ok(()),
                false => Err("another kind of file"),
            };
        }
        match line.split_once(' ') {
            Some(("f", rest)) => {
                let (name, module) = rest.split_once('\t').ok_or("a function without a file")?;
                self.functions.push(Function {
                    name: name.to_owned(),
                    module: module.to_owned(),
                });
                Ok(())
            }
            Some(("s", rest)) => {
                let (caller, function) = rest.split_once(' ').ok_or("half a stack")?;
                let number = |text: &str| text.parse::<u32>().map_err(|_| "no number");
                let (caller, function) = (number(caller)?, number(function)?);
                if caller as usize > self.stacks.len() || function as usize >= self.functions.len()
                {
                    return Err("a stack of what is not there");
                }
                self.stacks.push((caller, function));
                Ok(())
            }
            _ => Err("an unknown line"),
        }
    }

    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// Numbers of the functions of a stack, the innermost one first. One that is not there
    /// has none.
    pub fn inwards_out(&self, stack: u32) -> impl Iterator<Item = u32> {
        let mut next = stack;
        std::iter::from_fn(move || {
            let (caller, function) = *self.stacks.get(next.checked_sub(1)? as usize)?;
            next = caller;
            Some(function)
        })
    }

    /// The innermost function.
    pub fn innermost(&self, stack: u32) -> Option<&Function> {
        let function = self.inwards_out(stack).next()?;
        self.functions.get(function as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> Function {
        Function {
            name: name.to_owned(),
            module: "lib.so".to_owned(),
        }
    }

    #[test]
    fn what_is_written_is_read_and_the_same_stack_has_one_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stacks");
        let mut writer = StackWriter::create(&path).unwrap();
        let main = writer.function(function("main")).unwrap();
        let odd = writer.function(function("a\tb\nc d")).unwrap();
        let outer = writer.stack(0, main).unwrap();
        let inner = writer.stack(outer, odd).unwrap();
        assert_eq!(writer.stack(outer, odd).unwrap(), inner);
        assert_eq!(writer.function(function("main")).unwrap(), main);
        writer.flush().unwrap();
        let stacks = Stacks::read(&path).unwrap();
        assert_eq!(stacks.len(), 2);
        assert_eq!(stacks.inwards_out(inner).collect::<Vec<_>>(), [odd, main]);
        assert_eq!(stacks.innermost(inner), Some(&function("a b c d")));
        assert_eq!(stacks.innermost(0), None);
        assert_eq!(stacks.innermost(99), None);
        assert!(StackWriter::create(&path).is_err());
    }

    #[test]
    fn a_file_that_was_cut_off_is_a_beginning_and_nonsense_has_a_place() {
        let text = b"tensorscope stacks 1\nf main\tx\ns 0 0\ns 1 0\n";
        let parse = |text: &[u8]| Stacks::parse(text, Path::new("stacks"));
        for cut in 0..text.len() {
            assert!(parse(&text[..cut]).is_ok(), "{cut}");
        }
        let check = |text: &[u8], expect: &str| {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.ends_with(expect), "{error}");
        };
        check(b"other\n", "another kind of file at byte 0");
        check(
            b"tensorscope stacks 1\ns 0 0\n",
            "a stack of what is not there at byte 21",
        );
        check(
            b"tensorscope stacks 1\nf x\n",
            "a function without a file at byte 21",
        );
        check(
            b"tensorscope stacks 1\nf m\tx\ns 5 0\n",
            "a stack of what is not there at byte 27",
        );
        check(b"tensorscope stacks 1\n?\n", "an unknown line at byte 21");
    }
}
