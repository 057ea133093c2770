//! Which GGUF files the program loaded, and where a weight lies in them.
//!
//! The library itself read the header; it is asked for names and offsets when it
//! has, so that nothing is parsed twice. (Where llama.cpp is linked into the program, the
//! header is read again: its functions may have no names.) Files get their number in the run
//! (`log/models.txt`, one path a line, shared by all processes of the run) when
//! the first graph is met, in the order in which they were loaded.

use std::{
    cell::Cell,
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
use support::proc;
use trace::template::FilePlace;

use crate::{library::Scope, lock::Lock, settings};

/// Its name in the log folder.
const MODELS: &str = "models.txt";
/// How many bytes each had then, for who wonders why the program died.
const MODEL_SIZES: &str = "model-sizes.txt";
/// Bytes that are compared to tell two models of one shape apart.
const COMPARED_BYTES: usize = 256;

static LOADED: Lock<Vec<Loaded>> = Lock::new(Vec::new());

struct Loaded {
    path: PathBuf,
    inode: u64,
    /// Absolute offsets in the file.
    offsets: HashMap<Vec<u8>, u64>,
    /// Files of one split model have the same.
    model: usize,
    /// Its line in [`MODELS`].
    number: Option<u32>,
}

thread_local! {
    /// The model of the weight that was last found for sure on this thread.
    static LAST_MODEL: Cell<Option<usize>> = const { Cell::new(None) };
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
    if let Some(offsets) = unsafe { offsets(gguf, caller) } {
        add(path, offsets);
    }
}

/// Notes a file whose header the program is about to read, by reading it ourselves.
pub fn note_header(path: &Path) {
    let read = || {
        let file = File::open(path).ok()?;
        let bytes = file.metadata().ok()?.len();
        gguf::header::read_header(&file, path, bytes).ok()
    };
    // What is no model will be refused by the program.
    if let Some(header) = read() {
        let tensors = header.tensors.iter();
        let places = tensors.map(|tensor| (tensor.name.as_bytes().to_vec(), tensor.file_offset));
        add(path, places.collect());
    }
}

fn add(path: &Path, offsets: HashMap<Vec<u8>, u64>) {
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
        None => {
            let last = loaded.last();
            let follows = last.is_some_and(|last| is_next_part(&last.path, &path));
            let model = last.map_or(0, |last| last.model + usize::from(!follows));
            loaded.push(Loaded {
                path,
                inode: about.ino(),
                offsets,
                model,
                number: None,
            });
        }
    });
}

/// Whether two files are of one split model.
fn is_next_part(before: &Path, path: &Path) -> bool {
    let stem = |path: &Path| {
        let text = path.to_string_lossy().into_owned();
        let (front, _) = text.rsplit_once("-of-")?;
        Some(front.rsplit_once('-')?.0.to_owned())
    };
    stem(path).is_some_and(|stem_of_path| stem(before) == Some(stem_of_path))
}

/// A file that the program has loaded.
pub struct LoadedFile {
    /// Canonical.
    pub path: PathBuf,
    pub bytes: u64,
    /// In the run.
    pub number: u32,
}

/// The files that are loaded, numbered; for the audit.
pub fn loaded() -> Vec<LoadedFile> {
    LOADED.with(|loaded| {
        number_all(loaded);
        let described = loaded.iter().filter_map(|file| {
            Some(LoadedFile {
                path: file.path.clone(),
                bytes: fs::metadata(&file.path).ok()?.len(),
                number: file.number?,
            })
        });
        described.collect()
    })
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
/// tensor lies, else the only one with the same bytes. Weights that were copied
/// into another order are in neither; they go with the weights of their graph that
/// were found before (the embedding, which is first, is never copied so).
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
        // A weight may lie in the memory of a device.
        if !is_readable(address + at as u64, length as u64) {
            return None;
        }
        // SAFETY: just seen to be mapped, and weights stay where they are while a graph that
        // uses them is computed.
        let ours = unsafe { std::slice::from_raw_parts((address as *const u8).add(at), length) };
        let mut same = candidates.iter().filter(|&&(index, offset)| {
            let mut theirs = vec![0; length];
            File::open(&loaded[index].path)
                .and_then(|file| file.read_exact_at(&mut theirs, offset + at as u64))
                .is_ok_and(|()| theirs == ours)
        });
        same.next().filter(|_| same.next().is_none())
    };
    if let Some(&found) = by_mapping.or_else(by_bytes) {
        LAST_MODEL.set(Some(loaded[found.0].model));
        return found;
    }
    let is_of_last = |&&(index, _): &&(usize, u64)| Some(loaded[index].model) == LAST_MODEL.get();
    let last_loaded = &candidates[candidates.len() - 1];
    *candidates.iter().find(is_of_last).unwrap_or(last_loaded)
}

#[derive(Clone, Copy)]
struct Mapped {
    inode: u64,
    file_offset: u64,
}

/// The file that is mapped at an address.
fn mapping(address: u64) -> Option<Mapped> {
    let maps = proc::own_maps().ok()?;
    let mapping = proc::mappings(&maps).find(|m| m.addresses().contains(&address))?;
    mapping.is_of_file().then(|| Mapped {
        inode: mapping.inode,
        file_offset: mapping.file_offset + (address - mapping.start),
    })
}

