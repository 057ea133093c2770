//! What the kernel did, as text and as pictures.

mod golden;
#[path = "../../analysis/tests/underneath_support/mod.rs"]
mod underneath_support;

mod run;

use golden::check_golden;
use render::{page, plots, underneath::text};
use resvg::usvg::roxmltree::Document;
use run::{Model, Report};

#[test]
fn the_section_of_the_report_is_as_it_was() {
    let found = text(&underneath_support::results());
    check_golden("underneath.txt", found.as_bytes());
}

#[test]
fn a_run_recorded_from_below_has_its_plots() {
    let report = Report::new(Model::Dense, 10);
    let results = underneath_support::results();
    let mut input = report.input();
    input.underneath = Some(&results);
    let all = plots::all(&input);
    let ids: Vec<&str> = all
        .iter()
        .filter(|plot| plot.section == plots::Section::Underneath)
        .map(|plot| plot.id.as_str())
        .collect();
    assert_eq!(
        ids,
        [
            "reread-layers",
            "reread-components",
            "read-sizes",
            "offset-reads",
            "offset-faults",
            "residency"
        ]
    );
    for plot in &all {
        let svg = plot.svg.standalone();
        assert!(Document::parse(&svg).is_ok(), "{}", plot.id);
    }
    let html = page::html(&input, &all);
    assert!(html.contains("id=\"underneath\"") && html.contains("id=\"table-verdicts\""));
    // Without it nothing is said.
    let html = page::html(&report.input(), &plots::all(&report.input()));
    assert!(!html.contains("id=\"underneath\"") && !html.contains("id=\"table-verdicts\""));
}
