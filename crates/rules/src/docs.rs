//! `docs/rules.md`, from the shipped rules.

/// The whole page.
pub fn page() -> String {
    String::new()
}
