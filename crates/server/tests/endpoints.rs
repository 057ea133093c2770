//! Every view answers about a recorded run, and says what is wrong with what it
//! cannot answer.

mod support;

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use support::{EVALS, HOSTILE, Recording, Served, recorded};

fn served() -> (Served, tempfile::TempDir) {
    let (folder, path) = recorded();
    (Served::with(&[&path]), folder)
}

#[test]
fn the_page_is_three_files_of_their_kinds() {
    let server = Served::with(&[]);
    for (path, kind) in [
        ("", "text/html; charset=utf-8"),
        ("app.js", "text/javascript; charset=utf-8"),
        ("app.css", "text/css; charset=utf-8"),
    ] {
        let reply = server.get(path);
        assert_eq!(
            (reply.status, reply.headers["content-type"].as_str()),
            (200, kind)
        );
        assert!(!reply.body.is_empty());
    }
    let reply = server.ask("GET", &format!("/{}", server.token), &[], b"");
    assert_eq!(reply.status, 308);
    assert_eq!(reply.headers["location"], format!("/{}/", server.token));
}

#[test]
fn runs_are_listed_in_order() {
    let (folder, path) = recorded();
    let server = Served::with(&[&path, &path]);
    let run = |number| json!({"run": number, "name": "run", "model": HOSTILE, "live": false});
    assert_eq!(server.json("api/runs"), json!([run(0), run(1)]));
    assert_eq!(server.json("api/1/info")["name"], "run");
    assert_eq!(
        server.json("api/compare?a=0&b=1"),
        json!({"phases": [0, 1]})
    );
    drop(folder);
}

#[test]
fn info_is_sent_once_and_then_only_the_version() {
    let (server, _folder) = served();
    let info = server.json("api/0/info");
    assert_eq!(info["totals"]["evals"], EVALS);
    assert_eq!(info["totals"]["tokens"], EVALS * 2);
    assert_eq!(info["model"]["name"], HOSTILE);
    assert_eq!(info["tensors"].as_array().unwrap().len(), 2);
    let version = info["version"].as_u64().unwrap();
    assert_eq!(
        server.json(&format!("api/0/info?since={version}")),
        json!({"version": version, "live": false})
    );
    let newer = server.json(&format!("api/0/info?since={}", version + 1));
    assert_eq!(newer, info);
}

#[test]
fn lists_and_sums_answer_under_a_filter() {
    let (server, _folder) = served();
    let tokens = server.json("api/0/tokens?from=1&to=4");
    let numbers: Vec<u64> = tokens.as_array().unwrap().iter().map(number_of).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    let summary = server.json("api/0/summary?phase=generate&layer=0");
    assert_eq!(summary["totals"]["evals"], EVALS - 1);
    assert_eq!(summary["by_layer"].as_array().unwrap().len(), 1);
    let evals = server.json("api/0/evals?from=1&to=3&max=10");
    assert_eq!(evals.as_array().unwrap().len(), 3);
    let eval = server.json("api/0/eval?eval=2");
    assert_eq!(eval["eval"], 2);
    assert_eq!(eval["steps"].as_array().unwrap().len(), 4);
    let located = server.json("api/0/locate?offset=12289");
    assert_eq!(located["name"], "blk.0.ffn_up_exps.weight");
    let experts = server.json("api/0/experts");
    assert_eq!(experts["layers"][0]["layer"], 0);
    for by in ["bytes", "nanos"] {
        let flame = server.json(&format!("api/0/flame?by={by}&phase=prompt"));
        assert!(flame["value"].as_u64().unwrap() > 0, "{by}");
    }
}

fn number_of(token: &Value) -> u64 {
    token["token"].as_u64().unwrap()
}

#[test]
fn rasters_have_the_cells_that_were_asked_for() {
    let (server, _folder) = served();
    for (rows, metric) in [
        ("layer", "bytes"),
        ("layer", "nanos"),
        ("tensor", "accesses"),
        ("expert", "accesses"),
        ("expert", "weight"),
    ] {
        let path = format!("api/0/heatmap?rows={rows}&metric={metric}&columns=100");
        let (header, values) = server.get(&path).raster();
        let rows = header["rows"].as_array().unwrap().len();
        let columns = header["columns"].as_u64().unwrap() as usize;
        assert_eq!(values.len(), rows * columns, "{path}");
        assert_eq!(header["edges"].as_array().unwrap().len(), columns + 1);
    }
    let (header, values) = server.get("api/0/offsets?w=30&h=20").raster();
    assert_eq!((values.len(), &header["w"]), (600, &json!(30)));
    assert!(!header["exact"].as_array().unwrap().is_empty());
    let (header, values) = server.get("api/0/nodes?w=30").raster();
    assert_eq!((&header["kind"], values.len()), (&json!("spans"), 0));
}

