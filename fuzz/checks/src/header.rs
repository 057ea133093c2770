//! No bytes make the reader, the structure map, the sums or the lookup panic,
//! and what they say about a file that is accepted is consistent.
//!
//! Input: 4 bytes with the length of the file, then its header. Data is never
//! read, so the rest of the file is virtual; the fuzzer keeps its inputs small.

use std::io;
use std::path::Path;

use gguf::source::ReadAt;
use gguf::{GgmlType, HeadRows, Model, Owner, Question, Summary};

/// Rows and bytes looked at in one input, so that none takes seconds.
const MAX_ROWS: usize = 2_000;

/// A header, followed by zeros up to `len_bytes`.
pub struct Sparse<'a> {
    header: &'a [u8],
    len_bytes: u64,
}

impl Sparse<'_> {
    /// From the bytes of an input; also its length.
    pub fn of(data: &[u8]) -> Option<(Sparse<'_>, u64)> {
        let (len, header) = data.split_first_chunk::<4>()?;
        let len_bytes = u64::from(u32::from_le_bytes(*len));
        Some((Sparse { header, len_bytes }, len_bytes))
    }
}

impl ReadAt for Sparse<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = self.len_bytes.saturating_sub(offset);
        let count = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        buffer[..count].fill(0);
        self.header.read_at(&mut buffer[..count], offset)?;
        Ok(count)
    }
}

pub fn header(data: &[u8]) {
    let Some((source, len_bytes)) = Sparse::of(data) else {
        return;
    };
    let header = source.header;
    let path = Path::new("fuzz.gguf");
    let model = match Model::from_source(path, &source, len_bytes) {
        Ok(model) => model,
        Err(error) => {
            let message = error.to_string();
            assert!(message.starts_with("fuzz.gguf: byte "), "{message}");
            assert!(!message.contains('\n'), "{message}");
            assert!(message.len() < 4096, "{message}");
            return;
        }
    };
    for kv_type in [GgmlType::F16, GgmlType::Q8_0] {
        for context_tokens in [None, Some(u64::MAX)] {
            let question = Question {
                context_tokens,
                kv_type,
                batch: 1 << 20,
            };
            let summary = Summary::new(&model, &question);
            assert!(summary.bytes_read_per_token <= summary.tensor_bytes);
        }
    }
    for row in model.rows(HeadRows::With).take(MAX_ROWS) {
        let tensor = row.tensor;
        assert!(row.file_offset >= tensor.file_offset);
        let end = match row.head {
            Some(head) => {
                row.file_offset + (head.run_count - 1) * head.stride_bytes + head.run_bytes
            }
            None => row.file_offset + row.size_bytes,
        };
        assert!(end <= tensor.file_end() && end <= len_bytes);
        if row.size_bytes == 0 {
            continue;
        }
        match model.lookup(0, row.file_offset) {
            Some(Owner::Tensor(byte)) => {
                assert_eq!(byte.tensor.name, tensor.name);
                if row.head.is_none() {
                    assert_eq!(byte.expert, row.expert);
                }
                if let Some(head) = row.head {
                    let heads = byte.heads.expect("the first byte of a head has a head");
                    assert!(heads.of == head.of);
                    assert!((heads.first..=heads.last).contains(&head.head));
                }
            }
            other => panic!("{} is owned by {other:?}", tensor.name),
        }
    }
    // Offsets spread over header, infos, data and end; beyond it nobody owns.
    for step in 0..64u64 {
        let _ = model.lookup(0, (header.len() as u64 * step) >> 6);
        assert!(model.lookup(0, (len_bytes * step) >> 6).is_some() || len_bytes == 0);
    }
    assert!(model.lookup(0, len_bytes).is_none());
}
