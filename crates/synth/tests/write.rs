//! What the writer writes, the reader reads; and what goes wrong leaves
//! nothing behind.

use std::io::Write;
use std::path::{Path, PathBuf};

use gguf::GgmlType;
use gguf::metadata::Value;
use gguf::write::{Existing, Layout, MetadataBuilder, Split, TensorSpec, WriteError};
use proptest::prelude::*;

#[test]
fn every_value_type_reads_back() {
    let mut metadata = MetadataBuilder::new();
    metadata.set("a.u8", 200u8);
    metadata.set("a.i8", -100i8);
    metadata.set("a.u16", 60_000u16);
    metadata.set("a.i16", -30_000i16);
    metadata.set("a.u32", 4_000_000_000u32);
    metadata.set("a.i32", -2_000_000_000i32);
    metadata.set("a.f32", 1.5f32);
    metadata.set("a.u64", u64::MAX);
    metadata.set("a.i64", i64::MIN);
    metadata.set("a.f64", -0.1f64);
    metadata.set("a.bool", true);
    metadata.set("a.str", "wörld");
    metadata.set("a.empty", String::new());
    metadata.set_array("a.words", ["one", "", "three"]);
    metadata.set_array("a.bools", [true, false]);
    metadata.set_array::<i32>("a.none", []);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let layout = Layout::new(&path, &metadata, specs(&[&[8]]), Split::Whole).unwrap();
    layout.write(Existing::Refuse, fill(&layout)).unwrap();

    let model = gguf::Model::open(&path).unwrap();
    let get = |key: &str| model.metadata().get(key).unwrap().clone();
    assert_eq!(get("a.u8"), Value::U8(200));
    assert_eq!(get("a.i8"), Value::I8(-100));
    assert_eq!(get("a.u16"), Value::U16(60_000));
    assert_eq!(get("a.i16"), Value::I16(-30_000));
    assert_eq!(get("a.u32"), Value::U32(4_000_000_000));
    assert_eq!(get("a.i32"), Value::I32(-2_000_000_000));
    assert_eq!(get("a.f32"), Value::F32(1.5));
    assert_eq!(get("a.u64"), Value::U64(u64::MAX));
    assert_eq!(get("a.i64"), Value::I64(i64::MIN));
    assert_eq!(get("a.f64"), Value::F64(-0.1));
    assert_eq!(get("a.bool"), Value::Bool(true));
    assert_eq!(get("a.str").as_str(), Some("wörld"));
    assert_eq!(get("a.empty").as_str(), Some(""));
    let elements = |key: &str| {
        get(key)
            .as_array()
            .unwrap()
            .elements
            .clone()
            .unwrap()
            .to_vec()
    };
    let word = |text: &str| Value::String(text.into());
    assert_eq!(elements("a.words"), [word("one"), word(""), word("three")]);
    assert_eq!(elements("a.bools"), [Value::Bool(true), Value::Bool(false)]);
    assert_eq!(elements("a.none"), []);
}

#[test]
fn alignment_is_obeyed_and_declared_in_every_file() {
    let mut metadata = MetadataBuilder::new();
    metadata.set_alignment(256);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let specs = specs(&[&[3], &[5, 7], &[11]]);
    let layout = Layout::new(&path, &metadata, specs, Split::Tensors(2)).unwrap();
    layout.write(Existing::Refuse, fill(&layout)).unwrap();
    let model = gguf::Model::open(&layout.files()[0].path).unwrap();
    assert_eq!(model.files().len(), 2);
    assert!(model.files().iter().all(|file| file.alignment_bytes == 256));
    assert!(
        model
            .tensors()
            .iter()
            .all(|tensor| tensor.file_offset.is_multiple_of(256))
    );
}

