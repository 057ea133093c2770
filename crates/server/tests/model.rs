//! A model without a run: what is answered about it, and what is not even asked.

mod support;

use serde_json::{Value, json};
use support::{HOSTILE, Served};

#[test]
fn a_model_answers_what_it_is_and_where_its_tensors_lie() {
    let server = Served::with_model();
    let facts = server.json("api/model");
    assert_eq!(
        (&facts["name"], &facts["max_context"], &facts["layers"]),
        (&json!(HOSTILE), &json!(2048), &json!(1))
    );
    assert_eq!(facts["machines"][0]["name"], "one");
    let structure = server.json("api/model/structure");
    let tensor = &structure["tensors"][0];
    assert_eq!(tensor["type"], "f32");
    assert_eq!(tensor["shape"], json!([32, 32]));
    assert_eq!(tensor["begin"], 4096);
    assert_eq!(server.json("api/runs"), json!([]));
    assert_eq!(server.get("api/0/info").status, 404);
}

#[test]
fn options_of_an_estimate_arrive_as_they_were_given() {
    let server = Served::with_model();
    let asked = "api/model/estimate?ctx-size=8192&machine=H100%20SXM&attention=&draft=5:0.8";
    assert_eq!(
        server.json(asked),
        json!([
            ["attention", ""],
            ["ctx-size", "8192"],
            ["draft", "5:0.8"],
            ["machine", "H100 SXM"]
        ])
    );
    assert_eq!(server.json("api/model/estimate"), json!([]));
}

/// Neither files nor other commands can be asked for.
#[test]
fn unknown_options_repeated_ones_and_paths_are_refused_by_name() {
    let server = Served::with_model();
    for key in [
        "machines",
        "like",
        "source",
        "type",
        "json",
        "list-machines",
        "layer",
        "",
    ] {
        let reply = server.get(&format!("api/model/estimate?{key}=x"));
        assert_eq!(reply.status, 400, "{key}");
        assert!(reply.error().contains("is not a parameter here"), "{key}");
    }
    let twice = server.get("api/model/estimate?ctx-size=1&ctx-size=2");
    assert!(twice.error().contains("ctx-size is given twice"));
    let wrong = server.get("api/model/estimate?memory=wrong");
    assert_eq!(
        (wrong.status, wrong.error().as_str()),
        (400, "that is wrong")
    );
    for path in ["api/model?x=1", "api/model/structure?x=1"] {
        assert_eq!(server.get(path).status, 400, "{path}");
    }
    for path in ["api/model/", "api/model/info", "api/model/estimate/x"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
}

#[test]
fn runs_have_no_model_without_a_run() {
    let server = Served::with(&[]);
    assert_eq!(server.json("api/model"), Value::Null);
    for path in ["api/model/structure", "api/model/estimate"] {
        let reply = server.get(path);
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.error().contains("no model"), "{path}");
    }
}

#[test]
fn a_model_is_guarded_as_runs_are() {
    let server = Served::with_model();
    for path in ["api/model", "api/model/structure", "api/model/estimate"] {
        let reply = server.ask("GET", &format!("/{path}"), &[], b"");
        assert_eq!(
            (reply.status, reply.body.len()),
            (404, 0),
            "{path}: no token"
        );
        let target = format!("/{}/{path}", server.token);
        let other = [("Host", "evil.example")];
        assert_eq!(server.ask_exactly("GET", &target, &other, b"").status, 403);
        let posted = server.ask("POST", &target, &[("x-tensorscope", "1")], b"");
        assert_eq!(posted.status, 405, "{path}");
        let policy = &server.get(path).headers["content-security-policy"];
        assert!(policy.contains("default-src 'none'"), "{policy}");
    }
}
