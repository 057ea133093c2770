//! Writes the seeds of the fuzz corpus: `cargo run -p gguf --example fuzz_seeds DIR`.

use std::path::PathBuf;

use gguf::GgmlType;
use testing::gguf_bytes::{Builder, dense, mixed, moe};

fn main() -> std::io::Result<()> {
    let directory = PathBuf::from(
        std::env::args()
            .nth(1)
            .unwrap_or("fuzz/corpus/header".into()),
    );
    std::fs::create_dir_all(&directory)?;
    let every_value_type = Builder::default()
        .raw("a", 0, &[1])
        .raw("b", 1, &[255])
        .u16("c", 3)
        .raw("d", 3, &[1, 0])
        .u32("general.alignment", 64)
        .i32("f", -1)
        .f32("g", 0.5)
        .raw("h", 7, &[1])
        .str("i", "text")
        .raw("j", 10, &7u64.to_le_bytes())
        .raw("k", 11, &7i64.to_le_bytes())
        .raw("l", 12, &0.25f64.to_le_bytes())
        .strs("m", &["x".to_owned(), String::new()])
        .u32s("n", &[1, 2, 3]);
    let seeds = [
        ("empty-header", Builder::default()),
        ("every-value-type", every_value_type),
        ("dense", dense(GgmlType::Q8_0)),
        ("moe", moe()),
        ("mixed", mixed()),
        (
            "version-2",
            Builder {
                version: 2,
                ..mixed()
            },
        ),
    ];
    for (name, builder) in seeds {
        // The reader never looks at data, so a fuzzer need not carry it: the
        // target takes the length of the file from the first 4 bytes.
        let mut bytes = (builder.len_bytes() as u32).to_le_bytes().to_vec();
        bytes.extend(builder.header());
        std::fs::write(directory.join(name), bytes)?;
    }
    Ok(())
}
