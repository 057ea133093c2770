//! Asks again and again which pages of a file are in memory.
//!
//! The file stays mapped between samples, and is never touched. `mincore` looks up
//! every page, so a sample costs time in proportion to the file: choose how often
//! by what [`Sampler::sample`] took.

use std::path::{Path, PathBuf};

use crate::residency::{Mapping, Residency, ResidencyError, io_error, open, page_bytes};

/// Pages asked for in one call, so that the kernel's answer (a byte a page) stays
/// small: 1 GiB of file at the usual page size.
const PAGES_PER_CALL: usize = 1 << 18;

/// A file that can be asked about.
#[derive(Debug)]
pub struct Sampler {
    path: PathBuf,
    /// `None` for an empty file, which cannot be mapped.
    mapping: Option<Mapping>,
    page_bytes: u64,
    pages: usize,
    file_bytes: u64,
    /// The kernel's answer, a byte a page.
    answer: Vec<u8>,
}

impl Sampler {
    pub fn open(path: &Path) -> Result<Sampler, ResidencyError> {
        let (file, file_bytes) = open(path)?;
        let page_bytes = page_bytes();
        let mapping = match file_bytes {
            0 => None,
            _ => Some(Mapping::of(&file, file_bytes).map_err(io_error(path, "cannot map"))?),
        };
        let pages = usize::try_from(file_bytes.div_ceil(page_bytes)).unwrap_or(usize::MAX);
        Ok(Sampler {
            path: path.to_owned(),
            mapping,
            page_bytes,
            pages,
            file_bytes,
            answer: vec![0; PAGES_PER_CALL.min(pages)],
        })
    }

    /// The pages in memory now.
    pub fn sample(&mut self) -> Result<Residency, ResidencyError> {
        let mut resident = vec![0u64; self.pages.div_ceil(64)];
        for first in (0..self.pages).step_by(PAGES_PER_CALL) {
            let answer = &mut self.answer[..PAGES_PER_CALL.min(self.pages - first)];
            if let Some(mapping) = &self.mapping {
                mapping
                    .ask(first, self.page_bytes, answer)
                    .map_err(io_error(&self.path, "cannot ask which pages are in memory"))?;
            }
            // A call starts at a multiple of 64 pages, so its bytes fill whole words.
            for (word, bytes) in resident[first / 64..].iter_mut().zip(answer.chunks(64)) {
                for (bit, byte) in bytes.iter().enumerate() {
                    // The other bits are reserved.
                    *word |= u64::from(byte & 1) << bit;
                }
            }
        }
        Ok(Residency::of_file(
            self.page_bytes,
            self.file_bytes,
            resident,
        ))
    }
}
