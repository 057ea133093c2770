//! The report page: complete, harmless, and on its own.

mod run;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use render::{page, plots};
use run::{HOSTILE_NAME, Model, Report};
use sha2::{Digest as _, Sha256};

fn page_of(report: &Report) -> String {
    let input = report.input();
    page::html(&input, &plots::all(&input))
}

/// All values of an attribute in the page's tags.
fn attributes<'a>(html: &'a str, name: &str) -> Vec<&'a str> {
    let begin = format!(" {name}=\"");
    html.split(begin.as_str())
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap())
        .collect()
}

fn between<'a>(html: &'a str, begin: &str, end: &str) -> &'a str {
    html.split_once(begin).unwrap().1.split_once(end).unwrap().0
}

#[test]
fn no_name_or_token_of_a_model_becomes_markup() {
    let report = Report::new(Model::Experts, 30);
    let html = page_of(&report);
    assert!(html.contains("&lt;script&gt;alert(1)"), "the name is shown");
    assert!(html.contains("&lt;img·src=x"), "the token is shown");
    assert_eq!(html.matches("<script").count(), 1, "ours");
    assert_eq!(html.matches("<style").count(), 1, "ours");
    assert!(!html.contains("<img"));
    assert!(!html.contains('\u{202e}'), "nothing turns the text round");
    let input = report.input();
    let markdown = page::markdown(&input, &plots::all(&input), &|plot| {
        format!("plots/{}.svg", plot.id)
    });
    for line in markdown.lines() {
        let is_link = line.starts_with("![");
        assert!(is_link || !line.replace("\\<", "").contains('<'), "{line}");
    }
}

#[test]
fn the_page_asks_for_nothing() {
    let html = page_of(&Report::new(Model::Experts, 30));
    for href in attributes(&html, "href") {
        assert!(
            href.starts_with('#') || href.starts_with("data:image/png;base64,"),
            "{href}"
        );
    }
    for forbidden in [
        " src=", "url(", "@import", "http:", "https:", "<link", "<iframe", "<form",
    ] {
        let body = html.replace("img src=x", "").replace(HOSTILE_NAME, "");
        assert!(!body.contains(forbidden), "{forbidden}");
    }
}

#[test]
fn the_policy_allows_the_page_itself_and_nothing_else() {
    let html = page_of(&Report::new(Model::Dense, 30));
    let policy = between(&html, "Content-Security-Policy\" content=\"", "\"");
    let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    let style = hash(between(&html, "<style>", "</style>"));
    let script = hash(between(&html, "<script>", "</script>"));
    let expected = format!(
        "default-src 'none'; img-src data:; style-src {style}; script-src {script}; base-uri 'none'; form-action 'none'"
    );
    assert_eq!(policy, expected);
    // A policy of hashes refuses what stands in attributes.
    assert!(attributes(&html, "style").is_empty());
    assert!(attributes(&html, "onclick").is_empty());
}

#[test]
fn what_to_do_stands_before_the_findings_with_what_to_type() {
    let report = Report::new(Model::Experts, 30);
    let html = page_of(&report);
    let place = |text: &str| html.find(text).unwrap_or_else(|| panic!("no {text}"));
    assert!(place("<section id=\"actions\">") < place("<section id=\"findings\">"));
    assert!(html.contains("llama.cpp: <code>-t 8</code>"), "{html}");
    let input = report.input();
    let markdown = page::markdown(&input, &[], &|plot| plot.id.clone());
    let place = |text: &str| markdown.find(text).unwrap_or_else(|| panic!("no {text}"));
    assert!(place("## What to do") < place("## Findings"));
    assert!(markdown.contains("  - llama.cpp: `-t 8`"), "{markdown}");
}

#[test]
fn findings_come_first_each_with_its_query() {
    let report = Report::new(Model::Experts, 30);
    let html = page_of(&report);
    let place = |text: &str| html.find(text).unwrap_or_else(|| panic!("no {text}"));
    assert!(place("<section id=\"findings\">") < place("<section id=\"tokens\">"));
    assert!(place("<section id=\"flame\">") < place("<section id=\"tables\">"));
    assert!(!report.findings.is_empty());
    let queries = report
        .findings
        .iter()
        .filter(|finding| finding.sql.is_some())
        .count();
    assert_eq!(html.matches("<details>").count(), report.findings.len());
    assert_eq!(html.matches("<pre><code>SELECT").count(), queries);
}

#[test]
fn every_entry_of_the_contents_leads_somewhere() {
    let html = page_of(&Report::new(Model::Experts, 30));
    let ids = attributes(&html, "id");
    let mut links = attributes(&html, "href");
    links.retain(|link| link.starts_with('#'));
    assert!(links.len() > 25, "{links:?}");
    for link in links {
        assert!(ids.contains(&&link[1..]), "{link} leads nowhere");
    }
    let mut distinct = ids.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), ids.len(), "an id is there once");
}

#[test]
fn tables_add_up() {
    let report = Report::new(Model::Experts, 30);
    let html = page_of(&report);
    let table = html
        .split("id=\"table-layers\"")
        .nth(1)
        .unwrap()
        .split("</table>")
        .next()
        .unwrap();
    let rows: Vec<&str> = table.split("<tr>").skip(2).collect();
    assert_eq!(rows.len(), run::LAYERS as usize + 1);
    // Layer, nodes, time, share, accesses, bytes, share.
    let sum = |column: usize| -> f64 {
        rows.iter()
            .map(|row| attributes(row, "data-key")[column].parse::<f64>().unwrap())
            .sum()
    };
    let totals = report.index.info().totals;
    assert_eq!(sum(1) as u64, totals.nodes);
    assert_eq!(sum(4) as u64, totals.accesses);
    assert_eq!(sum(5) as u64, totals.bytes);
}

#[test]
fn a_long_run_is_a_small_page() {
    let report = Report::new(Model::Experts, 9_000);
    assert!(report.index.info().totals.accesses >= 100_000);
    let bytes = page_of(&report).len();
    assert!(bytes <= 5 << 20, "{bytes} bytes");
}

#[test]
fn markdown_links_every_plot_and_has_the_findings() {
    let report = Report::new(Model::Experts, 30);
    let input = report.input();
    let plots = plots::all(&input);
    let markdown = page::markdown(&input, &plots, &|plot| format!("plots/{}.png", plot.id));
    for plot in &plots {
        assert!(
            markdown.contains(&format!("](<plots/{}.png>)", plot.id)),
            "{}",
            plot.id
        );
    }
    let queries = report
        .findings
        .iter()
        .filter(|finding| finding.sql.is_some())
        .count();
    assert_eq!(markdown.matches("```sql").count(), queries);
}
