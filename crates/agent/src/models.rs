//! Which GGUF files the program loaded, and where a weight lies in them.
//!
//! The library itself read the header; it is asked for names and offsets when it
//! has, so that nothing is parsed twice. Files get their number in the run
//! (`log/models.txt`, one path a line, shared by all processes of the run) when
//! the first graph is met, in the order in which they were loaded.

use std::{
    collections::HashMap,
    ffi::{CStr, c_char, c_void},
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::{
        fd::AsRawFd,
        unix::{ffi::OsStrExt, fs::FileExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
};

use ggml::Tensor;
use trace::template::FilePlace;

use crate::{library::Scope, lock::Lock, settings};

/// Its name in the log folder.
const MODELS: &str = "models.txt";
/// Bytes that are compared to tell two models of one shape apart.
const COMPARED_BYTES: usize = 256;

static LOADED: Lock<Vec<Loaded>> = Lock::new(Vec::new());

struct Loaded {
    path: PathBuf,
    inode: u64,
    /// Absolute offsets in the file.
    offsets: HashMap<Vec<u8>, u64>,
    /// Its line in [`MODELS`].
    number: Option<u32>,
}

/// For `fork`.
pub fn take_lock() {
    LOADED.take();
}

pub fn release_lock() {
    LOADED.release();
}

/// Notes the file whose header the library has just read into `gguf`.
///
/// # Safety
/// `gguf` is a live `gguf_context` of the library that `caller` uses.
pub unsafe fn note(path: &Path, gguf: *mut c_void, caller: usize) {
    // SAFETY: as promised by the caller.
    let Some(offsets) = (unsafe { offsets(gguf, caller) }) else {
        return;
    };
    // Before the program changes its folder.
    let Ok(path) = fs::canonicalize(path) else {
        return;
    };
    let Ok(about) = fs::metadata(&path) else {
        return;
    };
    LOADED.with(|loaded| match loaded.iter_mut().find(|l| l.path == path) {
        Some(known) => {
            known.inode = about.ino();
            known.offsets = offsets;
        }
        None => loaded.push(Loaded {
            path,
            inode: about.ino(),
            offsets,
            number: None,
        }),
    });
}

/// Where a root tensor lies in the files that are loaded.
pub fn place_of(tensor: Tensor<'_>) -> Option<FilePlace> {
    let name = tensor.name();
    let place = LOADED.with(|loaded| {
        let mut candidates = loaded.iter().enumerate().filter_map(|(index, file)| {
            let offset = *file.offsets.get(name)?;
            Some((index, offset))
        });
        let first = candidates.next()?;
        let rest: Vec<_> = candidates.collect();
        let (index, file_offset) = if rest.is_empty() {
            first
        } else {
            let all: Vec<_> = [first].into_iter().chain(rest).collect();
            choose(loaded, &all, tensor)
        };
        Some((index, file_offset))
    });
    let (index, file_offset) = place?;
    let file = LOADED.with(|loaded| {
        if loaded[index].number.is_none() {
            number_all(loaded);
        }
        loaded[index].number
    })?;
    Some(FilePlace { file, file_offset })
}

/// Of several files with a tensor of this name: the one that is mapped where the
/// tensor lies, else the one with the same bytes, else the one loaded last.
fn choose(loaded: &[Loaded], candidates: &[(usize, u64)], tensor: Tensor<'_>) -> (usize, u64) {
    let address = tensor.data() as u64;
    let mapped = mapping(address);
    let by_mapping = candidates.iter().find(|&&(index, offset)| {
        mapped.is_some_and(|m| m.inode == loaded[index].inode && m.file_offset == offset)
    });
    let by_bytes = || {
        let bytes = tensor.nbytes() as usize;
        let length = COMPARED_BYTES.min(bytes);
        let at = bytes / 2 - length / 2;
        // SAFETY: weights are readable while a graph that uses them is computed.
        let ours = unsafe { std::slice::from_raw_parts((address as *const u8).add(at), length) };
        candidates.iter().find(|&&(index, offset)| {
            let mut theirs = vec![0; length];
            File::open(&loaded[index].path)
                .and_then(|file| file.read_exact_at(&mut theirs, offset + at as u64))
                .is_ok_and(|()| theirs == ours)
        })
    };
    *by_mapping
        .or_else(by_bytes)
        .unwrap_or(&candidates[candidates.len() - 1])
}

#[derive(Clone, Copy)]
struct Mapped {
    inode: u64,
    file_offset: u64,
}

/// The file that is mapped at an address, by `/proc/self/maps`.
fn mapping(address: u64) -> Option<Mapped> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        let offset = number(fields.nth(1)?)?;
        let inode = fields.nth(1)?.parse().ok()?;
        ((start..end).contains(&address) && inode != 0).then_some(Mapped {
            inode,
            file_offset: offset + (address - start),
        })
    })
}

/// Gives every loaded file its number in the run.
fn number_all(loaded: &mut [Loaded]) {
    let Some(settings) = settings::get() else {
        return;
    };
    let open = OpenOptions::new()
        .create(true)
        .read(true)
        .append(true)
        .open(settings.log_directory.join(MODELS));
    let Ok(mut file) = open else {
        return;
    };
    // SAFETY: a descriptor of ours; another process holds the lock for a moment.
    // It goes with the descriptor.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
        return;
    }
    let mut text = Vec::new();
    if file.read_to_end(&mut text).is_err() {
        return;
    }
    let mut lines: Vec<Vec<u8>> = text
        .split(|&b| b == b'\n')
        .filter(|line| !line.is_empty())
        .map(<[u8]>::to_vec)
        .collect();
    for known in loaded.iter_mut().filter(|l| l.number.is_none()) {
        let line = known.path.as_os_str().as_bytes();
        let at = lines.iter().position(|l| l == line).or_else(|| {
            let written = file.write_all(&[line, b"\n"].concat());
            lines.push(line.to_vec());
            written.ok().map(|()| lines.len() - 1)
        });
        known.number = at.and_then(|at| u32::try_from(at).ok());
    }
}

/// By the library's own functions; indices were 32 bits wide before 2025, which
/// is the same in a register.
unsafe fn offsets(gguf: *mut c_void, caller: usize) -> Option<HashMap<Vec<u8>, u64>> {
    let scope = Scope::around(caller);
    let find = |name| Some(scope.find(name)).filter(|function| !function.is_null());
    let count = find(c"gguf_get_n_tensors")?;
    let data_offset = find(c"gguf_get_data_offset")?;
    let name = find(c"gguf_get_tensor_name")?;
    let offset = find(c"gguf_get_tensor_offset")?;
    // SAFETY: the C functions of these names, as in gguf.h (and ggml.h before).
    unsafe {
        type Get<T> = unsafe extern "C" fn(*mut c_void) -> T;
        type GetAt<T> = unsafe extern "C" fn(*mut c_void, i64) -> T;
        let count = std::mem::transmute::<*mut c_void, Get<i64>>(count)(gguf) as i32;
        let data = std::mem::transmute::<*mut c_void, Get<usize>>(data_offset)(gguf) as u64;
        let name: GetAt<*const c_char> = std::mem::transmute(name);
        let offset: GetAt<usize> = std::mem::transmute(offset);
        let tensors = (0..i64::from(count)).map(|i| {
            let name = CStr::from_ptr(name(gguf, i)).to_bytes().to_vec();
            (name, data + offset(gguf, i) as u64)
        });
        (count > 0).then(|| tensors.collect())
    }
}
