//! The report says why: stacks that add up, causes with what to do, and nothing of a name as
//! markup.

mod golden;
mod run;

use diagnose::{CallShare, Diagnosis, Part, PhaseStack, Ranked, stack::PARTS};
use golden::check_golden;
use render::{page, plots};
use resvg::usvg::roxmltree::Document;
use rules::{Cause, Evidence, NotEvaluated, Unit, Value};
use run::{HOSTILE_NAME, Model, Report};

fn part(name: &str, share: f64) -> Part {
    let (_, title) = PARTS.iter().find(|(known, _)| *known == name).unwrap();
    Part {
        name: name.to_owned(),
        title: (*title).to_owned(),
        share,
        nanos: share * 10e6,
    }
}

fn phase(name: &str, tokens: u64) -> PhaseStack {
    PhaseStack {
        name: name.to_owned(),
        evaluations: tokens,
        tokens,
        token_nanos: 10e6,
        tokens_per_second: 100.0,
        nanos: tokens * 10_000_000,
        stack: vec![
            part("at_wall", 0.3),
            part("below_wall", 0.25),
            part("page_faults", 0.0),
            part("barriers", 0.2),
            part("preempted", 0.235),
            part("host", 0.0149),
            part("stolen", 0.0001),
            part("unexplained", 0.0),
        ],
        system_calls: vec![CallShare {
            category: "futex".to_owned(),
            share: 0.012,
            calls: vec!["futex".to_owned()],
        }],
        verdict: "headroom: more threads than processors; weights were read at 4.2 GB/s, 34 % of what 2 threads can read".to_owned(),
    }
}

fn evidence(name: &str, number: f64, text: &str, source: Option<&str>) -> Evidence {
    Evidence {
        name: name.to_owned(),
        value: Value::Number(number),
        unit: Unit::Count,
        text: text.to_owned(),
        source: source.map(str::to_owned),
    }
}

fn ranked(id: &str, title: &str) -> Ranked {
    let query = "SELECT reason, sum(nanos) FROM off_cpu WHERE phase = 'generate' GROUP BY reason";
    Ranked {
        phase: "generate".to_owned(),
        time_share: 0.4,
        cause: Cause {
            id: id.to_owned(),
            title: title.to_owned(),
            about: "phase".to_owned(),
            subject: "generate".to_owned(),
            parent: None,
            share: 0.435,
            healthy: false,
            why: "8 threads share 2 processors: 43.5 % of the time".to_owned(),
            action: Some("-t 2".to_owned()),
            apply: Some("threads=2".to_owned()),
            gain_percent: Some(77.0),
            gain_percent_low: Some(46.2),
            gain_percent_high: Some(96.2),
            refute: Some("`SELECT 1` shows none, or -t 2 is not faster".to_owned()),
            reference: Some("sched(7)".to_owned()),
            evidence: vec![
                evidence("threads", 8.0, "8", Some("metadata.json: settings")),
                evidence("stack.not_running", 0.235, "23.5 %", Some(query)),
                evidence("stack.preempted", 0.235, "23.5 %", Some(query)),
                evidence("files", 1.0, "1", None),
            ],
        },
    }
}

fn diagnosis() -> Diagnosis {
    let mut healthy = ranked("run.memory_wall", "memory gives no more");
    healthy.cause.healthy = true;
    let mut little = ranked("run.host", "the program takes long between evaluations");
    little.cause.action = Some("stop them (`iotop -o` names them)".to_owned());
    little.cause.gain_percent = None;
    little.cause.evidence.clear();
    Diagnosis {
        phases: vec![phase("prompt", 1), phase("generate", 48)],
        causes: vec![
            ranked("run.threads", "more threads than processors"),
            little,
        ],
        healthy: vec![healthy],
        not_evaluated: vec![NotEvaluated {
            rule: "run.llc".to_owned(),
            title: "the cache is too small".to_owned(),
            subject: "generate".to_owned(),
            missing: vec!["counters.llc_misses".to_owned()],
        }],
        missing: vec!["record with `--cpu` to see threads".to_owned()],
        subjects: Vec::new(),
    }
}

fn section_of(diagnosis: &Diagnosis) -> String {
    let report = Report::new(Model::Dense, 10);
    let mut input = report.input();
    input.diagnosis = Some(diagnosis);
    let html = page::html(&input, &[]);
    let (_, rest) = html.split_once("<section id=\"why\">").unwrap();
    let (section, _) = rest.split_once("</section>").unwrap();
    format!("<section>{section}</section>")
}

fn markdown_of(diagnosis: &Diagnosis) -> String {
    let report = Report::new(Model::Dense, 10);
    let mut input = report.input();
    input.diagnosis = Some(diagnosis);
    let text = page::markdown(&input, &[], &|plot| plot.id.clone());
    let (_, rest) = text.split_once("\n## Why").unwrap();
    let (section, _) = rest.split_once("\n## ").unwrap();
    format!("## Why{}\n", section.trim_end())
}

