//! `tensorscope inspect` as a whole program.
//!
//! Golden files lie in `tests/golden`; `TENSORSCOPE_BLESS=1 cargo test` writes
//! them anew.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use gguf::GgmlType;
use testing::gguf_bytes::{Builder, TensorSpec, dense, mixed, moe};

/// A directory with model files, in which the program runs.
struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Dir {
        Dir(tempfile::tempdir().unwrap())
    }

    fn with(name: &str, bytes: &[u8]) -> Dir {
        let dir = Dir::new();
        dir.write(name, bytes);
        dir
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.0.path().join(name), bytes).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorscope"));
        command
            .current_dir(self.0.path())
            .arg("inspect")
            .args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Standard output of a run that must succeed silently.
    fn stdout(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*stderr), (Some(0), ""));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.stdout(arguments)).unwrap()
    }

    /// The one line that a run prints that must be refused.
    fn refusal(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert_eq!(output.stdout, b"");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        stderr.trim_end().to_owned()
    }
}

#[test]
fn every_kind_of_bad_file_gets_one_line_and_exit_2() {
    let good = || dense(GgmlType::Q8_0);
    let tensor = |name: &[u8], dims: &[u64], ty: u32, offset: u64| Builder {
        tensors: vec![TensorSpec {
            name: name.to_vec(),
            dims: dims.to_vec(),
            ty,
            offset,
            size: 0,
        }],
        ..Builder::default()
    };
    let bytes = good().build();
    let check = |what: &str, bytes: &[u8], expect: &str| {
        let line = Dir::with("m.gguf", bytes).refusal(&["m.gguf"]);
        let expect = format!("tensorscope: m.gguf: byte {expect}");
        assert!(
            line.starts_with(&expect),
            "{what}: {line}\nexpected: {expect}…"
        );
    };
    check("empty", b"", "0: the file is empty");
    check(
        "3 bytes",
        b"GGU",
        "0: the file ends inside the magic number",
    );
    check(
        "magic",
        b"not a model at all........",
        "0: wrong magic number \"not \"",
    );
    check(
        "in the counts",
        &bytes[..20],
        "8: 22 tensors need at least 550 bytes and 4 are left in the file: truncated",
    );
    check("in the metadata", &bytes[..100], "");
    check("in the data", &bytes[..bytes.len() - 1], "");
    check(
        "version",
        &Builder {
            version: 77,
            ..good()
        }
        .build(),
        "4: unknown GGUF version 77",
    );
    check(
        "big endian",
        &Builder {
            version: 3 << 24,
            ..good()
        }
        .build(),
        "4: a big-endian file",
    );
    check(
        "value type",
        &Builder::default().raw("k", 50, &[0; 8]).build(),
        "33: unknown type 50",
    );
    check(
        "counts",
        &Builder {
            tensor_count: Some(1 << 50),
            ..good()
        }
        .build(),
        "8: absurd count",
    );
    check(
        "entries",
        &Builder {
            entry_count: Some(1 << 50),
            ..good()
        }
        .build(),
        "16: absurd count",
    );
    check(
        "string",
        &Builder::default().raw("k", 8, &[0xff; 8]).build(),
        "37: absurd length",
    );
    check(
        "array",
        &Builder::default().array("k", 4, 1 << 61, &[]).build(),
        "41: absurd length",
    );
    check(
        "nested array",
        &Builder::default().array("k", 9, 1, &[0; 20]).build(),
        "37: nested array",
    );
    check(
        "alignment",
        &good().u32("general.alignment", 33).build(),
        "",
    );
    check(
        "tensor type",
        &tensor(b"t", &[32], 77, 0).build(),
        "45: tensor \"t\" has unknown type 77",
    );
    check(
        "dimensions",
        &tensor(b"t", &[1; 5], 0, 0).build(),
        "33: tensor \"t\" has 5 dimensions",
    );
    check(
        "overflow",
        &tensor(b"t", &[1 << 62, 4], 0, 0).build(),
        "37: tensor \"t\" has an absurd shape",
    );
    check(
        "block",
        &tensor(b"t", &[20], 8, 0).build(),
        "37: tensor \"t\" of type q8_0 has rows of 20",
    );
    check(
        "unaligned",
        &tensor(b"t", &[0], 0, 3).build(),
        "49: tensor \"t\" lies at data offset 3",
    );
    check(
        "past the end",
        &tensor(b"t", &[32], 0, 1 << 40).header(),
        "49: tensor \"t\" lies at bytes",
    );
    check(
        "not UTF-8",
        &tensor(b"\xc3\x28", &[0], 0, 0).build(),
        "32: tensor name 0 is not UTF-8",
    );
    let mut twice = tensor(b"t", &[8], 0, 0);
    twice.tensors.push(twice.tensors[0].clone());
    let mut header = twice.header();
    header.resize(256, 0);
    check("duplicate", &header, "57: duplicate tensor name \"t\"");
    twice.tensors[1].name = b"u".to_vec();
    let mut header = twice.header();
    header.resize(256, 0);
    check("overlap", &header, "96: tensor \"u\" overlaps tensor \"t\"");
}