#[test]
fn the_map_shows_what_was_read_and_what_is_in_memory() {
    let (server, _folder) = served();
    let (header, values) = server.get("api/0/map?cells=16&metric=bytes").raster();
    assert_eq!((values.len(), &header["cell_bytes"]), (16, &json!(4096)));
    assert!(values[0] == 0.0 && values[1] > 0.0);
    let available = header["available"].as_array().unwrap();
    assert!(available.contains(&json!("residency")), "{available:?}");
    // The model was written a moment ago.
    let (header, values) = server.get("api/0/map?cells=16&metric=residency").raster();
    assert_eq!(header["metric"], "residency");
    assert_eq!(values, [1.0; 16]);
    for path in [
        "api/0/map?cells=16&metric=faults",
        "api/0/map?cells=16&metric=disk",
        "api/0/map?cells=16&metric=residency&at=7",
        "api/0/marks?of=reads&w=4&h=4",
        "api/0/disk",
    ] {
        let reply = server.get(path);
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.error().contains("record --faults --io --residency"));
    }
}

#[test]
fn residency_is_not_offered_for_a_model_that_is_gone() {
    let (server, folder) = served();
    std::fs::remove_file(folder.path().join("model.gguf")).unwrap();
    let (header, _) = server.get("api/0/map?cells=16").raster();
    let available = header["available"].as_array().unwrap();
    assert!(!available.contains(&json!("residency")), "{available:?}");
    let reply = server.get("api/0/map?cells=16&metric=residency");
    assert_eq!(reply.status, 404);
    assert!(reply.error().contains("model.gguf"), "{}", reply.error());
}

#[test]
fn analyses_are_computed_once_and_shown_in_parts() {
    let (server, _folder) = served();
    assert_eq!(server.answers.results.load(Ordering::SeqCst), 0);
    let findings = server.json("api/0/findings");
    assert_eq!(findings[0]["text"], HOSTILE);
    assert_eq!(server.json("api/0/why")["causes"][0]["title"], HOSTILE);
    let attention = server.json("api/0/attention");
    assert_eq!(attention["heads"], json!([2]));
    let memory = server.json("api/0/memory");
    assert_eq!(memory["curves"]["points"], json!([5]));
    assert_eq!(memory["opportunities"]["budgets"], json!([6]));
    assert_eq!(memory["distinct_bytes"], 4);
    let prefers = server.json("api/0/prefers");
    assert_eq!(prefers[0]["prefers"][0]["text"], HOSTILE);
    assert!(server.json("api/0/results")["caches"].is_object());
    assert_eq!(server.answers.results.load(Ordering::SeqCst), 1);
}

#[test]
fn charts_are_those_of_the_report() {
    let (server, _folder) = served();
    let chart = server.json("api/0/chart?of=kv-growth");
    assert_eq!(chart["x"]["label"], "context (tokens)");
    assert_eq!(chart["y"]["unit"], "bytes");
    let read = &chart["lines"][0];
    assert_eq!(
        (&read["name"], &read["category"]),
        (&json!("read"), &json!("attention"))
    );
    assert_eq!(read["points"], json!([[2.0, 64.0], [3.0, 128.0]]));
    // A dense model has no experts to cache.
    let none = server.json("api/0/chart?of=expert-cache&pool=per_layer&scope=generate");
    assert_eq!(none, Value::Null);
    for (query, why) in [
        ("of=x", "no chart"),
        ("of=kv-growth&scope=all", "give run or generate"),
    ] {
        let reply = server.get(&format!("api/0/chart?{query}"));
        assert_eq!(reply.status, 400);
        assert!(reply.error().contains(why), "{}", reply.error());
    }
}

#[test]
fn queries_are_answered_cut_and_refused() {
    let (server, _folder) = served();
    let header = [("x-tensorscope", "1")];
    let answer = server.post_sql(&header, "SELECT 'ü'".as_bytes()).json();
    assert_eq!(
        answer["columns"],
        json!([{"name": HOSTILE, "type": "Utf8"}])
    );
    assert_eq!(answer["rows"].as_array().unwrap().len(), 1000);
    assert_eq!(answer["rows"][0], json!(["SELECT 'ü'"]));
    assert_eq!(answer["is_cut"], true);
    assert!(answer["seconds"].is_number());
    let reply = server.post_sql(&header, b"DROP");
    assert_eq!(
        (reply.status, reply.error().as_str()),
        (400, "cannot parse \"DROP\"")
    );
}

