//! Pages that an evaluation touched, and the file by which a program that is
//! watched tells them to the process that compares.
//!
//! `log/touched-NNNNN` belongs to the stream of that number. It is a sequence of
//! 64-bit words, little-endian; for each evaluation: its number, the count of
//! runs, and for each run the file's number in the run, the first page in that
//! file, and the count of pages.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use crate::pages::PageSet;

/// Pages that one evaluation touched.
pub struct Touched {
    /// All of them, or what the last node left.
    pub pages: PageSet,
    /// When every node was watched: by step.
    pub by_step: Vec<Vec<u64>>,
}

/// Pages of one file that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    pub file: u32,
    pub first: u64,
    pub count: u64,
}

fn path_of(log_directory: &Path, stream: u32) -> PathBuf {
    log_directory.join(format!("touched-{stream:05}"))
}

pub struct TouchedWriter(File);

impl TouchedWriter {
    pub fn open(log_directory: &Path, stream: u32) -> io::Result<TouchedWriter> {
        let path = path_of(log_directory, stream);
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(TouchedWriter(file))
    }

    pub fn write(&mut self, evaluation: u64, runs: &[PageRun]) -> io::Result<()> {
        let head = [evaluation, runs.len() as u64];
        let words = runs
            .iter()
            .flat_map(|run| [u64::from(run.file), run.first, run.count]);
        let bytes: Vec<u8> = head
            .into_iter()
            .chain(words)
            .flat_map(u64::to_le_bytes)
            .collect();
        self.0.write_all(&bytes)
    }
}

/// What a stream's evaluations touched, by their number; `None` for those that
/// were not watched. `first` is the first page number of each file, and the
/// number after the last.
pub fn read(log_directory: &Path, stream: u32, first: &[u64]) -> io::Result<Vec<Option<Touched>>> {
    let bytes = fs::read(path_of(log_directory, stream))?;
    let damaged = || io::Error::from(io::ErrorKind::InvalidData);
    let (words, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(damaged());
    }
    let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
    let pages = first.last().copied().unwrap_or(0);
    let mut evaluations: Vec<Option<Touched>> = Vec::new();
    while let Some(number) = words.next() {
        let number = usize::try_from(number)
            .ok()
            .filter(|&n| n < bytes.len())
            .ok_or_else(damaged)?;
        let mut set = PageSet::with_pages(pages);
        for _ in 0..words.next().ok_or_else(damaged)? {
            let mut word = || words.next().ok_or_else(damaged);
            let (file, start, count) = (word()?, word()?, word()?);
            let file = usize::try_from(file).map_err(|_| damaged())?;
            let Some([first_page, file_end]) = first.get(file..).and_then(|f| f.first_chunk())
            else {
                return Err(damaged());
            };
            let start = first_page.checked_add(start).ok_or_else(damaged)?;
            let end = start.checked_add(count).ok_or_else(damaged)?;
            if end > *file_end {
                return Err(damaged());
            }
            (start..end).for_each(|page| set.insert(page));
        }
        if evaluations.len() <= number {
            evaluations.resize_with(number + 1, || None);
        }
        evaluations[number] = Some(Touched {
            pages: set,
            by_step: Vec::new(),
        });
    }
    Ok(evaluations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let run = |file, first, count| PageRun { file, first, count };
        let mut writer = TouchedWriter::open(folder.path(), 7).unwrap();
        writer.write(0, &[run(0, 1, 2), run(1, 0, 1)]).unwrap();
        writer.write(2, &[]).unwrap();
        let read_back = read(folder.path(), 7, &[0, 4, 6]).unwrap();
        let pages = |touched: &Option<Touched>| {
            let touched = touched.as_ref()?;
            Some(touched.pages.iter().collect::<Vec<_>>())
        };
        assert_eq!(
            read_back.iter().map(pages).collect::<Vec<_>>(),
            [Some(vec![1, 2, 4]), None, Some(vec![])]
        );
        // Pages behind the end of the files are damage, not a crash.
        assert!(read(folder.path(), 7, &[0, 2, 3]).is_err());
        let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap();
        let words = [0, 1, u64::MAX, 0, 1].map(u64::to_le_bytes).concat();
        std::fs::write(file.unwrap().path(), words).unwrap();
        assert!(
            read(folder.path(), 7, &[0, 4, 6]).is_err(),
            "a file beyond all"
        );
    }
}
