//! The golden log of crate `trace`, and what its exports must be.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::{
    fs,
    path::{Path, PathBuf},
};

pub fn golden_log() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/golden/v1/log")
}

/// With evaluations on a device.
pub fn device_log() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/golden/v3/log")
}

pub fn check_golden(name: &str, found: &[u8]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("TENSORSCOPE_BLESS").is_some_and(|value| value == "1") {
        fs::write(&path, found).unwrap();
    }
    let expected = fs::read(&path).unwrap();
    assert!(
        found == expected,
        "{name} differs from tests/golden; it is now:\n{}",
        String::from_utf8_lossy(found)
    );
}
