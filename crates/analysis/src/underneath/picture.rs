//! Reads and faults as cells of a picture: time across, offset in the files down.

use kernelio::kernel_log::faults::FaultKind;
use reader::kernel::{JoinedFault, JoinedIo};
use serde::{Deserialize, Serialize};

use super::{ModelFiles, reread::is_model_read, work::Work};

const COLUMNS: u32 = 160;
const ROWS: u32 = 72;

/// Few enough cells to keep, many enough to see passes over the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Picture {
    pub columns: u32,
    pub rows: u32,
    /// Of the left edge.
    pub begin_nanos: u64,
    pub end_nanos: u64,
    /// When the first evaluation began, and the first that generates.
    pub first_eval_nanos: Option<u64>,
    pub generate_nanos: Option<u64>,
    /// All files, end to end.
    pub bytes: u64,
    /// Bytes read, row by row from the beginning of the first file; a part counts
    /// where it begins. Empty when not recorded.
    pub read_bytes: Vec<u64>,
    pub major_faults: Vec<u64>,
    pub minor_faults: Vec<u64>,
}

/// `None` when nothing was read of the model and no fault was in it.
pub fn picture(
    faults: &[JoinedFault],
    parts: &[JoinedIo],
    work: &Work,
    model: &ModelFiles,
) -> Option<Picture> {
    let reads = parts.iter().filter(|part| is_model_read(part));
    let faults = faults.iter().filter_map(|joined| {
        let place = joined.fault.place?;
        Some((joined.fault.nanos, place, joined.fault.kind))
    });
    let evaluations = work.evaluations().iter();
    let first_eval_nanos = evaluations.clone().map(|span| span.begin_nanos).min();
    let moments = || {
        let of_evaluations = evaluations
            .clone()
            .flat_map(|span| [span.begin_nanos, span.end_nanos]);
        let of_reads = reads.clone().map(|part| part.io.issued_nanos);
        let of_faults = faults.clone().map(|(nanos, ..)| nanos);
        of_evaluations.chain(of_reads).chain(of_faults)
    };
    let generate_nanos = evaluations
        .clone()
        .filter(|span| span.phase == trace::format::Phase::Generate)
        .map(|span| span.begin_nanos)
        .min();
    let mut picture = Picture {
        columns: COLUMNS,
        rows: ROWS,
        begin_nanos: moments().min()?,
        end_nanos: moments().max()?,
        first_eval_nanos,
        generate_nanos,
        bytes: model.file_bytes.iter().sum(),
        ..Picture::default()
    };
    if picture.bytes == 0 {
        return None;
    }
    let cells = (COLUMNS * ROWS) as usize;
    for part in reads.clone() {
        let file = part.io.place.map_or(0, |place| place.file);
        if let Some(cell) = picture.cell(model, part.io.issued_nanos, file, part.file_offset) {
            picture.read_bytes.resize(cells, 0);
            picture.read_bytes[cell] += part.bytes;
        }
    }
    for (nanos, place, kind) in faults {
        if let Some(cell) = picture.cell(model, nanos, place.file, place.file_offset) {
            let counts = match kind {
                FaultKind::Major => &mut picture.major_faults,
                FaultKind::Minor => &mut picture.minor_faults,
            };
            counts.resize(cells, 0);
            counts[cell] += 1;
        }
    }
    let lists = [
        &picture.read_bytes,
        &picture.major_faults,
        &picture.minor_faults,
    ];
    let is_empty = lists.iter().all(|list| list.is_empty());
    (!is_empty).then_some(picture)
}

impl Picture {
    fn cell(&self, model: &ModelFiles, nanos: u64, file: u32, offset: u64) -> Option<usize> {
        let start: u64 = model.file_bytes.iter().take(file as usize).sum();
        let offset = start + offset;
        if offset >= self.bytes {
            return None;
        }
        let scaled = |value: u64, span: u64, cells: u32| {
            let cell = u128::from(value) * u128::from(cells) / u128::from(span.max(1));
            (cell as usize).min(cells as usize - 1)
        };
        let span = self.end_nanos - self.begin_nanos;
        let column = scaled(nanos - self.begin_nanos, span, self.columns);
        let row = scaled(offset, self.bytes, self.rows);
        Some(row * self.columns as usize + column)
    }
}
