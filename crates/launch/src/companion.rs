//! Files that belong to this program: the preload library and the program for SQL.
//!
//! They lie beside it, as cargo puts them and as an archive is unpacked, or in
//! `../lib/tensorscope`, as packages for a system have it.

use std::{
    io,
    path::{Path, PathBuf},
};

use anyhow::anyhow;

/// Where the file is; an error says where it should be and how it gets there.
pub fn path(name: &str, what_for: &str) -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().and_then(|path| path.canonicalize());
    let program = program.map_err(|error| anyhow!("cannot tell where this program is: {error}"))?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    find(name, folder).map_err(|_| {
        anyhow!(
            "{name} is missing, which {what_for}; it belongs into {}, where `cargo build --release --workspace` puts it",
            folder.display()
        )
    })
}

fn find(name: &str, folder: &Path) -> io::Result<PathBuf> {
    [
        folder.join(name),
        folder.join("../lib/tensorscope").join(name),
    ]
    .into_iter()
    .find(|path| path.is_file())
    .ok_or(io::ErrorKind::NotFound.into())
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
        assert!(find("x", &programs).is_err());
        fs::write(packaged.join("x"), "packaged").unwrap();
        let read = |path: io::Result<PathBuf>| fs::read_to_string(path.unwrap()).unwrap();
        assert_eq!(read(find("x", &programs)), "packaged");
        fs::write(programs.join("x"), "beside").unwrap();
        assert_eq!(read(find("x", &programs)), "beside");
    }
}
