//! Our count of cache misses against cachegrind's, on the same loops. The experiment itself
//! refuses counts that are apart; here it must have compared.

use std::process::Command;

#[test]
fn cachegrind_counts_the_same_misses() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let steps = "ijk,ikj,blocked,rows,columns,padded";
    let output = Command::new(env!("CARGO_BIN_EXE_tensorscope-lab"))
        .args([
            "lab", "cache", "--quick", "--sizes", "128", "--steps", steps, "-o",
        ])
        .arg(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let text = std::fs::read_to_string(folder.path().join("cache.json")).unwrap();
    let outcome: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rows = outcome["rows"].as_array().unwrap();
    let ratios = rows
        .iter()
        .filter(|row| row["against"]["reference"] == "cachegrind")
        .map(|row| row["against"]["ratio"]["median"].as_f64().unwrap());
    let ratios: Vec<f64> = ratios.collect();
    // Three orders at one size, three layouts at two; the first level and the second.
    assert_eq!(ratios.len(), 18);
    assert!(ratios.iter().all(|r| (0.9..1.1).contains(r)), "{ratios:?}");
}
