//! SQL over real tables: one run, several, and runs that are not right.

mod kernel_logs;

use std::{fs, path::Path};

use rundir::Run;
use store::{Format, Session, StoreError, ingest, views, write_query};
use testing::{device, log};
use trace::read::StreamEnd;

fn make_run(path: &Path, evaluations: u64) {
    fs::create_dir_all(path.join("log")).unwrap();
    log::small_log(&path.join("log"), evaluations, StreamEnd::Closed);
    ingest(&Run::open(path).unwrap(), &mut |_| ()).unwrap();
}

fn ask(session: &Session, sql: &str, format: Format) -> Result<String, StoreError> {
    let mut out = Vec::new();
    write_query(session, sql, format, &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

fn csv(session: &Session, sql: &str) -> String {
    ask(session, sql, Format::Csv).unwrap()
}

#[test]
fn answers_come_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    make_run(folder.path(), 3);
    let session = Session::open(&[folder.path()]).unwrap();
    let sql = "SELECT eval, phase, layer, COUNT(*) AS n FROM accesses WHERE kind = 'weight' GROUP BY 1, 2, 3 ORDER BY 1, 3 NULLS FIRST LIMIT 2";
    let check = |format, expect: &str| assert_eq!(ask(&session, sql, format).unwrap(), expect);
    check(
        Format::Csv,
        "eval,phase,layer,n\n0,prompt,,2\n0,prompt,0,4\n",
    );
    check(
        Format::Json,
        "{\"eval\":0,\"phase\":\"prompt\",\"layer\":null,\"n\":2}\n{\"eval\":0,\"phase\":\"prompt\",\"layer\":0,\"n\":4}\n",
    );
    check(
        Format::Table,
        "\
+------+--------+-------+---+
| eval | phase  | layer | n |
+------+--------+-------+---+
| 0    | prompt |       | 2 |
| 0    | prompt | 0     | 4 |
+------+--------+-------+---+
",
    );
    let mut parquet = Vec::new();
    write_query(&session, sql, Format::Parquet, &mut parquet).unwrap();
    assert_eq!(
        (&parquet[..4], &parquet[parquet.len() - 4..]),
        (&b"PAR1"[..], &b"PAR1"[..])
    );
}

#[test]
fn an_answer_without_rows_has_its_header() {
    let folder = tempfile::tempdir().unwrap();
    make_run(folder.path(), 3);
    let session = Session::open(&[folder.path()]).unwrap();
    assert_eq!(
        csv(&session, "SELECT eval, op FROM accesses WHERE eval = 99"),
        "eval,op\n"
    );
    assert_eq!(
        ask(
            &session,
            "SELECT eval FROM evals WHERE eval = 99",
            Format::Json
        )
        .unwrap(),
        ""
    );
}

#[test]
fn views_and_documented_queries_run_on_one_run_and_on_several() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|name| folder.path().join(name));
    for (path, evaluations) in paths.iter().zip([3, 5]) {
        let recorded = kernel_logs::write_run(path, evaluations, evaluations);
        // Another thread computes on a device.
        device::mixed_stream(&path.join("log"), 9, 4, StreamEnd::Closed);
        ingest(&recorded.run, &mut |_| ()).unwrap();
    }
    let one = Session::open(&[&paths[0]]).unwrap();
    let both = Session::open(&[&paths[0], &paths[1]]).unwrap();
    for view in &views::VIEWS {
        let rows = |session: &Session| {
            csv(session, &format!("SELECT * FROM {}", view.name))
                .lines()
                .count()
        };
        assert!(rows(&one) > 1, "{} has rows", view.name);
        assert!(rows(&both) > rows(&one), "{} has rows of both", view.name);
        let header = csv(&both, &format!("SELECT * FROM {} LIMIT 1", view.name));
        assert!(header.starts_with("run,"), "{}: {header}", view.name);
    }
    for (title, sql) in views::QUERIES {
        assert!(csv(&one, sql).lines().count() > 1, "{title}");
    }
}

