//! CUPTI, which tells when each kernel ran: finding one that will do.
//!
//! [`find`] looks, in this order, in the folders that the user names (`TENSORSCOPE_CUDA`), those of
//! LD_LIBRARY_PATH, where the loader looks by itself (the cache of ldconfig), in toolkits, and in
//! the wheels of Python's interpreters. The first that is new enough, and not of a later CUDA than
//! the driver, is taken; the others are kept with the reason, for whoever has to say it.
//!
//! A process that has a libcupti loaded already must use that one ([`loaded`]): two of them in
//! one process disturb each other. And there is one subscriber to a process: [`subscriber`] says
//! whether another tool is it. Subscribing itself is left to the preload library.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fmt, fs,
    path::{Path, PathBuf},
};

use crate::{
    Result,
    devices::version_text,
    functions,
    library::Library,
    places::{self, Environment, numbers},
};

functions! {
    /// What tells the version.
    pub struct Versions {
        cuptiGetVersion(*mut u32);
    }
}

/// Names under which a loader knows it, in the order in which they are tried.
const NAMES: [&str; 3] = ["libcupti.so.13", "libcupti.so.12", "libcupti.so"];

/// A CUPTI that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cupti {
    pub path: PathBuf,
    pub version: Version,
}

/// Which one it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// As `cuptiGetVersion` answers: 22 for CUDA 12.4, 130001 for 13.0; 0 where it was not asked.
    pub api: u32,
    /// What the wheel or the file's name say besides.
    pub build: Option<Build>,
}

/// Tells updates apart that answer with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Build {
    /// A wheel's version: 12.4.127.
    Wheel(u32, u32, u32),
    /// The end of a toolkit's file name: 2024.1.1.
    File(u32, u32, u32),
}

/// Why one that was found is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// In the loader's words, or CUPTI's.
    #[error("does not load: {0}")]
    Broken(String),
    #[error("is that of CUDA {0}, older than 12.4 update 1: it crashes where CUDA graphs are used")]
    TooOld(Version),
    #[error(
        "is that of CUDA {version}, the driver that of {driver}: CUPTI must not be the later one"
    )]
    TooNew { version: Version, driver: String },
}

/// What was found: the one to use, and those that cannot be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    pub usable: Option<Cupti>,
    pub refused: Vec<(PathBuf, Unusable)>,
}

/// Looks for one that will do with a driver of this version (13000; `None`: any). `program` is
/// the program that it is for: an interpreter's own packages come first.
pub fn find(driver_version: Option<i32>, program: Option<&Path>) -> Search {
    let mut search = Search::default();
    let environment = &places::environment;
    let (first, last) = candidates(environment, Path::new("/"), program);
    let by_name = NAMES.map(PathBuf::from);
    for path in first.iter().chain(&by_name).chain(&last) {
        match examine(path).and_then(|cupti| cupti.judged(driver_version)) {
            Ok(cupti) => {
                search.usable = Some(cupti);
                break;
            }
            // The loader knows none of that name: that is no finding.
            Err(Unusable::Broken(_)) if !path.is_absolute() => {}
            Err(why) => search.refused.push((path.clone(), why)),
        }
    }
    search
}

/// The one that this process has loaded already.
pub fn loaded() -> Option<(Library, Cupti)> {
    let library = NAMES
        .iter()
        .find_map(|name| Library::loaded(Path::new(name)))?;
    let cupti = Cupti::of(library).ok()?;
    Some((library, cupti))
}

/// Files below `root` that may be it: those ahead of what the loader finds, and those after.
pub fn candidates(
    environment: Environment,
    root: &Path,
    program: Option<&Path>,
) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let mut seen = BTreeSet::new();
    let mut files = |folders: Vec<PathBuf>| -> Vec<PathBuf> {
        let files = folders.iter().flat_map(|folder| in_folder(folder));
        let is_new = |file: &PathBuf| seen.insert(fs::canonicalize(file).unwrap_or_default());
        files.filter(is_new).collect()
    };
    let listed = environment("LD_LIBRARY_PATH").unwrap_or_default();
    let mut before = places::named(environment);
    before.extend(std::env::split_paths(&listed).filter(|folder| folder.is_absolute()));
    let mut after = places::toolkits(root);
    for packages in places::site_packages(environment, root, program) {
        after.extend(places::wheels(&packages));
    }
    (files(before), files(after))
}

