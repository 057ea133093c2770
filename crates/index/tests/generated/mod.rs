//! Files of the viewer's page that tests write from Rust: compared, or with
//! `TENSORSCOPE_BLESS` written.

// Each of those who share this file uses its own part of it.
#![allow(dead_code)]

use std::fs;

use ts_rs::{Config, TS};

/// Numbers are JSON's: exact up to 2^53, which no count and no offset reaches.
pub fn config() -> Config {
    Config::new().with_large_int("number")
}

/// A type as TypeScript.
pub fn declaration<T: TS + ?Sized>() -> String {
    let docs = T::docs().unwrap_or_default();
    format!("\n{docs}export {}\n", T::decl(&config()))
}

/// `path` is below `web/`.
pub fn check(path: &str, text: &str) {
    let path = format!("{}/../../web/{path}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("TENSORSCOPE_BLESS").is_some() {
        fs::write(&path, text).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == text, "{path} is stale: bless it");
}
