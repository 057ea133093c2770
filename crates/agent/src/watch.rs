//! `tensorscope audit -- PROGRAM`: which pages of the models an evaluation touched.
//!
//! Not for recording: evaluations wait for each other here, and each touched page
//! costs a signal.

use audit::{
    pages::{PageSet, Watch, first_pages},
    touched::{PageRun, TouchedWriter},
};

use capture::hook::{Call, Ended, Observer, Part, Stop};

use crate::{lock::Lock, models, process::Process};

/// One evaluation at a time: a page that two touch would be noticed once.
static ONE: Lock<()> = Lock::new(());

/// All pages of the loaded models are taken away during an evaluation, and those that were
/// touched noted.
pub struct Watched<'a> {
    process: &'a Process,
    /// Stream, and the evaluation's number in it.
    place: (u32, u64),
    watching: Option<(Watch, Vec<models::LoadedFile>)>,
    /// Why nothing, or not all, was noted.
    pub error: Option<String>,
}

impl Watched<'_> {
    pub fn new(process: &Process, place: (u32, u64)) -> Watched<'_> {
        Watched {
            process,
            place,
            watching: None,
            error: None,
        }
    }
}

impl Observer for Watched<'_> {
    unsafe fn begin(&mut self, _: &Call<'_>) -> Result<Part, Stop> {
        ONE.take();
        let files = models::loaded();
        let paths = files.iter().map(|file| (file.path.as_path(), file.bytes));
        match Watch::of_files(paths) {
            Ok(mut watch) => {
                watch.take_away();
                self.watching = Some((watch, files));
                Ok(Part::Takes { note_words: 0 })
            }
            Err(reason) => {
                ONE.release();
                self.error = Some(reason);
                Ok(Part::Leaves)
            }
        }
    }

    fn end(&mut self, _: Ended, _: &mut Vec<u64>) -> Result<(), Stop> {
        if let Some((mut watch, files)) = self.watching.take() {
            let touched = watch.give_back();
            drop(watch);
            ONE.release();
            let (stream, evaluation) = self.place;
            let runs = runs_of(&touched, &files);
            let noted = TouchedWriter::open(&self.process.log_directory, stream)
                .and_then(|mut writer| writer.write(evaluation, &runs));
            self.error = noted
                .map_err(|error| format!("cannot note the pages that were touched: {error}"))
                .err();
        }
        Ok(())
    }
}

fn runs_of(touched: &PageSet, files: &[models::LoadedFile]) -> Vec<PageRun> {
    let first = first_pages(files.iter().map(|file| file.bytes));
    let mut runs: Vec<PageRun> = Vec::new();
    for page in touched.iter() {
        let index = first.partition_point(|&first| first <= page) - 1;
        let (file, page) = (files[index].number, page - first[index]);
        match runs.last_mut() {
            Some(run) if run.file == file && run.first + run.count == page => run.count += 1,
            _ => runs.push(PageRun {
                file,
                first: page,
                count: 1,
            }),
        }
    }
    runs
}