#[test]
fn bad_questions_are_answered_with_a_sentence() {
    let (server, _folder) = served();
    for (path, status, sentence) in [
        (
            "api/1/info",
            404,
            "there is no run 1; there are 1, counted from 0",
        ),
        ("api/99999999999999999999/info", 404, "is not a run"),
        ("api/-1/info", 404, "is not a run"),
        ("api/0/nothing", 404, "ask for one of info, tokens"),
        (
            "api/0/info?since=x",
            400,
            "since: \"x\" is not a whole number",
        ),
        (
            "api/0/info?sinse=1",
            400,
            "\"sinse\" is not a parameter here",
        ),
        (
            "api/0/tokens?from=9&to=3",
            400,
            "from=9 is greater than to=3",
        ),
        ("api/0/tokens?from=1&from=2", 400, "from is given twice"),
        ("api/0/heatmap?rows=layer", 400, "columns is missing"),
        ("api/0/heatmap?columns=8193", 400, "give 1 to 8192"),
        (
            "api/0/heatmap?columns=9&rows=cow",
            400,
            "is none of layer, tensor, expert",
        ),
        ("api/0/offsets?w=8192&h=8192", 400, "cells are too many"),
        ("api/0/offsets?w=8&h=0", 400, "h=0 is out of range"),
        (
            "api/0/offsets?w=8&h=8&t0=-1",
            400,
            "t0: \"-1\" is not a whole number",
        ),
        (
            "api/0/offsets?w=8&h=8&o0=1.5",
            400,
            "o0: \"1.5\" is not a whole number",
        ),
        (
            "api/0/offsets?w=8&h=8&t1=1e9",
            400,
            "t1: \"1e9\" is not a whole number",
        ),
        ("api/0/nodes?w=+8", 400, "w: \" 8\" is not a whole number"),
        ("api/0/nodes?w=%2B8", 400, "w: \"+8\" is not a whole number"),
        ("api/0/map?cells=", 400, "cells: \"\" is not a whole number"),
        (
            "api/0/map?cells=4&metric=cow",
            400,
            "is none of accesses, bytes, recency",
        ),
        (
            "api/0/marks?w=4&h=4&of=cows",
            400,
            "is none of faults, reads",
        ),
        ("api/0/marks?w=4&of=reads", 400, "h is missing"),
        ("api/0/marks?w=4&h=9999", 400, "h=9999 is out of range"),
        ("api/0/disk?at=x", 400, "at: \"x\" is not a whole number"),
        ("api/0/disk?cells=4", 400, "is not a parameter here"),
        ("api/0/locate", 400, "offset is missing"),
        (
            "api/0/locate?offset=65536",
            404,
            "behind the end of the model",
        ),
        ("api/0/eval?eval=5", 404, "no evaluation 5"),
        ("api/0/flame?by=cow", 400, "is none of bytes, nanos"),
        ("api/0/summary?layer=x", 400, "layer: \"x\" is not a number"),
        ("api/0/summary?phase=x", 400, "is none of prompt, generate"),
        ("api/0/summary?tokens=5-2", 400, "tokens: 5 comes after 2"),
        ("api/compare?a=0", 400, "b is missing"),
        ("api/compare?a=0&b=1", 404, "there is no run 1"),
    ] {
        let reply = server.get(path);
        assert_eq!(reply.status, status, "{path}: {}", reply.text());
        let error = reply.error();
        assert!(error.contains(sentence), "{path}: {error}");
    }
}

#[test]
fn a_live_run_grows_until_its_recording_ends() {
    let mut recording = Recording::start();
    recording.evaluate(0);
    let server = Served::with(&[&recording.path]);
    let first = server.json("api/0/info");
    assert_eq!(
        (&first["live"], &first["totals"]["evals"]),
        (&json!(true), &json!(1))
    );
    recording.evaluate(1);
    // Asking is how the page waits, too.
    let grown = newer_than(&server, &first);
    assert_eq!(grown["totals"]["evals"], 2);
    let (folder, _) = recording.finish();
    let ended = newer_than(&server, &grown);
    assert_eq!(
        (&ended["live"], &ended["totals"]["evals"]),
        (&json!(false), &json!(2))
    );
    drop(folder);
}

/// Asks until there is something new. The index is refreshed about once a second;
/// after a minute something is broken.
fn newer_than(server: &Served, info: &Value) -> Value {
    let path = format!("api/0/info?since={}", info["version"]);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        let newer = server.json(&path);
        if newer["version"] != info["version"] {
            return newer;
        }
        std::thread::yield_now();
    }
    panic!("the run did not grow");
}
