//! The little of JSON that streams need: strings, lists and separators.
//!
//! Documents here can be larger than memory, so they are never built as values.

use std::io::{self, Write};

/// `text` as a JSON string, with its quotes.
pub fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Writes items with a comma between them.
pub struct List {
    separator: &'static str,
    is_empty: bool,
}

impl List {
    /// Items are put apart by `separator`, which holds the comma.
    pub fn new(separator: &'static str) -> List {
        List {
            separator,
            is_empty: true,
        }
    }

    /// To be called before each item.
    pub fn next(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if self.is_empty {
            self.is_empty = false;
            return Ok(());
        }
        out.write_all(self.separator.as_bytes())
    }
}