#[test]
fn a_missing_file_a_directory_and_a_missing_part_are_named() {
    let dir = Dir::new();
    assert_eq!(
        dir.refusal(&["none.gguf"]),
        "tensorscope: none.gguf: byte 0: cannot open: no such file or directory"
    );
    assert_eq!(
        dir.refusal(&["."]),
        "tensorscope: .: byte 0: not a regular file"
    );
    let part = Builder::default().u16("split.no", 0).u16("split.count", 2);
    dir.write("m-00001-of-00002.gguf", &part.build());
    assert_eq!(
        dir.refusal(&["m-00001-of-00002.gguf"]),
        "tensorscope: m-00002-of-00002.gguf: byte 0: split file 2 of 2 is missing (needed by m-00001-of-00002.gguf)"
    );
}

#[test]
fn truncation_at_every_byte_of_the_header_is_refused() {
    let bytes = mixed().build();
    let dir = Dir::new();
    // Every byte is tried in the library's own tests; here, that the program
    // says it in one line.
    for len in (0..mixed().header().len()).step_by(53) {
        dir.write("m.gguf", &bytes[..len]);
        let line = dir.refusal(&["m.gguf"]);
        assert!(
            line.starts_with("tensorscope: m.gguf: byte "),
            "{len}: {line}"
        );
    }
}

#[test]
fn bad_flags_are_refused_in_one_line() {
    let dir = Dir::with("m.gguf", &moe().build());
    let check = |arguments: &[&str], expect: &str| assert_eq!(dir.refusal(arguments), expect);
    check(
        &["m.gguf", "--lookup", "12Q"],
        "tensorscope: --lookup 12Q: not an offset; write 4096, 0x1000, 4K, 1M or 2G, and @FILE for another file",
    );
    check(
        &["m.gguf", "--lookup", "1G"],
        &format!(
            "tensorscope: m.gguf: byte 1073741824: beyond the end of the file, which has {} bytes",
            moe().len_bytes()
        ),
    );
    check(
        &["m.gguf", "--lookup", "0@other.gguf"],
        "tensorscope: --lookup: other.gguf is not a file of m.gguf",
    );
    check(
        &["m.gguf", "--kv-type", "q6_K"],
        "tensorscope: --kv-type q6_K: llama.cpp's KV cache has no such type, see `tensorscope inspect --help`",
    );
}

#[test]
fn the_text_is_what_it_was() {
    let dir = Dir::with("moe.gguf", &moe().build());
    golden(
        "moe.txt",
        &dir.stdout(&["moe.gguf", "--ctx", "1000", "--batch", "4"]),
    );
    golden(
        "moe-tensors.txt",
        &dir.stdout(&["moe.gguf", "--tensors", "--heads"]),
    );
    golden("moe.csv", &dir.stdout(&["moe.gguf", "--csv", "--heads"]));
    golden("moe.json", &dir.stdout(&["moe.gguf", "--json"]));
}

#[test]
fn csv_rows_add_up_to_the_tensors_of_the_json() {
    for builder in [dense(GgmlType::Q4_K), moe(), mixed()] {
        let dir = Dir::with("m.gguf", &builder.build());
        let json = dir.json(&["m.gguf", "--json"]);
        let text = dir.stdout(&["m.gguf", "--csv"]);
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let columns = reader.headers().unwrap().clone();
        assert_eq!(
            columns.iter().take(9).collect::<Vec<_>>(),
            [
                "tensor_name",
                "file",
                "file_offset",
                "size_bytes",
                "type",
                "layer_id",
                "component_type",
                "role",
                "expert_id"
            ]
        );
        let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        for tensor in json["tensors"].as_array().unwrap() {
            let name = tensor["tensor_name"].as_str().unwrap();
            let mine = rows.iter().filter(|row| &row[0] == name);
            let sum: u64 = mine.clone().map(|row| row[3].parse::<u64>().unwrap()).sum();
            assert_eq!(Some(sum), tensor["size_bytes"].as_u64(), "{name}");
            let first = mine.map(|row| row[2].parse::<u64>().unwrap()).min();
            assert_eq!(first, tensor["file_offset"].as_u64(), "{name}");
        }
    }
}