#[test]
fn why_stands_behind_what_to_do_and_before_the_findings() {
    let report = Report::new(Model::Experts, 30);
    let diagnosis = diagnosis();
    let mut input = report.input();
    input.diagnosis = Some(&diagnosis);
    let html = page::html(&input, &plots::all(&input));
    let place = |text: &str| html.find(text).unwrap_or_else(|| panic!("no {text}"));
    assert!(place("<section id=\"actions\">") < place("<section id=\"why\">"));
    assert!(place("<section id=\"why\">") < place("<section id=\"findings\">"));
    assert!(html.contains("<a href=\"#why\">Why</a>"));
    input.diagnosis = None;
    assert!(!page::html(&input, &[]).contains("#why"));
}

#[test]
fn each_phase_is_a_stack_as_wide_as_the_picture() {
    let section = section_of(&diagnosis());
    // It is well-formed: every element is closed.
    let document = Document::parse(&section).unwrap();
    let stacks: Vec<_> = document
        .descendants()
        .filter(|node| node.attribute("class") == Some("stack"))
        .collect();
    assert_eq!(stacks.len(), 2);
    for stack in stacks {
        let rects = stack.descendants().filter(|node| node.has_tag_name("rect"));
        let mut right = 0.0;
        for rect in rects {
            let number = |name| rect.attribute(name).unwrap().parse::<f64>().unwrap();
            assert!((number("x") - right).abs() < 0.02, "no gap and no overlap");
            right = number("x") + number("width");
        }
        assert!((right - 720.0).abs() < 0.1, "{right}");
    }
}

#[test]
fn parts_have_share_and_time_and_nothing_is_said_of_what_is_nothing() {
    let section = section_of(&diagnosis());
    assert!(section.contains("computing as fast as memory gives the bytes</td><td class=\"n\">30.0 %</td><td class=\"n\">3 ms</td>"), "{section}");
    assert!(section.contains("not explained</td><td class=\"n\">0.0 %"));
    assert!(
        !section.contains("gave the processor away</td>"),
        "0.01 % is not worth a line"
    );
}

#[test]
fn a_cause_has_what_to_do_the_gain_and_its_evidence() {
    let section = section_of(&diagnosis());
    for text in [
        "More threads than processors <span>generate, 44 % of its time</span>",
        "<p class=\"note\">do: <code>-t 2</code></p>",
        "do: stop them (<code>iotop -o</code> names them)",
        "speed expected (+46 to +96 %)",
        "refuted if: <code>SELECT 1</code> shows none, or -t 2 is not faster",
        "<dt>threads</dt><dd>8 <span>metadata.json: settings</span></dd>",
        "<pre><code>SELECT reason, sum(nanos)\nFROM off_cpu\nWHERE phase = &#39;generate&#39;\nGROUP BY reason</code></pre>",
        "<dt>rule</dt><dd><code>run.threads</code>; sched(7)</dd>",
        "<summary>1 rule lacks an input</summary>",
        "record with <code>--cpu</code> to see threads",
    ] {
        assert!(section.contains(text), "{text} in {section}");
    }
    assert_eq!(
        section.matches("gain:").count(),
        1,
        "only where it is known"
    );
}

#[test]
fn the_section_as_markdown_is_as_it_was() {
    check_golden("why.md", markdown_of(&diagnosis()).as_bytes());
}

#[test]
fn a_run_without_a_cause_says_so() {
    let nothing = Diagnosis::default();
    assert!(section_of(&nothing).contains("<p>No cause found: "));
    assert!(markdown_of(&nothing).contains("\nNo cause found: "));
}

#[test]
fn no_text_of_a_diagnosis_becomes_markup() {
    let hostile = || HOSTILE_NAME.to_owned();
    let mut cause = ranked("x", "x");
    cause.phase = hostile();
    for text in [
        &mut cause.cause.id,
        &mut cause.cause.title,
        &mut cause.cause.why,
    ] {
        *text = hostile();
    }
    for text in [
        &mut cause.cause.action,
        &mut cause.cause.refute,
        &mut cause.cause.reference,
    ] {
        *text = Some(format!("`{HOSTILE_NAME}` {HOSTILE_NAME}"));
    }
    cause.cause.evidence = vec![
        evidence(HOSTILE_NAME, 1.0, HOSTILE_NAME, Some(HOSTILE_NAME)),
        evidence("a", 1.0, "b", Some(&format!("SELECT {HOSTILE_NAME}"))),
    ];
    let mut stack = phase(HOSTILE_NAME, 1);
    stack.verdict = hostile();
    stack.stack[0].name = hostile();
    stack.stack[0].title = hostile();
    let diagnosis = Diagnosis {
        phases: vec![stack],
        causes: vec![cause.clone()],
        healthy: vec![cause],
        not_evaluated: vec![NotEvaluated {
            rule: hostile(),
            title: hostile(),
            subject: hostile(),
            missing: vec![hostile()],
        }],
        missing: vec![hostile()],
        subjects: Vec::new(),
    };
    let section = section_of(&diagnosis);
    Document::parse(&section).unwrap();
    assert!(section.contains("&lt;script&gt;alert(1)"));
    for markup in ["<script", "</style", "\u{202e}"] {
        assert!(!section.contains(markup), "{markup:?}");
    }
    let mut is_code = false;
    for line in markdown_of(&diagnosis).lines() {
        is_code ^= line.trim_start().starts_with("```");
        assert!(is_code || !line.replace("\\<", "").contains('<'), "{line}");
    }
}
