//! `tables/checksums.txt`: a line for each table, its checksum and its file.
//!
//! Parquet notices little of what happens to a file: a flipped bit may change a number, or
//! end the reader. Here it is noticed before anybody reads the table.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    path::Path,
};

use trace::format::Checksum;

use crate::{StoreError, schema::TABLES};

const CHECKSUMS: &str = "checksums.txt";

/// Of the tables in this folder.
pub fn write(folder: &Path) -> Result<(), StoreError> {
    let mut lines = String::new();
    for table in TABLES {
        let path = folder.join(format!("{}.parquet", table.name));
        let line = line(&path).map_err(StoreError::io(&path, "cannot read"))?;
        lines.push_str(&line);
    }
    let path = folder.join(CHECKSUMS);
    fs::write(&path, lines).map_err(StoreError::io(&path, "cannot write"))
}

/// Whether the table is what was written; older programs wrote no checksums.
pub fn is_as_written(table: &Path) -> io::Result<bool> {
    let checksums = match fs::read(table.with_file_name(CHECKSUMS)) {
        Ok(checksums) => checksums,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
    };
    let line = line(table)?;
    let mut lines = checksums.split_inclusive(|&byte| byte == b'\n');
    Ok(lines.any(|known| known == line.as_bytes()))
}

fn line(table: &Path) -> io::Result<String> {
    let name = table.file_name().unwrap_or_default().to_string_lossy();
    Ok(format!(
        "{:016x} {name}\n",
        Checksum::of(File::open(table)?)?
    ))
}
