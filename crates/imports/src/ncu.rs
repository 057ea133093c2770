//! What Nsight Compute prints with `--csv`: `--page raw` (a row for each launch of a kernel, a
//! column for each metric, units in a row beneath the header) or `--page details` (a row for each
//! metric of a launch, and rows for what its rules say).
//!
//! Columns are found by name, in any order; units are brought to nanoseconds, bytes and shares,
//! so that `--print-units base` and the default say the same. Lines before the header
//! (`==PROF==`, the program's own) are passed over. Launches of one kernel with one grid are one
//! subject, `launches` says how many. Which metric is which of ours: [`table`].

mod group;
mod stalls;
pub mod table;

use std::collections::HashMap;

use csv::StringRecord;

use crate::Import;
use crate::detect::Format;
use crate::error::Error;
use crate::figures::{Kind, number, unit};
use crate::lines::{lines, shown};

use stalls::Stalls;

/// Kernels of one file; a program of more is not looked at by people.
const MAX_KERNELS: usize = 100_000;

pub fn parse(file: &str, bytes: &[u8]) -> Result<Import, Error> {
    let (line, start) = header(bytes).ok_or_else(|| no_header(file, bytes))?;
    let mut launches = Launches::default();
    launches.read(file, &bytes[start..], line)?;
    if launches.all.is_empty() {
        return Err(Error::line(
            file,
            line,
            "a header and no kernel; the program launched none, or the file is cut",
        ));
    }
    let mut import = Import::new(Format::NcuCsv, file);
    import.subjects = group::subjects(file, &launches.all);
    import.notes = launches.notes();
    Ok(import)
}

/// A value of the file, in nanoseconds, bytes, bytes a second, a share, or as it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    pub value: f64,
    pub line: u64,
}

/// One launch of a kernel.
#[derive(Debug, Default)]
pub struct Launch {
    pub kernel: String,
    pub block: String,
    pub grid: String,
    pub line: u64,
    /// By name, only those that [`table`] asks for.
    pub readings: HashMap<String, Reading>,
    pub stalls: Stalls,
}

#[derive(Default)]
struct Launches {
    all: Vec<Launch>,
    /// Of the details page: which launch an ID is.
    by_id: HashMap<(String, String), usize>,
    foreign: u64,
    without_value: u64,
    without_units: bool,
}

impl Launches {
    fn read(&mut self, file: &str, body: &[u8], first_line: u64) -> Result<(), Error> {
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .from_reader(body);
        let mut record = csv::ByteRecord::new();
        let mut columns: Option<Columns> = None;
        loop {
            let start = reader.position().byte() as usize;
            let more = reader.read_byte_record(&mut record).map_err(|error| {
                let at = error.position().map_or(0, csv::Position::line);
                Error::line(
                    file,
                    first_line + at.saturating_sub(1),
                    format!("no CSV: {error}"),
                )
            })?;
            if !more {
                return Ok(());
            }
            let line = record.position().map_or(1, csv::Position::line) + first_line - 1;
            let end = reader.position().byte() as usize;
            let text = body.get(start..end).unwrap_or(&[]).trim_ascii();
            // Each field is quoted: what does not begin so is the program's.
            if !text.starts_with(b"\"") {
                self.foreign += 1;
                continue;
            }
            let fields = StringRecord::from_byte_record_lossy(record.clone());
            if fields.get(0) == Some("ID") {
                columns = Some(Columns::new(file, line, &fields)?);
                continue;
            }
            let Some(columns) = &mut columns else {
                return Err(Error::line(file, line, "a row above its header"));
            };
            if fields.len() != columns.count || text.len() < 2 || !text.ends_with(b"\"") {
                return Err(Error::line(
                    file,
                    line,
                    format!(
                        "cut: {} fields where the header has {}; print the report again",
                        fields.len(),
                        columns.count
                    ),
                ));
            }
            self.row(file, line, columns, &fields)?;
        }
    }

    fn row(
        &mut self,
        file: &str,
        line: u64,
        columns: &mut Columns,
        fields: &StringRecord,
    ) -> Result<(), Error> {
        let field = |at: Option<usize>| at.and_then(|at| fields.get(at)).unwrap_or("");
        let id = field(Some(0));
        if id.is_empty() && columns.units.is_none() && columns.details.is_none() {
            columns.units = Some(fields.iter().map(unit).collect());
            return Ok(());
        }
        if id.is_empty() || !id.bytes().all(|b| b.is_ascii_digit()) {
            let text = shown(id);
            return Err(Error::line(
                file,
                line,
                format!("`{text}` is no ID of a launch"),
            ));
        }
        let kernel = field(columns.kernel);
        if kernel.is_empty() {
            return Err(Error::line(
                file,
                line,
                "a launch without the name of its kernel",
            ));
        }
        let launch = || Launch {
            kernel: kernel.to_owned(),
            block: field(columns.block).to_owned(),
            grid: field(columns.grid).to_owned(),
            line,
            ..Launch::default()
        };
        let Some(details) = &columns.details else {
            let mut launch = launch();
            for (at, name) in &columns.wanted {
                let (factor, kind) = match &columns.units {
                    Some(units) => units.get(*at).copied().unwrap_or((1.0, Kind::Other)),
                    None => {
                        self.without_units = true;
                        (1.0, Kind::Other)
                    }
                };
                self.without_value +=
                    u64::from(!launch.take(name, field(Some(*at)), factor, kind, line));
            }
            return self.add(file, launch);
        };
        // IDs count from 0 in each process.
        let key = (id.to_owned(), field(columns.process).to_owned());
        let place = match self.by_id.get(&key) {
            Some(place) => *place,
            None => {
                self.by_id.insert(key, self.all.len());
                self.add(file, launch())?;
                self.all.len() - 1
            }
        };
        let launch = &mut self.all[place];
        if launch.kernel != kernel {
            let text = format!(
                "launch {id} is `{}` here and `{}` above",
                shown(kernel),
                shown(&launch.kernel)
            );
            return Err(Error::line(file, line, text));
        }
        let name = field(details.name);
        if name.is_empty() {
            launch.rule(field(details.rule_text), line);
            return Ok(());
        }
        let (factor, kind) = unit(field(details.unit));
        let name = table::detail_name(name, kind);
        if table::is_wanted(&name) {
            let taken = launch.take(&name, field(details.value), factor, kind, line);
            self.without_value += u64::from(!taken);
        }
        Ok(())
    }

