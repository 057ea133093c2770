//! The committed documentation is what the rules say.

use std::{fs, path::Path};

#[test]
fn rules_page_is_generated_from_the_rules() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rules.md");
    let page = rules::docs::page();
    if std::env::var_os("TENSORSCOPE_BLESS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        committed, page,
        "make it anew: TENSORSCOPE_BLESS=1 cargo test -p rules --test docs"
    );
}

#[test]
fn the_example_of_the_page_is_a_rule_file() {
    let page = rules::docs::page();
    let example = page.split("```toml\n").nth(1).unwrap();
    let example = example.split("```").next().unwrap();
    let file = rules::RuleFile::parse(example, "docs/rules.md").unwrap();
    assert_eq!(file.rules().len(), 1);
}