fn is_readable(address: u64, bytes: u64) -> bool {
    let Ok(maps) = proc::own_maps() else {
        return false;
    };
    let holds = |m: &proc::Mapping| m.start <= address && address.saturating_add(bytes) <= m.end;
    proc::mappings(&maps).any(|m| holds(&m) && m.protection & libc::PROT_READ != 0)
}

/// Gives every loaded file its number in the run.
fn number_all(loaded: &mut [Loaded]) {
    if let Some(settings) = settings::get() {
        number_in(&settings.log_directory, loaded);
    }
}

fn number_in(log_directory: &Path, loaded: &mut [Loaded]) {
    let open = OpenOptions::new()
        .create(true)
        .read(true)
        .append(true)
        .open(log_directory.join(MODELS));
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
            note_size(log_directory, &known.path);
            lines.push(line.to_vec());
            written.ok().map(|()| lines.len() - 1)
        });
        known.number = at.and_then(|at| u32::try_from(at).ok());
    }
}

/// Under the lock of [`MODELS`], so that lines agree.
fn note_size(log_directory: &Path, path: &Path) {
    let bytes = fs::metadata(path).map_or(0, |about| about.len());
    let _ = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log_directory.join(MODEL_SIZES))
        .and_then(|mut file| file.write_all(format!("{bytes}\n").as_bytes()));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(paths: &[&str]) -> Vec<Loaded> {
        let loaded = |path: &&str| Loaded {
            path: PathBuf::from(path),
            inode: 0,
            offsets: HashMap::new(),
            model: 0,
            number: None,
        };
        paths.iter().map(loaded).collect()
    }

    fn numbers(loaded: &[Loaded]) -> Vec<u32> {
        loaded.iter().map(|l| l.number.unwrap()).collect()
    }

    /// An empty folder that goes when the test does.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let name = format!("tensorscope-agent-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_have_one_number_in_all_processes() {
        let folder = Folder::new("numbers");
        let mut first = loaded(&["/m/a.gguf", "/m/b.gguf"]);
        number_in(&folder.0, &mut first);
        assert_eq!(numbers(&first), [0, 1]);
        let mut second = loaded(&["/m/c d.gguf", "/m/b.gguf"]);
        number_in(&folder.0, &mut second);
        assert_eq!(numbers(&second), [2, 1]);
        // What has a number keeps it; what was loaded since gets the next.
        first.extend(loaded(&["/m/e.gguf", "/m/c d.gguf"]));
        number_in(&folder.0, &mut first);
        assert_eq!(numbers(&first), [0, 1, 3, 2]);
        let text = fs::read_to_string(folder.0.join(MODELS)).unwrap();
        assert_eq!(text, "/m/a.gguf\n/m/b.gguf\n/m/c d.gguf\n/m/e.gguf\n");
    }

    #[test]
    fn files_that_are_numbered_at_once_do_not_share_a_number() {
        let folder = Folder::new("at-once");
        let paths: Vec<String> = (0..40).map(|n| format!("/m/{}.gguf", n % 10)).collect();
        let found: Vec<(String, u32)> = std::thread::scope(|scope| {
            let threads: Vec<_> = paths
                .chunks(10)
                .map(|paths| {
                    let folder = &folder.0;
                    scope.spawn(move || {
                        let found = paths.iter().map(|path| {
                            let mut one = loaded(&[path]);
                            number_in(folder, &mut one);
                            (path.clone(), numbers(&one)[0])
                        });
                        found.collect::<Vec<_>>()
                    })
                })
                .collect();
            let joined = threads.into_iter().flat_map(|t| t.join().unwrap());
            joined.collect()
        });
        let text = fs::read_to_string(folder.0.join(MODELS)).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 10, "{text}");
        for (path, number) in found {
            assert_eq!(lines[number as usize], path);
        }
    }

    #[test]
    fn a_folder_that_is_gone_leaves_files_without_a_number() {
        let mut files = loaded(&["/m/a.gguf"]);
        number_in(Path::new("/no/such/folder"), &mut files);
        assert_eq!(files[0].number, None);
    }

    #[test]
    fn a_mapped_address_names_its_file_and_offset() {
        let folder = Folder::new("mapping");
        let path = folder.0.join("file");
        fs::write(&path, vec![7; 3 * 4096]).unwrap();
        let file = File::open(&path).unwrap();
        // SAFETY: a fresh mapping of two pages of a file that has three.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                2 * 4096,
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                4096,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        let found = mapping(base as u64 + 5000).unwrap();
        assert_eq!(found.inode, file.metadata().unwrap().ino());
        assert_eq!(found.file_offset, 4096 + 5000);
        // SAFETY: mapped above, and not used any more.
        unsafe { libc::munmap(base, 2 * 4096) };
        // Memory that is of no file.
        let heap = Box::new(0u64);
        assert!(mapping(std::ptr::from_ref(&*heap) as u64).is_none());
        assert!(mapping(1).is_none());
    }
}