#[test]
fn split_files_carry_the_keys_and_names_of_gguf_split() {
    let mut metadata = MetadataBuilder::new();
    metadata.set("general.architecture", "llama");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.v1.gguf");
    let specs = specs(&[&[4], &[4], &[4], &[4], &[4]]);
    let layout = Layout::new(&path, &metadata, specs, Split::Tensors(2)).unwrap();
    layout.write(Existing::Refuse, fill(&layout)).unwrap();
    let names: Vec<_> = listing(dir.path());
    assert_eq!(
        names,
        [
            "m.v1-00001-of-00003.gguf",
            "m.v1-00002-of-00003.gguf",
            "m.v1-00003-of-00003.gguf"
        ]
    );
    let model = gguf::Model::open(&dir.path().join(&names[0])).unwrap();
    for (number, file) in model.files().iter().enumerate() {
        assert_eq!(
            file.metadata.get("split.no"),
            Some(&Value::U16(number as u16))
        );
        assert_eq!(file.metadata.get("split.count"), Some(&Value::U16(3)));
        assert_eq!(
            file.metadata.get("split.tensors.count"),
            Some(&Value::I32(5))
        );
        let described = file.metadata.get("general.architecture").is_some();
        assert_eq!(
            described,
            number == 0,
            "only the first file describes the model"
        );
    }
}

#[test]
fn a_tensor_larger_than_the_split_gets_a_file_of_its_own() {
    let specs = specs(&[&[10], &[1000], &[10], &[10]]);
    let layout = Layout::new(
        Path::new("m.gguf"),
        &MetadataBuilder::new(),
        specs,
        Split::Bytes(100),
    );
    let shares: Vec<_> = layout
        .unwrap()
        .files()
        .iter()
        .map(|file| file.tensors.clone())
        .collect();
    assert_eq!(shares, [0..1, 1..2, 2..4]);
}

#[test]
fn an_existing_file_is_kept_unless_replacing_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, "mine").unwrap();
    let layout = Layout::new(&path, &MetadataBuilder::new(), specs(&[&[4]]), Split::Whole).unwrap();
    let refused = layout.write(Existing::Refuse, fill(&layout));
    assert!(
        matches!(refused, Err(WriteError::Exists { .. })),
        "{refused:?}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    layout.write(Existing::Replace, fill(&layout)).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), layout.size_bytes());
    assert_eq!(listing(dir.path()), ["m.gguf"]);
}

#[test]
fn failing_data_leaves_no_file_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let specs = specs(&[&[4], &[4], &[4]]);
    let layout = Layout::new(&path, &MetadataBuilder::new(), specs, Split::Tensors(1)).unwrap();
    let broken = layout.write(Existing::Refuse, |index, sink| {
        // The first files are complete when the last one fails.
        if index == 2 {
            return Err(std::io::Error::from(std::io::ErrorKind::StorageFull));
        }
        sink.write_all(&[0; 16])
    });
    let message = broken.unwrap_err().to_string();
    assert!(
        message.contains("00003-of-00003.gguf: cannot write"),
        "{message}"
    );
    assert_eq!(listing(dir.path()), [] as [&str; 0]);
}

#[test]
fn data_of_the_wrong_size_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let layout = Layout::new(&path, &MetadataBuilder::new(), specs(&[&[4]]), Split::Whole).unwrap();
    for given in [0usize, 15, 17] {
        let result = layout.write(Existing::Refuse, |_, sink| sink.write_all(&vec![0; given]));
        assert!(
            matches!(result, Err(WriteError::WrongSize { given_bytes, needed_bytes: 16, .. })
                if given_bytes == given as u64),
            "{given}: {result:?}"
        );
    }
    assert_eq!(listing(dir.path()), [] as [&str; 0]);
}

