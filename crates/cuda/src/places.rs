//! Where NVIDIA's libraries and tools lie when the loader does not know them.
//!
//! In this order: folders that the user names, those of toolkits, those of Python's packages (the
//! wheels of `nvidia-…` put libraries into site-packages). Only folders that exist are named. What
//! the environment says comes as a function, so that a fact about a folder is not one about a
//! machine.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

/// The environment of a process: a variable's value.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// That of this process.
pub fn environment(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// Folders with libraries, those first that should be taken.
pub fn folders() -> Vec<PathBuf> {
    let environment = &environment;
    let mut folders = named(environment);
    folders.extend(toolkits(Path::new("/")));
    for packages in site_packages(environment, Path::new("/"), None) {
        folders.extend(wheels(&packages));
    }
    folders
}

/// Those that the user names: a folder, or several, as in PATH.
pub fn named(environment: Environment) -> Vec<PathBuf> {
    let given = environment("TENSORSCOPE_CUDA").unwrap_or_default();
    std::env::split_paths(&given)
        .filter(|folder| folder.is_dir())
        .collect()
}

/// Those of toolkits below `root`: the one that is chosen first, then the newest.
pub fn toolkits(root: &Path) -> Vec<PathBuf> {
    let mut versions: Vec<PathBuf> = children(&root.join("usr/local"));
    versions.retain(|folder| name_of(folder).starts_with("cuda-"));
    versions.sort_by_key(|folder| std::cmp::Reverse(numbers(&name_of(folder))));
    let mut homes = vec![root.join("usr/local/cuda")];
    homes.extend(versions);
    homes.push(root.join("opt/cuda"));
    let parts = ["lib64", "targets/x86_64-linux/lib", "extras/CUPTI/lib64"];
    let mut seen = BTreeSet::new();
    homes
        .iter()
        .flat_map(|home| parts.map(|part| home.join(part)))
        .filter(|folder| folder.is_dir())
        .filter(|folder| seen.insert(fs::canonicalize(folder).unwrap_or_default()))
        .collect()
}

/// The folders in which Python's packages lie: of the environment that is active, of the
/// interpreter `program` if it is one, of those in PATH, the user's, the system's.
pub fn site_packages(
    environment: Environment,
    root: &Path,
    program: Option<&Path>,
) -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = Vec::new();
    let set = |name: &str| environment(name).filter(|value| !value.is_empty());
    // As it was called: a virtual environment's python is a link to one elsewhere.
    prefixes.extend(program.and_then(prefix_of));
    prefixes.extend(
        ["VIRTUAL_ENV", "CONDA_PREFIX"]
            .into_iter()
            .filter_map(set)
            .map(PathBuf::from),
    );
    let path = set("PATH").unwrap_or_default();
    let interpreters = std::env::split_paths(&path).map(|folder| folder.join("python3"));
    prefixes.extend(
        interpreters
            .filter(|python| python.exists())
            .filter_map(|python| prefix_of(&python)),
    );
    prefixes.extend(set("HOME").map(|home| PathBuf::from(home).join(".local")));
    prefixes.extend([root.join("usr/local"), root.join("usr")]);
    let mut found: Vec<PathBuf> = Vec::new();
    let listed = set("PYTHONPATH").unwrap_or_default();
    found.extend(std::env::split_paths(&listed));
    for prefix in prefixes {
        let lib = prefix.join("lib");
        let mut versions = children(&lib);
        versions.retain(|folder| name_of(folder).starts_with("python3"));
        versions.sort_by_key(|folder| std::cmp::Reverse(numbers(&name_of(folder))));
        for version in versions {
            found.extend(["site-packages", "dist-packages"].map(|name| version.join(name)));
        }
    }
    let mut seen = BTreeSet::new();
    found
        .into_iter()
        .filter(|folder| folder.join("nvidia").is_dir())
        .filter(|folder| seen.insert(fs::canonicalize(folder).unwrap_or_default()))
        .collect()
}

/// Folders with libraries of the wheels in one of these.
pub fn wheels(site_packages: &Path) -> Vec<PathBuf> {
    let packages = children(&site_packages.join("nvidia"));
    let folders = packages.into_iter().map(|package| package.join("lib"));
    folders.filter(|folder| folder.is_dir()).collect()
}

/// A program of NVIDIA's toolkit, from the path or from where its libraries lie.
pub fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside = folders().into_iter().map(|folder| folder.join("../bin"));
    let mut folders = std::env::split_paths(&path).chain(beside);
    folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.is_file()))
}

/// `/a` of `/a/bin/python3`.
fn prefix_of(python: &Path) -> Option<PathBuf> {
    let name = python.file_name()?.to_str()?;
    let prefix = python.parent()?.parent()?;
    name.starts_with("python").then(|| prefix.to_owned())
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The numbers in a name, for an order in which 3.10 comes after 3.9.
pub(crate) fn numbers(name: &str) -> Vec<u32> {
    name.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

/// What is in a folder, by name.
fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut children: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    children.sort();
    children
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes folders below a new one.
    fn tree(folders: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for folder in folders {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        root
    }

    fn below(root: &Path, folders: &[PathBuf]) -> Vec<String> {
        let folders = folders.iter().map(|f| f.strip_prefix(root).unwrap_or(f));
        folders.map(|f| f.display().to_string()).collect()
    }

    #[test]
    fn the_chosen_toolkit_comes_first_and_newer_ones_before_older() {
        let root = tree(&[
            "usr/local/cuda-12.9/lib64",
            "usr/local/cuda-12.10/lib64",
            "usr/local/cuda-12.10/extras/CUPTI/lib64",
            "usr/local/cudamine/lib64",
        ]);
        let link = root.path().join("usr/local/cuda");
        std::os::unix::fs::symlink("cuda-12.9", link).unwrap();
        assert_eq!(
            below(root.path(), &toolkits(root.path())),
            [
                "usr/local/cuda/lib64",
                "usr/local/cuda-12.10/lib64",
                "usr/local/cuda-12.10/extras/CUPTI/lib64"
            ]
        );
    }

    #[test]
    fn packages_of_every_interpreter_are_found_once() {
        let root = tree(&[
            "venv/lib/python3.9/site-packages/nvidia/cuda_cupti/lib",
            "venv/lib/python3.12/site-packages/nvidia/cu13/lib",
            "home/.local/lib/python3.11/site-packages/nvidia/cublas",
            "usr/lib/python3/dist-packages/other",
            "path/nvidia/cuda_cupti/lib",
        ]);
        let at = |folder: &str| root.path().join(folder).into_os_string();
        let environment = |name: &str| match name {
            "VIRTUAL_ENV" => Some(at("venv")),
            "HOME" => Some(at("home")),
            "PYTHONPATH" => Some(at("path")),
            _ => None,
        };
        let found = site_packages(&environment, root.path(), None);
        assert_eq!(
            below(root.path(), &found),
            [
                "path",
                "venv/lib/python3.12/site-packages",
                "venv/lib/python3.9/site-packages",
                "home/.local/lib/python3.11/site-packages"
            ]
        );
        assert_eq!(
            below(&found[0], &wheels(&found[0])),
            ["nvidia/cuda_cupti/lib"]
        );
        // The program itself says more than the environment.
        let python = root.path().join("venv/bin/python3.12");
        let found = site_packages(&|_| None, root.path(), Some(&python));
        assert_eq!(found.len(), 2);
        let other = root.path().join("venv/bin/llama-server");
        assert!(site_packages(&|_| None, root.path(), Some(&other)).is_empty());
    }
}
