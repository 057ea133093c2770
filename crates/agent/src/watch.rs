//! `tensorscope audit -- PROGRAM`: which pages of the models an evaluation touched.
//!
//! Not for recording: evaluations wait for each other here, and each touched page
//! costs a signal.

use audit::{
    pages::{PageSet, Watch, first_pages},
    touched::{PageRun, TouchedWriter},
};

use crate::{lock::Lock, models, process::Process};

/// One evaluation at a time: a page that two touch would be noticed once.
static ONE: Lock<()> = Lock::new(());

/// Calls `compute` with all pages of the loaded models taken away, and notes which
/// were touched. `evaluation` is the number that it has in the stream.
pub fn watched<R>(
    process: &Process,
    (stream, evaluation): (u32, u64),
    compute: impl FnOnce() -> R,
) -> (R, Result<(), String>) {
    ONE.with(|()| {
        let files = models::loaded();
        let paths = files.iter().map(|file| (file.path.as_path(), file.bytes));
        let mut watch = match Watch::of_files(paths) {
            Ok(watch) => watch,
            Err(reason) => return (compute(), Err(reason)),
        };
        watch.take_away();
        let result = compute();
        let touched = watch.give_back();
        drop(watch);
        let runs = runs_of(&touched, &files);
        let noted = TouchedWriter::open(&process.log_directory, stream)
            .and_then(|mut writer| writer.write(evaluation, &runs))
            .map_err(|error| format!("cannot note the pages that were touched: {error}"));
        (result, noted)
    })
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
