//! Samples of resident pages, each kept as runs or as bits, whichever is smaller:
//! never more than a bit a page.

use std::{ops::Range, path::Path};

use kernelio::{
    KernelError,
    kernel_log::residency::{ResidencyReader, Sample},
    residency::Residency,
};

/// All samples, by their time.
#[derive(Default)]
pub struct Samples(Vec<Pages>);

/// Which pages of one file were in memory.
pub struct Pages {
    pub nanos: u64,
    pub token: u64,
    pub file: u32,
    page_bytes: u64,
    resident: Resident,
}

enum Resident {
    /// First page, and the one behind the last.
    Runs(Vec<Range<u32>>),
    Bits(Residency),
}

impl Samples {
    /// `None` where there is no log.
    pub fn read(path: &Path) -> Result<Option<Samples>, KernelError> {
        if !path.exists() {
            return Ok(None);
        }
        let mut samples = Vec::new();
        for sample in ResidencyReader::open(path)? {
            samples.push(Pages::new(sample?));
        }
        samples.sort_by_key(|pages| pages.nanos);
        Ok(Some(Samples(samples)))
    }

    pub fn count(&self) -> u64 {
        // A model of several files has several at a moment.
        let files = self.0.iter().map(|pages| pages.file);
        let first = files.clone().min();
        files.filter(|&file| Some(file) == first).count() as u64
    }

    /// The last sample of a file up to a moment.
    pub fn of_file(&self, file: u32, nanos: u64) -> Option<&Pages> {
        let end = self.0.partition_point(|pages| pages.nanos <= nanos);
        self.0[..end].iter().rev().find(|pages| pages.file == file)
    }
}

impl Pages {
    fn new(sample: Sample) -> Pages {
        let residency = sample.residency;
        // Two numbers of four bytes a run, against a bit a page.
        let words = residency.bits().len();
        let page = |page: u64| u32::try_from(page).unwrap_or(u32::MAX);
        let runs: Vec<Range<u32>> = residency
            .runs()
            .take(words + 1)
            .map(|run| page(run.start)..page(run.end))
            .collect();
        let (nanos, token, file) = (sample.nanos, sample.token, sample.file);
        Pages {
            nanos,
            token,
            file,
            page_bytes: residency.page_bytes(),
            resident: match runs.len() <= words {
                true => Resident::Runs(runs),
                false => Resident::Bits(residency),
            },
        }
    }

    /// `f(first byte, byte behind the last)` of each run of resident pages of a
    /// file of this size, ascending.
    pub fn each_run(&self, file_bytes: u64, mut f: impl FnMut(u64, u64)) {
        let mut run = |first: u64, end: u64| {
            let begin = first.saturating_mul(self.page_bytes);
            let end = end.saturating_mul(self.page_bytes).min(file_bytes);
            if begin < end {
                f(begin, end);
            }
        };
        match &self.resident {
            Resident::Runs(runs) => runs.iter().for_each(|r| run(r.start.into(), r.end.into())),
            Resident::Bits(bits) => bits.runs().for_each(|r| run(r.start, r.end)),
        }
    }
}
