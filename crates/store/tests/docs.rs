//! The committed documentation is what the schemas say.

use std::{fs, path::Path};

#[test]
fn trace_schema_page_is_generated_from_the_schemas() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/trace-schema.md");
    let page = store::docs::trace_schema();
    if std::env::var_os("TENSORSCOPE_BLESS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap();
    assert_eq!(
        committed, page,
        "make it anew: TENSORSCOPE_BLESS=1 cargo test -p store --test docs"
    );
}

#[test]
fn every_column_has_a_meaning_and_a_name_of_its_own() {
    for table in store::schema::TABLES {
        let mut names: Vec<&str> = table.columns.iter().map(|c| c.name).collect();
        assert!(
            table.columns.iter().all(|c| !c.doc.is_empty()),
            "{}",
            table.name
        );
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), table.columns.len(), "{}", table.name);
    }
}
