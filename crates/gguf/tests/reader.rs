//! The reader accepts what is valid and names what is not.

use std::path::Path;

use gguf::metadata::Value;
use gguf::{Error, GgmlType, Model};
use proptest::prelude::*;
use testing::gguf_bytes::{Builder, TensorSpec, dense, mixed, moe, string};

fn read(builder: &Builder) -> gguf::Result<Model> {
    read_bytes(&builder.build())
}

fn read_bytes(bytes: &[u8]) -> gguf::Result<Model> {
    Model::from_bytes(Path::new("m.gguf"), bytes)
}

/// The message of a file that must be refused.
fn refusal(bytes: &[u8]) -> String {
    match read_bytes(bytes) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn bad_headers_are_refused_with_offset_and_reason() {
    let check = |builder: Builder, expect: &str| {
        assert_eq!(refusal(&builder.build()), format!("m.gguf: byte {expect}"));
    };
    let b = Builder::default;
    check(
        Builder {
            magic: *b"ggjt",
            ..b()
        },
        "0: wrong magic number \"ggjt\", a GGUF file begins with \"GGUF\"; a ggml file from before GGUF, convert it again",
    );
    check(
        Builder { version: 4, ..b() },
        "4: unknown GGUF version 4, known are 2 and 3",
    );
    check(
        Builder { version: 1, ..b() },
        "4: GGUF version 1 is no longer supported, by llama.cpp either; convert the model again",
    );
    check(
        Builder {
            version: 3 << 24,
            ..b()
        },
        "4: a big-endian file (version 3 with its bytes swapped); only little-endian GGUF is supported, convert it with gguf-py's gguf_convert_endian.py",
    );
    check(
        Builder {
            tensor_count: Some(u64::MAX),
            ..b()
        },
        "8: absurd count: 18446744073709551615 tensors, more than 65536",
    );
    check(
        Builder {
            tensor_count: Some(9),
            ..b()
        },
        "8: 9 tensors need at least 225 bytes and 8 are left in the file: truncated, or an absurd count",
    );
    check(
        Builder {
            entry_count: Some(1 << 40),
            ..b()
        },
        "16: absurd count: 1099511627776 metadata entries, more than 16384",
    );
    check(
        b().raw("k", 13, &[0; 8]),
        "33: unknown type 13 of metadata key \"k\", known are 0 to 12",
    );
    check(
        b().array("k", 9, 1, &[0; 12]),
        "37: nested array in metadata key \"k\": neither this reader nor llama.cpp knows arrays of arrays",
    );
    check(
        b().array("k", 0, 1 << 60, &[0; 12]),
        "41: absurd length: the array \"k\" claims 1152921504606846976 elements of type u8 and 12 bytes are left in the file",
    );
    check(
        b().array("k", 8, 1 << 62, &[0; 12]),
        "41: absurd length: the array \"k\" claims 4611686018427387904 elements of type string and 12 bytes are left in the file",
    );
    check(
        b().raw("k", 8, &u64::MAX.to_le_bytes()),
        "37: absurd length: a metadata string of \"k\" claims 18446744073709551615 bytes and 0 are left in the file",
    );
    check(
        b().u32("", 1),
        "24: absurd length: metadata key 0 has 0 bytes, allowed are 1 to 65535",
    );
    check(
        b().u32("k", 1).u32("k", 2),
        "41: metadata entry 1 of 2 repeats an earlier key",
    );
    check(
        b().u32("general.alignment", 48),
        "53: general.alignment is 48, which is not a power of two",
    );
    check(
        b().u32("general.alignment", 0),
        "53: general.alignment is 0, which is not a power of two",
    );
    check(
        b().str("general.alignment", "x"),
        "53: general.alignment has type string, must be u32",
    );
}

#[test]
fn bad_tensors_are_refused_with_offset_and_reason() {
    let spec = |name: &[u8], dims: &[u64], ty: u32, offset: u64| TensorSpec {
        name: name.to_vec(),
        dims: dims.to_vec(),
        ty,
        offset,
        size: 0,
    };
    let check = |tensors: &[TensorSpec], expect: &str| {
        let builder = Builder {
            tensors: tensors.to_vec(),
            ..Builder::default()
        };
        let mut bytes = builder.header();
        bytes.resize(4096, 0);
        assert_eq!(refusal(&bytes), format!("m.gguf: byte {expect}"));
    };
    check(
        &[spec(b"t", &[1, 1, 1, 1, 1], 0, 0)],
        "33: tensor \"t\" has 5 dimensions, at most 4 are allowed",
    );
    check(
        &[spec(b"t", &[1], 99, 0)],
        "45: tensor \"t\" has unknown type 99: a newer file than this reader?",
    );
    check(
        &[spec(b"t", &[1], 31, 0)],
        "45: tensor \"t\" has unknown type 31: q4_0_4_4, q4_0_4_8 and q4_0_8_8 were removed from GGUF; use q4_0",
    );
    check(
        &[spec(b"t", &[1 << 32, 1 << 32], 0, 0)],
        "37: tensor \"t\" has an absurd shape [4294967296, 4294967296, 1, 1]: its element count overflows",
    );
    check(
        &[spec(b"t", &[0, u64::MAX], 0, 0)],
        "37: tensor \"t\" has an absurd shape [0, 18446744073709551615, 1, 1]: its element count overflows",
    );
    check(
        &[spec(b"t", &[1 << 62], 0, 0)],
        "37: tensor \"t\" has an absurd shape [4611686018427387904, 1, 1, 1]: its size overflows",
    );
    check(
        &[spec(b"t", &[33], 8, 0)],
        "37: tensor \"t\" of type q8_0 has rows of 33 elements, no multiple of its block of 32",
    );
    check(
        &[spec(b"t", &[8], 0, 8)],
        "49: tensor \"t\" lies at data offset 8, no multiple of the alignment 32",
    );
    check(
        &[spec(b"t", &[8], 0, 8192)],
        "49: tensor \"t\" lies at bytes 8256 to 8288 but the file ends at byte 4096",
    );
    check(
        &[spec(b"t", &[8], 0, u64::MAX - 31)],
        "49: tensor \"t\" has the absurd data offset 18446744073709551584",
    );
    check(
        &[spec(b"a", &[32], 0, 0), spec(b"b", &[8], 0, 96)],
        "192: tensor \"b\" overlaps tensor \"a\", which lies at bytes 96 to 224",
    );
    check(
        &[spec(b"a", &[8], 0, 0), spec(b"a", &[8], 0, 32)],
        "57: duplicate tensor name \"a\", first used at byte 24",
    );
    check(
        &[spec(b"ab\xff", &[8], 0, 0)],
        "34: tensor name 0 is not UTF-8: \"ab\\xff\"",
    );
    check(
        &[spec(b"", &[8], 0, 0)],
        "24: absurd length: tensor name 0 has 0 bytes, allowed are 1 to 1024",
    );
    check(
        &[spec(&[b'x'; 1025], &[8], 0, 0)],
        "24: absurd length: tensor name 0 has 1025 bytes, allowed are 1 to 1024",
    );
}

#[test]
fn a_key_that_is_not_utf8_is_refused() {
    let mut builder = Builder::default().u32("kk", 1);
    builder.entries[0].0 = vec![b'k', 0xc3];
    assert_eq!(
        refusal(&builder.build()),
        "m.gguf: byte 33: metadata key 0 is not UTF-8: \"k\\xc3\""
    );
}

#[test]
fn a_name_with_line_breaks_stays_on_one_line() {
    let builder = Builder::default().raw("a\nb\u{1b}[31m", 99, &[]);
    let message = refusal(&builder.build());
    assert!(message.contains("\"a\\nb\\u{1b}[31m\""), "{message}");
    assert_eq!(message.lines().count(), 1);
}

#[test]
fn truncation_at_every_byte_is_refused() {
    for builder in [
        mixed(),
        moe(),
        Builder {
            version: 2,
            ..mixed()
        },
    ] {
        let bytes = builder.build();
        assert!(read_bytes(&bytes).is_ok());
        for len in 0..bytes.len() {
            let error = read_bytes(&bytes[..len]).expect_err("truncated");
            assert!(
                matches!(error, Error::Truncated { .. } | Error::Malformed { .. }),
                "{len}: {error}"
            );
            assert!(error.offset() <= bytes.len() as u64, "{len}: {error}");
        }
    }
}

#[test]
fn every_value_type_is_read() {
    let long_text = "x".repeat(1000);
    let many: Vec<u32> = (0..5000).collect();
    let model = read(
        &Builder::default()
            .raw("u8", 0, &[200])
            .raw("i8", 1, &[0xff])
            .u16("u16", 65535)
            .raw("i16", 3, &(-2i16).to_le_bytes())
            .u32("u32", 7)
            .i32("i32", -7)
            .f32("f32", 0.5)
            .raw("bool", 7, &[1])
            .str("string", "naïve")
            .raw("u64", 10, &u64::MAX.to_le_bytes())
            .raw("i64", 11, &i64::MIN.to_le_bytes())
            .raw("f64", 12, &0.25f64.to_le_bytes())
            .u32s("few", &[1, 2])
            .strs("texts", &["a".to_owned(), String::new()])
            .u32s("many", &many)
            .str("long", &long_text)
            .raw("dirty", 8, &string(b"\xffx"))
            .u32("last", 1),
    )
    .unwrap();
    let check = |key: &str, expect: Value| assert_eq!(model.metadata().get(key), Some(&expect));
    check("u8", Value::U8(200));
    check("i8", Value::I8(-1));
    check("u16", Value::U16(65535));
    check("i16", Value::I16(-2));
    check("u32", Value::U32(7));
    check("i32", Value::I32(-7));
    check("f32", Value::F32(0.5));
    check("bool", Value::Bool(true));
    check("string", Value::String("naïve".into()));
    check("u64", Value::U64(u64::MAX));
    check("i64", Value::I64(i64::MIN));
    check("f64", Value::F64(0.25));
    check("dirty", Value::String("\u{fffd}x".into()));
    check("last", Value::U32(1));
    let array = |key: &str| {
        model
            .metadata()
            .get(key)
            .unwrap()
            .as_array()
            .unwrap()
            .clone()
    };
    let few = array("few").elements.unwrap();
    assert_eq!(&*few, &[Value::U32(1), Value::U32(2)]);
    assert_eq!(
        array("texts").elements.unwrap()[1],
        Value::String("".into())
    );
    assert_eq!((array("many").count, array("many").elements), (5000, None));
    assert_eq!(array("many").size_bytes, 20_000);
    assert!(matches!(
        model.metadata().get("long"),
        Some(Value::LongString {
            size_bytes: 1000,
            ..
        })
    ));
    assert_eq!(model.metadata().get("missing"), None);
}

#[test]
fn long_vocabularies_are_walked_and_not_kept() {
    let tokens: Vec<String> = (0..200_000).map(|i| format!("token-{i}")).collect();
    let model = read(
        &Builder::default()
            .strs("tokenizer.ggml.tokens", &tokens)
            .u32("after", 5)
            .tensor("t", GgmlType::F32, &[8]),
    )
    .unwrap();
    assert_eq!(model.metadata().u64("after"), Some(5));
    assert_eq!(model.hyper().vocabulary, Some(200_000));
}

#[test]
fn missing_trailing_padding_and_empty_tensors_are_accepted() {
    let model = read(
        &Builder::default()
            .tensor("scalar", GgmlType::F32, &[])
            .tensor("none", GgmlType::F32, &[0, 5])
            .tensor("last", GgmlType::I8, &[3]),
    )
    .unwrap();
    let sizes: Vec<u64> = model.tensors().iter().map(|t| t.size_bytes).collect();
    assert_eq!(sizes, [4, 0, 3]);
}

mod split_sets {
    use super::*;

    /// A number for the file name, and what the file holds.
    type Part = (u16, Builder);

    fn part(number: u16, count: u16, total: i32, name: &str) -> Builder {
        let mut builder = Builder::default()
            .u16("split.no", number)
            .u16("split.count", count)
            .i32("split.tensors.count", total);
        if number == 0 {
            builder = builder.str("general.architecture", "llama");
        }
        builder.tensor(name, GgmlType::F32, &[8])
    }

    fn file_name(number: u16) -> String {
        format!("m-{number:05}-of-00003.gguf")
    }

    /// Writes the parts, opens the one numbered `open`, and says what happened.
    fn open(parts: &[Part], open: u16) -> Result<Model, String> {
        let directory = tempfile::tempdir().unwrap();
        for (number, builder) in parts {
            std::fs::write(directory.path().join(file_name(*number)), builder.build()).unwrap();
        }
        Model::open(&directory.path().join(file_name(open))).map_err(|error| {
            let prefix = format!("{}/", directory.path().display());
            error.to_string().replace(&prefix, "")
        })
    }

    fn whole() -> Vec<Part> {
        vec![
            (1, part(0, 3, 3, "a")),
            (2, part(1, 3, 3, "b")),
            (3, part(2, 3, 3, "c")),
        ]
    }

    #[test]
    fn any_file_opens_the_whole_set() {
        for number in 1..=3 {
            let model = open(&whole(), number).unwrap();
            let names: Vec<&str> = model.tensors().iter().map(|t| &*t.name).collect();
            assert_eq!(names, ["a", "b", "c"]);
            assert_eq!(model.tensor("c").unwrap().file, 2);
            assert_eq!(&*model.hyper().architecture, "llama");
        }
    }

    #[test]
    fn sets_that_do_not_belong_together_are_refused() {
        let check = |change: &dyn Fn(&mut Vec<Part>), expect: &str| {
            let mut parts = whole();
            change(&mut parts);
            assert_eq!(open(&parts, 1).unwrap_err(), expect);
        };
        check(
            &|parts| drop(parts.remove(1)),
            "m-00002-of-00003.gguf: byte 0: split file 2 of 3 is missing (needed by m-00001-of-00003.gguf)",
        );
        check(
            &|parts| parts[2].1 = part(2, 4, 3, "c"),
            "m-00003-of-00003.gguf: byte 69: split.count is 4, but the set has 3 files",
        );
        check(
            &|parts| parts[0].1 = part(0, 4, 3, "c"),
            "m-00001-of-00003.gguf: byte 69: split.count is 4, but the file name says 3 files",
        );
        check(
            &|parts| parts[2].1 = part(1, 3, 3, "c"),
            "m-00003-of-00003.gguf: byte 44: split.no is 1, but the file name says 2 (counted from 0)",
        );
        check(
            &|parts| parts[2].1 = part(2, 3, 3, "a"),
            "m-00003-of-00003.gguf: byte 106: duplicate tensor name \"a\", which is also in m-00001-of-00003.gguf",
        );
        check(
            &|parts| parts[0].1 = part(0, 3, 4, "a"),
            "m-00001-of-00003.gguf: byte 102: split.tensors.count is 4, but the files of the set hold 3 tensors",
        );
        check(
            &|parts| parts[1].1.version = 9,
            "m-00002-of-00003.gguf: byte 4: unknown GGUF version 9, known are 2 and 3",
        );
    }

    #[test]
    fn a_renamed_part_says_that_its_siblings_cannot_be_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("renamed.gguf");
        std::fs::write(&path, part(0, 3, 3, "a").build()).unwrap();
        let message = Model::open(&path).unwrap_err().to_string();
        assert!(
            message.contains("does not end in -00001-of-00003.gguf"),
            "{message}"
        );
    }
}

