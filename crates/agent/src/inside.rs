//! Programs and libraries that have ggml linked into them, with its names or without.
//!
//! Their calls of ggml go straight to it, past the dynamic linker and so past us. When such
//! an object opens its first model (`fopen`, which is libc's and comes here first), its
//! functions are looked for and their entries changed ([`crate::patch`]):
//!
//! - by name, where the file still has its table of symbols;
//! - by text in a stripped one: the function that checks `cplan->n_threads > 0` is
//!   `ggml_graph_compute`, whatever compiler made it. What must be one function and is none
//!   or several is refused, and so is a llama.cpp before 2026-05, whose ways cannot be told
//!   without names.
//!
//! An object whose calls pass through the dynamic linker is left alone.

use std::{
    collections::{HashMap, HashSet},
    ffi::CStr,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicPtr, Ordering},
};

use support::elf::{Elf, Table};

use crate::{
    hooks,
    image::{Image, WaysInto},
    lock::Lock,
    models,
    patch::Page,
    process,
};

/// An object with ggml inside, whose entries are changed.
pub struct Inside {
    path: String,
    image: Image,
    /// Where functions are that can be called. In a stripped object those that were found.
    functions: HashMap<Vec<u8>, usize>,
    /// Where the functions whose entries were changed go on.
    originals: HashMap<&'static CStr, usize>,
    /// The names of ops, in a stripped object.
    op_names: Option<Vec<usize>>,
    is_new: bool,
}

/// Never freed. More than one is rare: two extensions of one program.
static OBJECTS: [AtomicPtr<Inside>; 8] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 8];
/// The start of each object that was judged.
static JUDGED: Lock<Vec<usize>> = Lock::new(Vec::new());

/// For `fork`.
pub fn take_lock() {
    JUDGED.take();
}

pub fn release_lock() {
    JUDGED.release();
}

pub fn objects() -> impl Iterator<Item = &'static Inside> {
    OBJECTS
        .iter()
        // SAFETY: never freed.
        .map_while(|object| unsafe { object.load(Ordering::Acquire).as_ref() })
}

/// The object that holds an address.
pub fn around(code: usize) -> Option<&'static Inside> {
    objects().find(|object| object.image.contains(code))
}

/// The program opened a model's file, from code at `caller`.
pub fn opened(path: &Path, caller: usize) {
    // Code of other processors is not changed; the launcher refuses such programs.
    if !cfg!(target_arch = "x86_64") {
        return;
    }
    let judged = JUDGED.with(|judged| {
        if around(caller).is_some() {
            return Ok(());
        }
        let Some(image) = Image::around(caller) else {
            return Ok(());
        };
        let start = image.range().0;
        if judged.contains(&start) {
            return Ok(());
        }
        judged.push(start);
        let path = path_of(&image);
        hook(image, &path).map_err(|reason| format!("{}: {reason}", path.display()))
    });
    if let Err(reason) = judged {
        process::refuse(&reason);
    }
    if around(caller).is_some() {
        models::note_header(path);
    }
}

fn path_of(image: &Image) -> PathBuf {
    match image.name.is_empty() {
        true => fs::read_link("/proc/self/exe").unwrap_or_else(|_| "/proc/self/exe".into()),
        false => PathBuf::from(image.name.to_string_lossy().into_owned()),
    }
}