#[test]
fn lookup_names_tensor_layer_expert_and_head() {
    let dir = Dir::with("m.gguf", &moe().build());
    let csv = dir.stdout(&["m.gguf", "--csv", "--heads"]);
    let find = |start: &str| -> Vec<String> {
        let line = csv.lines().find(|l| l.starts_with(start)).unwrap();
        line.split(',').map(str::to_owned).collect()
    };
    let slice = find("blk.1.ffn_up_exps.weight");
    let offset: u64 = slice[2].parse().unwrap();
    let size: u64 = slice[3].parse().unwrap();
    let third = dir.json(&[
        "m.gguf",
        "--json",
        "--lookup",
        &format!("{:#x}", offset + 3 * size - 1),
    ]);
    assert_eq!(third["tensor_name"], "blk.1.ffn_up_exps.weight");
    assert_eq!(
        (&third["layer_id"], &third["expert_id"]),
        (&1.into(), &2.into())
    );

    let text = dir.stdout(&["m.gguf", "--lookup", &find("blk.0.attn_q.weight")[2]]);
    assert!(text.contains("tensor blk.0.attn_q.weight\n"), "{text}");
    assert!(text.contains("head       q 0\n"), "{text}");
    let text = dir.stdout(&["m.gguf", "--lookup", "3"]);
    assert_eq!(
        text,
        "m.gguf: byte 3: header (magic number, version, counts)\n"
    );
    let text = dir.stdout(&["m.gguf", "--lookup", "30"]);
    assert_eq!(
        text,
        "m.gguf: byte 30: header, metadata key general.architecture\n"
    );
    let padding = moe().data_offset() - 1;
    let text = dir.stdout(&["m.gguf", "--lookup", &padding.to_string()]);
    assert_eq!(
        text,
        format!("m.gguf: byte {padding}: padding between the header and token_embd.weight\n")
    );
}

#[test]
fn a_split_set_is_one_model_from_any_of_its_files() {
    let dir = Dir::new();
    let part = |number: u16| {
        Builder::default()
            .u16("split.no", number)
            .u16("split.count", 2)
            .i32("split.tensors.count", 2)
            .tensor(
                &format!("blk.{number}.attn_q.weight"),
                GgmlType::F16,
                &[8, 8],
            )
    };
    dir.write("m-00001-of-00002.gguf", &part(0).build());
    dir.write("m-00002-of-00002.gguf", &part(1).build());
    let first = dir.stdout(&["m-00001-of-00002.gguf", "--csv"]);
    assert_eq!(first, dir.stdout(&["m-00002-of-00002.gguf", "--csv"]));
    assert_eq!(first.lines().count(), 3);
    let offset = part(1).data_offset().to_string();
    let check = |model: &str, place: &str, expect: &str| {
        let answer = dir.json(&[model, "--json", "--lookup", place]);
        assert_eq!(answer["tensor_name"], expect);
    };
    check("m-00001-of-00002.gguf", &offset, "blk.0.attn_q.weight");
    check("m-00002-of-00002.gguf", &offset, "blk.1.attn_q.weight");
    let place = format!("{offset}@m-00002-of-00002.gguf");
    check("m-00001-of-00002.gguf", &place, "blk.1.attn_q.weight");
}

#[test]
fn a_reader_that_stops_early_is_no_failure() {
    // More output than a pipe holds, so that writing must fail.
    let mut builder = Builder::default();
    for layer in 0..4000 {
        builder = builder.tensor(
            &format!("blk.{layer}.attn_norm.weight"),
            GgmlType::F32,
            &[8],
        );
    }
    let dir = Dir::with("m.gguf", &builder.build());
    for flags in [&["--csv"][..], &["--json"], &["--tensors"]] {
        let mut arguments = vec!["m.gguf"];
        arguments.extend(flags);
        let mut child = dir
            .command(&arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 100]).unwrap();
        drop(stdout);
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*stderr), (Some(0), ""), "{flags:?}");
    }
}

#[test]
fn help_has_examples() {
    let help = Dir::new().stdout(&["--help"]);
    assert!(
        help.contains("Examples:\n  tensorscope inspect model.gguf\n"),
        "{help}"
    );
}

fn golden(name: &str, got: &str) {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("TENSORSCOPE_BLESS").is_some() {
        std::fs::write(&path, got).unwrap();
    }
    let expect = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        got, expect,
        "{name} differs: if that is meant, run with TENSORSCOPE_BLESS=1"
    );
}