    fn add(&mut self, file: &str, launch: Launch) -> Result<(), Error> {
        if self.all.len() == MAX_KERNELS {
            let text =
                format!("more than {MAX_KERNELS} launches; profile fewer (`--launch-count`)");
            return Err(Error::line(file, launch.line, text));
        }
        self.all.push(launch);
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.foreign > 0 {
            notes.push(format!(
                "{} lines are not ncu's and were passed over",
                self.foreign
            ));
        }
        if self.without_value > 0 {
            notes.push(format!(
                "{} values could not be measured on this card (n/a) and are absent",
                self.without_value
            ));
        }
        if self.without_units {
            notes.push("the row of units is missing: nanoseconds, bytes and per cent are taken for granted".into());
        }
        notes
    }
}

impl Launch {
    /// Whether there was a number.
    fn take(&mut self, name: &str, text: &str, factor: f64, kind: Kind, line: u64) -> bool {
        if text.is_empty() {
            return true;
        }
        // With `--print-metric-instances values` the instances follow in parentheses.
        let text = text.split_once(" (").map_or(text, |(total, _)| total);
        let Some(value) = number(text) else {
            return false;
        };
        let percent = kind == Kind::Other && name.contains("pct");
        let value = value * if percent { 0.01 } else { factor };
        let reading = Reading { value, line };
        if !self.stalls.take(name, reading) {
            self.readings.entry(name.to_owned()).or_insert(reading);
        }
        true
    }

    /// What a rule of Nsight Compute says; some numbers of the details page are only there.
    fn rule(&mut self, text: &str, line: u64) {
        self.stalls.rule(text, line);
        for (name, value) in table::of_rule(text) {
            let reading = Reading { value, line };
            self.readings.entry(name.to_owned()).or_insert(reading);
        }
    }
}

/// Where things stand in a row.
struct Columns {
    count: usize,
    process: Option<usize>,
    kernel: Option<usize>,
    block: Option<usize>,
    grid: Option<usize>,
    details: Option<Details>,
    /// Of the raw page: columns whose metrics we use.
    wanted: Vec<(usize, String)>,
    units: Option<Vec<(f64, Kind)>>,
}

struct Details {
    name: Option<usize>,
    unit: Option<usize>,
    value: Option<usize>,
    rule_text: Option<usize>,
}

impl Columns {
    fn new(file: &str, line: u64, header: &StringRecord) -> Result<Columns, Error> {
        let at = |name: &str| header.iter().position(|column| column == name);
        let kernel = at("Kernel Name");
        if kernel.is_none() {
            return Err(Error::line(
                file,
                line,
                "the header has no column \"Kernel Name\"",
            ));
        }
        let details = at("Metric Name").map(|name| Details {
            name: Some(name),
            unit: at("Metric Unit"),
            value: at("Metric Value"),
            rule_text: at("Rule Description"),
        });
        if details
            .as_ref()
            .is_some_and(|details| details.value.is_none())
        {
            return Err(Error::line(
                file,
                line,
                "the header has no column \"Metric Value\"",
            ));
        }
        // These two are in front of the metrics, and have the labels of two of the details page.
        let (block, grid) = (at("Block Size"), at("Grid Size"));
        let wanted = header
            .iter()
            .enumerate()
            .filter(|(at, name)| table::is_wanted(name) && Some(*at) != block && Some(*at) != grid)
            .map(|(at, name)| (at, name.to_owned()))
            .collect();
        Ok(Columns {
            count: header.len(),
            process: at("Process ID"),
            kernel,
            block,
            grid,
            details,
            wanted,
            units: None,
        })
    }
}

/// Line and offset of the header.
fn header(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut offset = 0;
    for (number, line) in (1..).zip(bytes.split(|b| *b == b'\n')) {
        if line.starts_with(b"\"ID\",") {
            return Some((number, offset));
        }
        offset += line.len() + 1;
    }
    None
}

/// What ncu itself says is the reason, where it says one.
fn no_header(file: &str, bytes: &[u8]) -> Error {
    for (number, line) in lines(bytes) {
        if let Some(text) = line.strip_prefix("==ERROR== ") {
            return Error::line(file, number, format!("ncu failed: {text}"));
        }
    }
    Error::content(
        file,
        "no table of ncu; print it with `ncu -i REPORT --page raw --csv`",
    )
}