/// Changes the entries of an object that needs it; `Err` when that cannot be done.
fn hook(image: Image, path: &Path) -> Result<(), String> {
    let is_program = image.name.is_empty();
    // The file of a running program may be gone from its folder.
    let file = fs::read(if is_program {
        Path::new("/proc/self/exe")
    } else {
        path
    });
    let file = file.unwrap_or_default();
    let names = Elf::new(&file).map_or(Names::None, |elf| names(&elf, is_program));
    let (functions, op_names) = match names {
        Names::PassThroughLinker => return Ok(()),
        Names::Of(functions) => {
            let places = functions.into_iter();
            let placed = places.map(|(name, place)| (name, image.bias.wrapping_add(place)));
            (placed.collect(), None)
        }
        Names::None if !image.has_bytes(b"\0cplan->n_threads > 0\0") => return Ok(()),
        Names::None => {
            let (functions, op_names) = by_text(&image)?;
            (functions, Some(op_names))
        }
    };
    let (page, originals) = prepare(&image, &functions)?;
    let inside = Inside {
        is_new: image.has_bytes(NEW_ENOUGH),
        path: path.display().to_string(),
        image,
        functions,
        originals,
        op_names,
    };
    let free = OBJECTS.iter().find(|o| o.load(Ordering::Acquire).is_null());
    let free = free.ok_or("more programs with ggml inside than can be told apart")?;
    // Whoever calls from now on finds where to go on.
    free.store(Box::into_raw(Box::new(inside)), Ordering::Release);
    // SAFETY: the object is opening its first model, so nothing computes in it; its other
    // threads, if it has any, are not in the first instructions of these functions.
    unsafe { page.patch() }
}

enum Names {
    /// Calls of ggml inside this object reach whoever is preloaded.
    PassThroughLinker,
    /// Every function of llama.cpp's, before relocation.
    Of(HashMap<Vec<u8>, usize>),
    None,
}

fn names(elf: &Elf, is_program: bool) -> Names {
    const COMPUTE: &[u8] = b"ggml_graph_compute";
    let is_exported = elf.symbols(Table::Dynamic).any(|s| s.name == COMPUTE);
    if is_exported && !is_program && elf.relocates(COMPUTE) {
        return Names::PassThroughLinker;
    }
    let table = match (elf.has_table(Table::All), is_exported) {
        (true, _) => Table::All,
        (false, true) => Table::Dynamic,
        (false, false) => return Names::None,
    };
    let is_theirs = |name: &[u8]| {
        let starts = [&b"ggml_"[..], b"gguf_", b"llama_", b"_ZN13llama_context"];
        starts.iter().any(|start| name.starts_with(start))
    };
    let functions: HashMap<Vec<u8>, usize> = elf
        .symbols(table)
        .filter(|symbol| symbol.is_function && is_theirs(symbol.name))
        .map(|symbol| (symbol.name.to_vec(), symbol.address as usize))
        .collect();
    match functions.contains_key(COMPUTE) {
        true => Names::Of(functions),
        false => Names::None,
    }
}

/// What is read of an environment variable that came with the newest way of executing
/// nodes that we know (crates/agent/src/library.rs); without names nothing else tells.
const NEW_ENOUGH: &[u8] = b"\0GGML_CPU_DISABLE_FUSION\0";

type ByText = (HashMap<Vec<u8>, usize>, Vec<usize>);

/// Of a stripped object: the functions that are hooked, and the names of ops.
fn by_text(image: &Image) -> Result<ByText, String> {
    let cannot = |what: &str| {
        format!(
            "llama.cpp is linked into it without its names, and {what}; \
             use a build that is not stripped, or one with shared libraries"
        )
    };
    if !image.has_bytes(NEW_ENOUGH) {
        return Err(cannot("it is older than 2026-05"));
    }
    let [compute, decode, decode_method, get_proc_address] = functions_with_texts(
        image,
        [
            &[
                "cplan->n_threads > 0",
                "cplan->work_size == 0 || cplan->work_data != NULL",
            ],
            &["%s: failed to decode, ret = %d\n"],
            &["%s: failed to find a memory slot for batch of size %d\n"],
            // The CPU's own, to which the one that is asked passes on.
            &[
                "ggml_backend_dev_get_extra_bufts",
                "ggml_backend_cpu_numa_init",
            ],
        ],
    );
    let compute = compute.ok_or_else(|| cannot("ggml_graph_compute was not found for sure"))?;
    let op_names = image.list_of_texts(&[b"NONE", b"DUP", b"ADD"], |name| {
        let is_of_op = |b: &u8| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b'_';
        !name.is_empty() && name.iter().all(is_of_op)
    });
    if op_names.is_empty() {
        return Err(cannot("the names of ops were not found"));
    }
    let functions = [
        (&b"ggml_graph_compute"[..], Some(compute)),
        (b"llama_decode", decode),
        (
            b"_ZN13llama_context6decodeERK15llama_batch_ext",
            decode_method,
        ),
        (b"ggml_backend_reg_get_proc_address", get_proc_address),
    ];
    let found = functions
        .into_iter()
        .filter_map(|(name, place)| Some((name.to_vec(), place?)));
    Ok((found.collect(), op_names))
}

