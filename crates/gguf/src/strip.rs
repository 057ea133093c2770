//! A model's header without some of its entries, for programs that would read them at length
//! and do not need them.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use crate::{Model, ModelFile};

/// Versions whose counts have 64 bits.
const MIN_VERSION: u32 = 2;

impl Model {
    /// Writes a file as long as this model's would be, with a header that has only the entries
    /// that `is_kept` wants; the data are a hole. False, and nothing written, for a model in
    /// several files or of a version that nobody writes any more.
    pub fn write_header_of(
        &self,
        is_kept: impl Fn(&str) -> bool,
        to: &mut File,
    ) -> io::Result<bool> {
        let [file] = self.files() else {
            return Ok(false);
        };
        if file.version < MIN_VERSION {
            return Ok(false);
        }
        let header = self.header_of(file, is_kept)?;
        to.write_all(&header)?;
        let data_bytes = file.len_bytes.saturating_sub(file.data_offset);
        to.set_len(header.len() as u64 + data_bytes)?;
        Ok(true)
    }

    fn header_of(&self, file: &ModelFile, is_kept: impl Fn(&str) -> bool) -> io::Result<Vec<u8>> {
        let source = File::open(&file.path)?;
        let entries = file.metadata.entries();
        let ends = entries.iter().skip(1).map(|entry| entry.entry_offset);
        let ends = ends.chain([file.infos_offset]);
        let kept: Vec<(u64, u64)> = entries
            .iter()
            .zip(ends)
            .filter(|(entry, _)| is_kept(&entry.key))
            .map(|(entry, end)| (entry.entry_offset, end))
            .collect();
        let mut header = b"GGUF".to_vec();
        header.extend(file.version.to_le_bytes());
        header.extend((self.tensors().len() as u64).to_le_bytes());
        header.extend((kept.len() as u64).to_le_bytes());
        for (begin, end) in kept
            .into_iter()
            .chain([(file.infos_offset, file.infos_end)])
        {
            let start = header.len();
            header.resize(start + (end - begin) as usize, 0);
            source.read_exact_at(&mut header[start..], begin)?;
        }
        let alignment = (file.alignment_bytes as usize).max(1);
        header.resize(header.len().next_multiple_of(alignment), 0);
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_without_its_vocabulary_has_the_same_tensors() {
        let shipped = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../models/shakespeare-moe.gguf"
        );
        let model = Model::open(shipped.as_ref()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stripped.gguf");
        let mut file = File::create_new(&path).unwrap();
        let is_kept = |key: &str| !key.starts_with("tokenizer.");
        assert!(model.write_header_of(is_kept, &mut file).unwrap());
        let stripped = Model::open(&path).unwrap();
        assert!(stripped.metadata().get("tokenizer.ggml.tokens").is_none());
        assert!(model.metadata().get("tokenizer.ggml.tokens").is_some());
        assert_eq!(stripped.hyper().layer_count, model.hyper().layer_count);
        let data_offset = |model: &Model| model.files()[0].data_offset;
        let tensors = |model: &Model| -> Vec<(String, u64, u64)> {
            let all = model.tensors().iter();
            all.map(|t| {
                let offset = t.file_offset - data_offset(model);
                (t.name.to_string(), offset, t.size_bytes)
            })
            .collect()
        };
        assert_eq!(tensors(&stripped), tensors(&model));
        let len = |model: &Model| model.files()[0].len_bytes - data_offset(model);
        assert_eq!(len(&stripped), len(&model));
    }
}