/// Loads it, but only if what it is named after is not too old already.
fn examine(path: &Path) -> Result<Cupti, Unusable> {
    if let Some(build) = build_of(path).filter(|build| !build.is_enough()) {
        let version = Version {
            api: 0,
            build: Some(build),
        };
        return Err(Unusable::TooOld(version));
    }
    let broken = |error: crate::CudaError| Unusable::Broken(error.to_string());
    Cupti::of(Library::local(path).map_err(broken)?).map_err(broken)
}

impl Cupti {
    fn of(library: Library) -> Result<Cupti> {
        let versions = Versions::of(library)?;
        let mut api = 0;
        // SAFETY: writes the version to the place given.
        let answer = unsafe { (versions.cuptiGetVersion)(&mut api) };
        if answer != 0 {
            return Err(crate::CudaError::NoLibrary {
                reason: format!("cuptiGetVersion answers {answer}"),
            });
        }
        let path = library.file_of(c"cuptiGetVersion").unwrap_or_default();
        let build = build_of(&path);
        Ok(Cupti {
            path,
            version: Version { api, build },
        })
    }

    fn judged(self, driver_version: Option<i32>) -> Result<Cupti, Unusable> {
        let version = self.version;
        if !version.is_enough() {
            return Err(Unusable::TooOld(version));
        }
        match driver_version {
            Some(driver) if driver / 1000 < version.cuda_major() as i32 => Err(Unusable::TooNew {
                version,
                driver: version_text(driver),
            }),
            _ => Ok(self),
        }
    }
}

/// Toolkits by the number that their CUPTI answers with, until 13.0 made it the version itself.
/// From its header, cupti_version.h of 13.0.
const TOOLKITS: &[(u32, &str)] = &[
    (13, "11.0"),
    (14, "11.1"),
    (15, "11.2"),
    (16, "11.5"),
    (17, "11.6"),
    (18, "11.8"),
    (19, "12.0"),
    (20, "12.2"),
    (21, "12.3"),
    (22, "12.4"),
    (23, "12.5"),
    (24, "12.6"),
    (26, "12.8"),
    (27, "12.9"),
    (28, "12.9 update 1"),
];
/// 12.4 and its update 1 both answer with this.
const FIRST_MAYBE: u32 = 22;

impl Version {
    /// Whether it is at least that of CUDA 12.4 update 1. Where that cannot be told it is not:
    /// an earlier `cuptiFinalize` crashes in a program that uses CUDA graphs.
    pub fn is_enough(self) -> bool {
        match self.api {
            FIRST_MAYBE => self.build.is_some_and(Build::is_enough),
            api => api > FIRST_MAYBE,
        }
    }

    pub fn cuda_major(self) -> u32 {
        match self.api {
            api if api >= 10_000 => api / 10_000,
            api if api >= 19 => 12,
            _ => 11,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.api, self.build) {
            (_, Some(Build::Wheel(major, minor, patch))) => write!(f, "{major}.{minor}.{patch}"),
            (0, Some(Build::File(year, release, update))) => {
                write!(f, "release {year}.{release}.{update}")
            }
            (api, _) if api >= 10_000 => write!(f, "{}.{}", api / 10_000, api / 100 % 100),
            (api, _) => {
                let known = TOOLKITS.iter().rev().find(|(number, _)| *number <= api);
                f.write_str(known.map_or("10 or earlier", |(_, toolkit)| toolkit))
            }
        }
    }
}

