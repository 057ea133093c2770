//! Files that belong to this program: the preload library, the program for SQL, the model of
//! the demo.
//!
//! They lie beside it, as cargo puts them and as an archive is unpacked, or in
//! `../lib/tensorscope` and `../share/tensorscope`, as packages have it. In a checkout the
//! model is in `models`.

use std::{
    io,
    path::{Path, PathBuf},
};

use anyhow::anyhow;

/// Where the file is; an error says where it should be and how it gets there.
pub fn path(name: &str, what_for: &str) -> anyhow::Result<PathBuf> {
    let folder = folder()?;
    find(name, &folder, &["", "../lib/tensorscope"]).map_err(|_| {
        anyhow!(
            "{name} is missing, which {what_for}; it belongs into {}, where `cargo build --release --workspace` puts it",
            folder.display()
        )
    })
}

/// Where a model is that comes with this program.
pub fn model(name: &str) -> anyhow::Result<PathBuf> {
    let folder = folder()?;
    // From target/release the checkout is two folders up.
    find(name, &folder, &["", "../share/tensorscope", "../../models"]).map_err(|_| {
        anyhow!(
            "{name} is missing, which comes with this program; put it beside it into {}, from `models` of the sources",
            folder.display()
        )
    })
}

/// Where this program is.
fn folder() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().and_then(|path| path.canonicalize());
    let program = program.map_err(|error| anyhow!("cannot tell where this program is: {error}"))?;
    Ok(program.parent().unwrap_or(Path::new("/")).to_owned())
}

fn find(name: &str, folder: &Path, places: &[&str]) -> io::Result<PathBuf> {
    // Without the `..`: people are shown these paths.
    let mut paths = places.iter().map(|place| folder.join(place).join(name));
    paths
        .find(|path| path.is_file())
        .ok_or(io::ErrorKind::NotFound.into())
        .and_then(|path| path.canonicalize())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_found_beside_the_program_and_where_packages_put_it() {
        let folder = tempfile::tempdir().unwrap();
        let programs = folder.path().join("bin");
        let packaged = folder.path().join("lib/tensorscope");
        fs::create_dir_all(&programs).unwrap();
        fs::create_dir_all(&packaged).unwrap();
        let find = |name, folder: &Path| find(name, folder, &["", "../lib/tensorscope"]);
        assert!(find("x", &programs).is_err());
        fs::write(packaged.join("x"), "packaged").unwrap();
        let read = |path: io::Result<PathBuf>| fs::read_to_string(path.unwrap()).unwrap();
        assert_eq!(read(find("x", &programs)), "packaged");
        assert!(
            !find("x", &programs)
                .unwrap()
                .to_string_lossy()
                .contains("..")
        );
        fs::write(programs.join("x"), "beside").unwrap();
        assert_eq!(read(find("x", &programs)), "beside");
    }
}