/// A name, unlike all others by its number.
fn any_name() -> impl Strategy<Value = String> {
    "[a-z]{1,8}(\\.[a-zé]{1,5})?"
}

fn any_value() -> impl Strategy<Value = (u32, Vec<u8>)> {
    prop_oneof![
        any::<u8>().prop_map(|v| (0, vec![v])),
        any::<u16>().prop_map(|v| (2, v.to_le_bytes().to_vec())),
        any::<u32>().prop_map(|v| (4, v.to_le_bytes().to_vec())),
        any::<u32>().prop_map(|v| (6, v.to_le_bytes().to_vec())),
        any::<u64>().prop_map(|v| (10, v.to_le_bytes().to_vec())),
        ".{0,400}".prop_map(|v| (8, string(v.as_bytes()))),
        prop::collection::vec(any::<u64>(), 0..2000).prop_map(|values| {
            let mut bytes = 10u32.to_le_bytes().to_vec();
            bytes.extend((values.len() as u64).to_le_bytes());
            bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
            (9, bytes)
        }),
    ]
}

fn any_builder() -> impl Strategy<Value = Builder> {
    let types: Vec<GgmlType> = GgmlType::all().collect();
    let tensor = (
        any_name(),
        prop::sample::select(types),
        prop::collection::vec(1..4u64, 1..=4),
    );
    (
        prop_oneof![Just(2u32), Just(3u32)],
        prop::sample::select(vec![1u64, 8, 32, 64, 4096]),
        prop::collection::vec((any_name(), any_value()), 0..10),
        prop::collection::vec(tensor, 0..12),
    )
        .prop_map(|(version, alignment, entries, tensors)| {
            let mut builder = Builder {
                version,
                alignment,
                ..Builder::default()
            }
            .u32("general.alignment", alignment as u32);
            for (index, (name, (ty, value))) in entries.into_iter().enumerate() {
                builder = builder.raw(&format!("{index}.{name}"), ty, &value);
            }
            for (index, (name, ty, mut dims)) in tensors.into_iter().enumerate() {
                dims[0] *= ty.block_elements();
                builder = builder.tensor(&format!("{index}.{name}"), ty, &dims);
            }
            builder
        })
}

