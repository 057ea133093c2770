//! A database as Nsight Systems exports it, and hostile ones.

use std::path::{Path, PathBuf};

use imports::{Clock, Format};
use proptest::prelude::*;
use rules::Value;

fn sample() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/nsys.sqlite")
}

/// The sample, changed by SQL.
fn changed(sql: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    // A name that must be escaped in an address.
    let path = folder.path().join("a b?#%.sqlite");
    std::fs::copy(sample(), &path).unwrap();
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch(sql).unwrap();
    drop(connection);
    (folder, path)
}

fn error_of(sql: &str) -> String {
    let (_folder, path) = changed(sql);
    let error = imports::read(&path, None).unwrap_err().to_string();
    error.rsplit_once(".sqlite: ").unwrap().1.to_owned()
}

#[test]
fn kernels_copies_and_calls_become_shares() {
    let import = imports::read(&sample(), None).unwrap();
    assert_eq!(
        (import.format, import.clock),
        (Format::NsysSqlite, Clock::Wall)
    );
    let card = &import.subjects[0];
    assert_eq!(
        (card.kind.as_str(), card.name.as_str()),
        ("trace", "card 0")
    );
    // Ten kernels of 40 µs and copies of 100 and 50 µs in 1100.
    for (name, expect) in [
        ("gpu.busy", 0.5),
        ("gpu.gaps", 0.5),
        ("gpu.kernels", 10.0),
        ("gpu.mean_kernel_nanos", 40_000.0),
        ("copies.share", 150.0 / 1100.0),
        ("copies.host_to_device_bytes", 1e6),
        ("copies.pageable_share", 2.0 / 3.0),
        ("api.launch_share", 200.0 / 1100.0),
        ("api.sync_share", 30.0 / 1100.0),
    ] {
        let Some(Value::Number(found)) = card.metrics.get(name).map(|metric| metric.value.clone())
        else {
            panic!("{name} is absent");
        };
        assert!(
            (found - expect).abs() < expect * 1e-9,
            "{name}: {found}, not {expect}"
        );
    }
    assert_eq!(
        card.metrics.get("graphs.used").unwrap().value,
        Value::Flag(false)
    );
    let kernel = &import.events[0];
    assert_eq!(kernel.begin_nanos, 1_700_000_000_001_000_000);
    assert_eq!(
        (kernel.category.as_str(), kernel.name.as_str()),
        ("kernel", "mul_mat_vec_q(void const*, float*)")
    );
    let call = import
        .events
        .iter()
        .find(|event| event.category == "api")
        .unwrap();
    assert_eq!((call.pid, call.tid), (0x4d2, 0x4d2));
}

#[test]
fn a_file_of_another_version_lacks_tables_and_columns() {
    let (_folder, path) = changed(
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN graphNodeId; DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY; DROP TABLE TARGET_INFO_SESSION_START_TIME",
    );
    let import = imports::read(&path, None).unwrap();
    assert_eq!(import.clock, Clock::Unknown);
    assert!(
        import.subjects[0]
            .metrics
            .get("copies.pageable_share")
            .is_none()
    );
}

#[test]
fn graphs_are_seen_by_their_launches() {
    let (_folder, path) =
        changed("UPDATE StringIds SET value = 'cudaGraphLaunch_v10000' WHERE id = 3");
    let import = imports::read(&path, None).unwrap();
    assert_eq!(
        import.subjects[0].metrics.get("graphs.used").unwrap().value,
        Value::Flag(true)
    );
}

#[test]
fn hostile_schemas_are_refused() {
    const KERNEL: &str = "CUPTI_ACTIVITY_KIND_KERNEL";
    for (sql, expect) in [
        (
            format!(
                "ALTER TABLE {KERNEL} RENAME TO k; CREATE VIEW {KERNEL} AS SELECT * FROM k, k AS k2"
            ),
            format!("{KERNEL} is no plain table; nsys writes no such file"),
        ),
        (
            format!("DROP TABLE {KERNEL}; CREATE VIRTUAL TABLE {KERNEL} USING fts5(start)"),
            format!("{KERNEL} is no plain table; nsys writes no such file"),
        ),
        (
            format!(
                "DROP TABLE {KERNEL}; CREATE TABLE {KERNEL} (start INTEGER, end INTEGER AS (length(zeroblob(1000000000))))"
            ),
            format!("{KERNEL} has computed columns; nsys writes no such file"),
        ),
        (
            format!("DROP TABLE {KERNEL}; CREATE TABLE {KERNEL} (a INTEGER)"),
            format!("{KERNEL} has none of the columns of nsys"),
        ),
        (
            format!("UPDATE {KERNEL} SET end = start - 1 WHERE rowid = 3"),
            format!("{KERNEL}, row 3: a kernel that ends before it begins"),
        ),
        (
            format!("UPDATE {KERNEL} SET start = 'soon' WHERE rowid = 2"),
            format!("{KERNEL}, row 2: Invalid column type Text at index: 0, name: start"),
        ),
        (
            format!("DROP TABLE {KERNEL}; DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME"),
            format!(
                "a database without {KERNEL} and CUPTI_ACTIVITY_KIND_RUNTIME; export it with `nsys export --type sqlite` from a profile with `-t cuda`"
            ),
        ),
    ] {
        assert_eq!(error_of(&sql), expect, "{sql}");
    }
}

#[test]
fn reading_changes_nothing_beside_the_file() {
    let (folder, path) = changed("SELECT 1");
    let before = std::fs::read(&path).unwrap();
    imports::read(&path, None).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

proptest! {
    #[test]
    fn no_damage_makes_it_panic(
        places in proptest::collection::vec((0usize..100_000, any::<u8>()), 0..8),
        cut in 0usize..100_000,
    ) {
        let mut bytes = std::fs::read(sample()).unwrap();
        for (place, byte) in places {
            let place = place % bytes.len();
            bytes[place] = byte;
        }
        if cut % 3 == 0 {
            bytes.truncate(cut % bytes.len());
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        if let Ok(import) = imports::read(file.path(), Some(Format::NsysSqlite)) {
            prop_assert!(import.events.len() < 10_000);
        }
    }
}