/// For each list of texts the one function that refers to all of them.
fn functions_with_texts<const N: usize>(image: &Image, wanted: [&[&str]; N]) -> [Option<usize>; N] {
    let places = wanted.map(|texts| texts.iter().map(|text| image.texts(text)).collect());
    let all: Vec<usize> = places.iter().flatten().flatten().copied().collect();
    let references = image.references(&all);
    let mut parts: Vec<(usize, usize)> = references
        .iter()
        .filter_map(|&(from, _)| image.function_around(from))
        .collect();
    parts.sort_unstable();
    parts.dedup();
    let ways = image.ways_into(&parts);
    let function_at = |code: usize| {
        let at = parts
            .iter()
            .position(|part| (part.0..part.1).contains(&code))?;
        hot_part(image, parts[at].0, &ways[at])
    };
    places.map(|texts: Vec<Vec<usize>>| {
        let functions_of = |places: &Vec<usize>| -> HashSet<usize> {
            let to_it = references.iter().filter(|(_, text)| places.contains(text));
            to_it.filter_map(|&(from, _)| function_at(from)).collect()
        };
        let common = texts.iter().map(functions_of).reduce(|a, b| &a & &b)?;
        let mut common = common.into_iter();
        common.next().filter(|_| common.next().is_none())
    })
}

/// The start of the function of which something is a part. Compilers put what is rarely
/// executed, as a failed check is, into a part of its own, which nobody calls: its function
/// jumps there.
fn hot_part(image: &Image, start: usize, ways: &WaysInto) -> Option<usize> {
    if ways.is_called || ways.conditional_jumps.is_empty() {
        return Some(start);
    }
    let mut from = ways
        .conditional_jumps
        .iter()
        .filter_map(|&jump| Some(image.function_around(jump)?.0));
    let first = from.next()?;
    from.all(|other| other == first).then_some(first)
}

/// The entries that are to be changed, and where their functions go on then. Only the first
/// function is needed; without the others contexts, sequences or the order of weights
/// are not known or not changed.
fn prepare(
    image: &Image,
    functions: &HashMap<Vec<u8>, usize>,
) -> Result<(Page, HashMap<&'static CStr, usize>), String> {
    let mut page = Page::near(image.range())?;
    let mut originals = HashMap::new();
    for (name, hook) in hooks::entries() {
        let Some(&start) = functions.get(name.to_bytes()) else {
            continue;
        };
        let range = image
            .function_around(start)
            .filter(|range| range.0 == start);
        let added = match range {
            // SAFETY: a function of a loaded object, and the hook that was written for it.
            Some(range) => unsafe { page.add(range, hook) },
            None => Err("where it ends is not known".into()),
        };
        match added {
            Ok(original) => {
                originals.insert(name, original);
            }
            Err(reason) if name == c"ggml_graph_compute" => {
                return Err(format!("{}: {reason}", name.to_string_lossy()));
            }
            Err(_) => {}
        }
    }
    Ok((page, originals))
}

impl Inside {
    /// Where a function of this name can be called as if nothing had been changed; 0 when
    /// the object has none, or its place is not known.
    pub fn find(&self, name: &CStr) -> usize {
        let changed = self.originals.get(name).copied();
        changed
            .or_else(|| self.functions.get(name.to_bytes()).copied())
            .unwrap_or(0)
    }

    /// The names of ops, by number, if functions have none.
    pub fn op_names(&self) -> Option<&[usize]> {
        self.op_names.as_deref()
    }

    /// Whether it has the newest way of executing nodes that we know.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    pub fn image(&self) -> &Image {
        &self.image
    }

    pub fn path(&self) -> &str {
        &self.path
    }
}