proptest! {
    #[test]
    fn valid_headers_are_read_back(builder in any_builder()) {
        let model = read(&builder).unwrap();
        prop_assert_eq!(model.files()[0].version, builder.version);
        prop_assert_eq!(model.files()[0].data_offset, builder.data_offset());
        prop_assert_eq!(model.metadata().entries().len(), builder.entries.len());
        for ((key, value), entry) in builder.entries.iter().zip(model.metadata().entries()) {
            prop_assert_eq!(entry.key.as_bytes(), key.as_slice());
            let next = entry.value_offset + value.len() as u64 - 4;
            let after = model.metadata().entries().iter().map(|e| e.entry_offset);
            let end = after.filter(|&o| o > entry.entry_offset).min();
            prop_assert_eq!(end.unwrap_or(model.files()[0].infos_offset), next);
        }
        prop_assert_eq!(model.tensors().len(), builder.tensors.len());
        for (spec, tensor) in builder.tensors.iter().zip(model.tensors()) {
            prop_assert_eq!(tensor.name.as_bytes(), spec.name.as_slice());
            prop_assert_eq!(tensor.shape(), spec.dims.as_slice());
            prop_assert_eq!(tensor.ty.as_u32(), spec.ty);
            prop_assert_eq!(tensor.file_offset, builder.data_offset() + spec.offset);
            prop_assert_eq!(tensor.size_bytes, spec.size);
            prop_assert_eq!(model.tensor(&tensor.name).unwrap().file_offset, tensor.file_offset);
        }
    }

    #[test]
    fn truncated_headers_are_refused(builder in any_builder(), cut in any::<prop::sample::Index>()) {
        let bytes = builder.build();
        let len = cut.index(bytes.len());
        // Without data, only the header can be cut short.
        prop_assume!(len < builder.header().len() || !builder.tensors.is_empty());
        prop_assert!(read_bytes(&bytes[..len]).is_err());
    }

    #[test]
    fn damaged_bytes_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = dense(GgmlType::Q4_0).build();
        let header = dense(GgmlType::Q4_0).header().len();
        for (index, value) in changes {
            bytes[index.index(header)] = value;
        }
        if let Ok(model) = read_bytes(&bytes) {
            gguf::Summary::new(&model, &gguf::Question::default());
            prop_assert!(model.rows(gguf::HeadRows::With).take(1000).count() > 0);
        }
    }
}