impl Build {
    fn is_enough(self) -> bool {
        match self {
            Build::Wheel(..) => self >= Build::Wheel(12, 4, 127),
            Build::File(..) => self >= Build::File(2024, 1, 1),
        }
    }
}

/// From the name of the file that it is a link to, or from the wheel that it came in.
fn build_of(path: &Path) -> Option<Build> {
    let real = fs::canonicalize(path).ok()?;
    let name = real.file_name()?.to_str()?;
    if let [year, release, update] = numbers(name)[..]
        && year > 2000
    {
        return Some(Build::File(year, release, update));
    }
    // site-packages/nvidia/PACKAGE/lib/libcupti.so.12
    let packages = real.ancestors().nth(4)?;
    let entries = fs::read_dir(packages).ok()?.flatten();
    let mut versions: Vec<Build> = entries
        .filter_map(|entry| wheel_version(&entry.file_name(), &real))
        .collect();
    versions.sort();
    versions.pop()
}

/// Of `nvidia_cuda_cupti_cu12-12.4.127.dist-info`, if that is what put the file there.
fn wheel_version(folder: &OsStr, file: &Path) -> Option<Build> {
    let name = folder.to_str()?.strip_suffix(".dist-info")?;
    let (package, version) = name.rsplit_once('-')?;
    // Since 13 all packages share one folder.
    let is_shared = file.parent()?.parent()?.file_name()? != "cuda_cupti";
    let expected = match is_shared {
        true => package == "nvidia_cuda_cupti",
        false => package.starts_with("nvidia_cuda_cupti_cu"),
    };
    match numbers(version)[..] {
        [major, minor, patch, ..] if expected => Some(Build::Wheel(major, minor, patch)),
        _ => None,
    }
}

/// Files of that name in a folder, the newest first.
fn in_folder(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<(Vec<u32>, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let rest = name.to_str()?.strip_prefix("libcupti.so")?;
            (rest.is_empty() || rest.starts_with('.')).then(|| (numbers(rest), entry.path()))
        })
        .collect();
    files.sort_by(|a, b| b.cmp(a));
    files.into_iter().map(|(_, path)| path).collect()
}

/// Another tool that will have subscribed to CUPTI, or taken the driver's injection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscriber {
    /// "Nsight Systems".
    pub name: String,
    /// The variable that tells.
    pub variable: &'static str,
}

/// What tools set in the environment of the programs that they watch.
const SIGNS: &[(&str, &str)] = &[
    ("NSYS_PROFILING_SESSION_ID", "Nsight Systems (nsys)"),
    ("NV_NSIGHT_INJECTION_PORT_BASE", "Nsight Compute (ncu)"),
    ("NV_COMPUTE_PROFILER_PERFWORKS_DIR", "Nsight Compute (ncu)"),
    ("NV_SANITIZER_INJECTION_PORT_RANGE", "compute-sanitizer"),
    ("NVPROF_ID", "nvprof"),
];
/// A library that the driver loads when it starts.
const INJECTION: &str = "CUDA_INJECTION64_PATH";

/// The one that this environment configures.
pub fn subscriber(environment: Environment) -> Option<Subscriber> {
    let set = |name: &str| environment(name).filter(|value| !value.is_empty());
    let sign = SIGNS.iter().find(|(variable, _)| set(variable).is_some());
    let known = sign.map(|(variable, name)| Subscriber {
        name: (*name).to_owned(),
        variable,
    });
    let injected = || {
        let path = PathBuf::from(set(INJECTION)?);
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some(Subscriber {
            name,
            variable: INJECTION,
        })
    };
    known.or_else(injected)
}

/// The command that brings a CUPTI for a driver of this version.
pub fn fix(driver_version: Option<i32>) -> &'static str {
    match driver_version {
        Some(version) if version < 13_000 => "pip install --upgrade nvidia-cuda-cupti-cu12",
        _ => "pip install --upgrade nvidia-cuda-cupti",
    }
}

#[cfg(test)]
mod tests;