#[test]
fn bad_requests_are_refused_before_anything_is_created() {
    let check = |spec: TensorSpec, expect: &str| {
        let layout = Layout::new(
            Path::new("m.gguf"),
            &MetadataBuilder::new(),
            vec![spec],
            Split::Whole,
        );
        let message = layout.unwrap_err().to_string();
        assert!(message.contains(expect), "{message}");
    };
    let spec = |name: &str, dims: &[u64], ggml_type| TensorSpec {
        name: name.to_owned(),
        dims: dims.to_vec(),
        ggml_type,
    };
    check(
        spec("a", &[100, 2], GgmlType::Q8_0),
        "no multiple of the 32 elements of a q8_0 block",
    );
    check(spec("a", &[], GgmlType::F32), "is not a shape");
    check(spec("a", &[1, 0], GgmlType::F32), "is not a shape");
    check(spec("a", &[1, 1, 1, 1, 1], GgmlType::F32), "is not a shape");
    check(spec("a", &[u64::MAX / 8, 9], GgmlType::F32), "63 bits");
    check(
        spec(&"n".repeat(64), &[1], GgmlType::F32),
        "longer than 63 bytes",
    );

    let mut twice = MetadataBuilder::new();
    twice.set("k", 1u32);
    twice.set("k", 2u32);
    let layout = Layout::new(Path::new("m.gguf"), &twice, specs(&[&[1]]), Split::Whole);
    assert!(layout.unwrap_err().to_string().contains("k is set twice"));
    let same = vec![
        spec("a", &[1], GgmlType::F32),
        spec("a", &[1], GgmlType::F32),
    ];
    let layout = Layout::new(
        Path::new("m.gguf"),
        &MetadataBuilder::new(),
        same,
        Split::Whole,
    );
    assert!(layout.unwrap_err().to_string().contains("a is given twice"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Shapes, sizes and every byte of data survive, however the set is split.
    #[test]
    fn tensors_read_back_from_any_split(
        shapes in prop::collection::vec(prop::collection::vec(1u64..20, 1..=4), 1..12),
        limit in 1u64..4000,
        by_tensors: bool,
    ) {
        let shapes: Vec<&[u64]> = shapes.iter().map(Vec::as_slice).collect();
        let split = if by_tensors { Split::Tensors(limit % 5 + 1) } else { Split::Bytes(limit) };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        let layout = Layout::new(&path, &MetadataBuilder::new(), specs(&shapes), split).unwrap();
        layout.write(Existing::Refuse, fill(&layout)).unwrap();
        for file in layout.files() {
            prop_assert_eq!(std::fs::metadata(&file.path).unwrap().len(), file.size_bytes);
        }
        let model = gguf::Model::open(&layout.files()[0].path).unwrap();
        prop_assert_eq!(model.tensors().len(), layout.tensors().len());
        for (index, (read, spec)) in model.tensors().iter().zip(layout.tensors()).enumerate() {
            prop_assert_eq!(&*read.name, spec.name.as_str());
            prop_assert_eq!(read.shape(), spec.dims.as_slice());
            prop_assert_eq!(read.ty, spec.ggml_type);
            prop_assert_eq!(read.size_bytes, spec.size_bytes().unwrap());
            let file = std::fs::read(&model.files()[read.file as usize].path).unwrap();
            let bytes = &file[read.file_offset as usize..read.file_end() as usize];
            prop_assert!(bytes.iter().all(|&byte| byte == index as u8 + 1));
        }
    }
}

/// f32 tensors of these shapes.
fn specs(shapes: &[&[u64]]) -> Vec<TensorSpec> {
    let named = |(index, dims): (usize, &&[u64])| TensorSpec {
        name: format!("t{index}"),
        dims: dims.to_vec(),
        ggml_type: GgmlType::F32,
    };
    shapes.iter().enumerate().map(named).collect()
}

/// Gives every byte of a tensor its number, counted from one.
fn fill(
    layout: &Layout,
) -> impl FnMut(usize, &mut gguf::write::TensorSink<'_>) -> std::io::Result<()> + use<> {
    let sizes: Vec<u64> = layout
        .tensors()
        .iter()
        .map(|t| t.size_bytes().unwrap())
        .collect();
    move |index, sink| sink.write_all(&vec![index as u8 + 1; sizes[index] as usize])
}

fn listing(dir: &Path) -> Vec<String> {
    let entry_path =
        |entry: std::io::Result<std::fs::DirEntry>| -> PathBuf { entry.unwrap().path() };
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(entry_path)
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
