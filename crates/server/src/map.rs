//! The file map: the index knows what was read and what was recorded of the kernel,
//! the kernel what is in memory now.

use std::path::PathBuf;

use index::{KernelMapQuery, MapHeader, MapQuery, Raster};
use kernelio::residency::Residency;

use crate::{
    parameters::{Parameters, bad},
    reply::{Refusal, Reply},
    viewer::HostedRun,
};

const RESIDENCY: &str = "residency";

/// A file of the model, by its place in the map space: all files end to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MappedFile {
    pub path: PathBuf,
    pub begin: u64,
    pub size_bytes: u64,
}

pub(crate) fn map(run: &HostedRun, parameters: &Parameters) -> Result<Reply, Refusal> {
    parameters.check_cells(&["cells"])?;
    let filter = parameters.filter()?;
    let pairs = parameters.pairs();
    let metric = parameters.text("metric");
    // Residency at a moment was recorded; without a moment it is that of now.
    let is_residency = metric == Some(RESIDENCY) && parameters.text("at").is_none();
    if matches!(metric, Some("faults" | "disk" | RESIDENCY)) && !is_residency {
        let query = KernelMapQuery::from_pairs(&pairs).map_err(bad)?;
        let raster = run.read(|index| Ok(index.kernel_map(&query, &filter)?))?;
        return reply(run, raster);
    }
    // The index reads the rest of the parameters either way.
    let asked: Vec<(&str, &str)> = pairs
        .into_iter()
        .filter(|(key, _)| !(is_residency && *key == "metric"))
        .collect();
    let query = MapQuery::from_pairs(&asked).map_err(bad)?;
    let mut raster = run.read(|index| Ok(index.map(&query, &filter)))?;
    if is_residency {
        let header = &mut raster.header;
        raster.values = shares(&run.files, header, query.cells as usize)?;
        header.metric = RESIDENCY;
        header.max = raster.values.iter().copied().fold(0.0, f32::max);
    }
    reply(run, raster)
}

fn reply(run: &HostedRun, mut raster: Raster<MapHeader>) -> Result<Reply, Refusal> {
    let header = &mut raster.header;
    if !header.available.contains(&RESIDENCY)
        && (header.metric == RESIDENCY || is_known(&run.files))
    {
        header.available.push(RESIDENCY);
    }
    Reply::raster(&raster.header, &raster.values)
}

/// Whether the kernel would tell, without asking it about every page.
fn is_known(files: &[MappedFile]) -> bool {
    !files.is_empty()
        && files
            .iter()
            .all(|file| Residency::check(&file.path).is_ok())
}

/// By cell, the share of its bytes that are in memory now; NaN behind the end.
fn shares(files: &[MappedFile], header: &MapHeader, cells: usize) -> Result<Vec<f32>, Refusal> {
    if files.is_empty() {
        return Err(Refusal::Missing(
            "the run does not say where its model is, so that its pages are unknown".to_owned(),
        ));
    }
    let mut pages = Vec::with_capacity(files.len());
    for file in files {
        let residency =
            Residency::of(&file.path).map_err(|error| Refusal::Missing(error.to_string()))?;
        if residency.file_bytes() != file.size_bytes {
            return Err(Refusal::Missing(format!(
                "{}: has {} bytes but had {} when it was recorded: another file by now",
                file.path.display(),
                residency.file_bytes(),
                file.size_bytes
            )));
        }
        pages.push((file, residency));
    }
    let share = |cell: usize| {
        let begin = header.cell_bytes.saturating_mul(cell as u64);
        let end = header
            .total_bytes
            .min(begin.saturating_add(header.cell_bytes));
        if begin >= end {
            return f32::NAN;
        }
        let resident: u64 = pages
            .iter()
            .map(|(file, residency)| {
                let within = |offset: u64| offset.saturating_sub(file.begin).min(file.size_bytes);
                residency.resident_bytes(within(begin)..within(end))
            })
            .sum();
        (resident as f64 / (end - begin) as f64) as f32
    };
    Ok((0..cells).map(share).collect())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn residency_is_by_cell_over_all_files() {
        // Written bytes are in memory, a hole that nobody read is not.
        let mut written = tempfile::NamedTempFile::new().unwrap();
        written.write_all(&[1; 8192]).unwrap();
        let hole = tempfile::NamedTempFile::new().unwrap();
        hole.as_file().set_len(8192).unwrap();
        let file = |path: &std::path::Path, begin| MappedFile {
            path: path.to_owned(),
            begin,
            size_bytes: 8192,
        };
        let files = [file(written.path(), 0), file(hole.path(), 8192)];
        let header = MapHeader {
            cell_bytes: 6144,
            total_bytes: 16384,
            max: 0.0,
            metric: RESIDENCY,
            available: Vec::new(),
            sampled: None,
        };
        let shares = shares(&files, &header, 4).unwrap();
        assert_eq!(shares[..3], [1.0, 2048.0 / 6144.0, 0.0]);
        assert!(shares[3].is_nan());
        assert!(is_known(&files) && !is_known(&[]));
    }

    #[test]
    fn a_model_that_changed_has_no_residency() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let files = [MappedFile {
            path: file.path().to_owned(),
            begin: 0,
            size_bytes: 10,
        }];
        let header = MapHeader {
            cell_bytes: 10,
            total_bytes: 10,
            max: 0.0,
            metric: RESIDENCY,
            available: Vec::new(),
            sampled: None,
        };
        let Err(Refusal::Missing(sentence)) = shares(&files, &header, 1) else {
            panic!("an answer about another file");
        };
        assert!(sentence.contains("another file"), "{sentence}");
    }
}