#[test]
fn several_runs_are_one_dataset() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["a", "it's [b] *?%20é"].map(|name| folder.path().join(name));
    make_run(&paths[0], 3);
    make_run(&paths[1], 5);
    let both = Session::open(&[&paths[0], &paths[1]]).unwrap();
    let answer = csv(
        &both,
        "SELECT run, COUNT(*) AS evals FROM evals GROUP BY run ORDER BY run",
    );
    assert_eq!(answer, "run,evals\na,3\nit's [b] *?%20é,5\n");
    let total = csv(&both, "SELECT SUM(bytes) AS bytes FROM accesses");
    let of_traffic = csv(&both, "SELECT SUM(bytes) AS bytes FROM traffic");
    assert_eq!(total, of_traffic);
}

#[test]
fn a_wrong_query_is_one_line_that_says_what_and_where() {
    let folder = tempfile::tempdir().unwrap();
    make_run(folder.path(), 3);
    let session = Session::open(&[folder.path()]).unwrap();
    let check = |sql: &str, parts: &[&str]| {
        let error = ask(&session, sql, Format::Csv).unwrap_err().to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(
            parts.iter().all(|part| error.contains(part)),
            "{sql}: {error}"
        );
    };
    check("SELECT (1 FROM run", &["not understood", "Line: 1"]);
    check("SELECT byte FROM accesses", &["byte"]);
    check("SELECT * FROM access", &["access"]);
    check("", &["not understood"]);
    check("SELECT 1; SELECT 2", &["not understood"]);
    for sql in [
        "DROP TABLE accesses",
        "CREATE TABLE x AS SELECT 1",
        "COPY evals TO '/tmp/x.csv'",
        "SET a.b = 1",
    ] {
        check(sql, &["not understood"]);
    }
}

#[test]
fn missing_truncated_and_foreign_tables_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let check = |expect: &str| {
        let error = Session::open(&[folder.path()])
            .err()
            .expect("an error")
            .to_string();
        assert!(error.contains(expect), "{error}");
        assert!(error.contains("tensorscope ingest"), "{error}");
    };
    fs::create_dir_all(folder.path().join("log")).unwrap();
    log::small_log(&folder.path().join("log"), 3, StreamEnd::Closed);
    check("has no tables");
    let run = Run::open(folder.path()).unwrap();
    let again = || ingest(&run, &mut |_| ()).unwrap();
    let file = |name: &str| folder.path().join("tables").join(name);
    again();
    fs::remove_file(file("nodes.parquet")).unwrap();
    check("nodes.parquet: the table is missing");
    again();
    let bytes = fs::read(file("nodes.parquet")).unwrap();
    fs::write(file("nodes.parquet"), &bytes[..bytes.len() - 30]).unwrap();
    check("nodes.parquet: the table is damaged");
    fs::write(file("nodes.parquet"), b"").unwrap();
    check("nodes.parquet: the table is damaged");
    fs::copy(file("evals.parquet"), file("nodes.parquet")).unwrap();
    check("nodes.parquet: this is table `evals` under another name");
    again();
    let session = Session::open(&[folder.path()]).unwrap();
    let mut foreign = Vec::new();
    write_query(
        &session,
        "SELECT * FROM nodes",
        Format::Parquet,
        &mut foreign,
    )
    .unwrap();
    fs::write(file("nodes.parquet"), foreign).unwrap();
    check("nodes.parquet: this Parquet file was not made by tensorscope");
}

#[test]
fn a_flipped_bit_in_a_page_is_an_error_and_no_wrong_number() {
    let folder = tempfile::tempdir().unwrap();
    make_run(folder.path(), 200);
    let path = folder.path().join("tables/accesses.parquet");
    let sql =
        "SELECT tensor_name, SUM(bytes) AS bytes FROM accesses GROUP BY tensor_name ORDER BY 1";
    let right = csv(&Session::open(&[folder.path()]).unwrap(), sql);
    let bytes = fs::read(&path).unwrap();
    let footer = u32::from_le_bytes(bytes[bytes.len() - 8..bytes.len() - 4].try_into().unwrap());
    for at in (4..bytes.len() - 8 - footer as usize).step_by(37) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        fs::write(&path, &damaged).unwrap();
        if let Ok(session) = Session::open(&[folder.path()])
            && let Ok(answer) = ask(&session, sql, Format::Csv)
        {
            assert_eq!(answer, right, "byte {at}");
        }
    }
}
