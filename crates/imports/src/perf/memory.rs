//! `perf c2c report --stdio` and `perf mem report --stdio`: where loads were served from, and
//! which lines travel between caches.

use std::collections::{BTreeMap, BTreeSet};

use rules::{Metrics, Subject, Unit};

use crate::Import;
use crate::detect::Format;
use crate::error::Error;
use crate::figures::number;
use crate::lines::{lines, shown};

/// `perf c2c report --stdio`.
pub fn c2c(file: &str, bytes: &[u8]) -> Result<Import, Error> {
    let mut events: BTreeMap<String, (f64, u64)> = BTreeMap::new();
    let mut section = Section::Before;
    let mut top: Option<TopLine> = None;
    let mut has_table = false;
    for (at, line) in lines(bytes) {
        let text = line.trim();
        if let Some(next) = Section::titled(text) {
            section = next;
            has_table |= section == Section::Table;
            continue;
        }
        if text.is_empty() || text.starts_with(['#', '=', '-']) {
            continue;
        }
        match section {
            Section::Events => {
                let Some((name, value)) = text.rsplit_once(':') else {
                    return Err(Error::line(
                        file,
                        at,
                        format!("no event of perf c2c: `{}`", shown(text)),
                    ));
                };
                // Shares of nothing are printed as `-nan%`; they are of no use to us.
                if let Some(value) = number(value).filter(|value| *value >= 0.0) {
                    events.entry(name.trim().to_owned()).or_insert((value, at));
                }
            }
            Section::Table if top.is_none() => {
                let words: Vec<&str> = text.split_whitespace().collect();
                // Index, address, node, count of pages, share of all.
                let share = words
                    .iter()
                    .find_map(|word| number(word.strip_suffix('%')?));
                let share = share.filter(|share| (0.0..=100.0).contains(share));
                let Some(share) = share.filter(|_| words[0] == "0") else {
                    return Err(Error::line(
                        file,
                        at,
                        format!("no line of the table of perf c2c: `{}`", shown(text)),
                    ));
                };
                top = Some(TopLine::new(share / 100.0, at));
            }
            Section::Pareto => {
                if let Some(top) = &mut top {
                    top.row(text);
                }
            }
            _ => {}
        }
    }
    let get = |name: &str| events.get(name).copied();
    let Some((loads, _)) = get("Load Operations") else {
        return Err(Error::content(
            file,
            "no table of perf c2c: `Load Operations` is missing; print it with `perf c2c report --stdio`",
        ));
    };
    if !has_table {
        return Err(Error::content(
            file,
            "cut: the table of shared lines is missing; print it with `perf c2c report --stdio`",
        ));
    }
    // Parts of the loads, which are never more than all.
    for (name, (value, at)) in &events {
        if name.starts_with("Load ") && *value > loads {
            let text = format!("`{name}` is {value}, but there are {loads} loads");
            return Err(Error::line(file, *at, text));
        }
    }
    let mut import = Import::new(Format::PerfC2c, file);
    let mut metrics = Metrics::default();
    let sum = |names: &[&str]| {
        let found: Option<Vec<(f64, u64)>> = names.iter().map(|name| get(name)).collect();
        let found = found?;
        Some((
            found.iter().map(|(value, _)| value).sum::<f64>(),
            found.first()?.1,
        ))
    };
    let mut put = |name: &str, names: &[&str], of: Option<f64>| {
        if let Some((value, at)) = sum(names) {
            let source = format!("{file}:{at} {}", names.join(" + "));
            match of {
                None => metrics.number(name, Unit::Count, value, Some(&source)),
                Some(of) if of > 0.0 => {
                    metrics.number(name, Unit::Share, value / of, Some(&source))
                }
                Some(_) => {}
            }
        }
    };
    let hitm: &[&str] = &["Load Local HITM", "Load Remote HITM"];
    put("hitm.total", hitm, None);
    put("hitm.share", hitm, Some(loads));
    put("mem.l1_share", &["Load L1D hit"], Some(loads));
    put("mem.llc_share", &["Load LLC hit"], Some(loads));
    put(
        "mem.dram_share",
        &["Load Local DRAM", "Load Remote DRAM"],
        Some(loads),
    );
    put(
        "mem.remote_share",
        &["Load Remote HITM", "Load Remote HIT", "Load Remote DRAM"],
        Some(loads),
    );
    match &top {
        Some(top) => top.put(file, &mut metrics),
        None => import
            .notes
            .push("no line was found in a modified state in another cache".into()),
    }
    if loads == 0.0 {
        import
            .notes
            .push("no loads were sampled; this processor may not support `perf c2c record`".into());
    }
    if top.is_some_and(|top| top.threads.is_empty()) {
        import.notes.push("threads on the line are not in this report; `perf c2c report --stdio -c tid,iaddr` has them".into());
    }
    import.subjects.push(Subject {
        kind: "lines".to_owned(),
        name: file.to_owned(),
        metrics,
    });
    Ok(import)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Before,
    Events,
    Table,
    Pareto,
    Other,
}

impl Section {
    fn titled(text: &str) -> Option<Section> {
        match text {
            "Trace Event Information" => Some(Section::Events),
            "Shared Data Cache Line Table" => Some(Section::Table),
            "Shared Cache Line Distribution Pareto" => Some(Section::Pareto),
            "Global Shared Cache Line Event Information" | "c2c details" => Some(Section::Other),
            _ => None,
        }
    }
}

/// The line with most transfers.
struct TopLine {
    share: f64,
    line: u64,
    /// Which line the rows of the last section are of.
    at: Option<u64>,
    offsets: BTreeSet<u64>,
    threads: BTreeSet<u64>,
    processors: u64,
}

impl TopLine {
    fn new(share: f64, line: u64) -> TopLine {
        TopLine {
            share,
            line,
            at: None,
            offsets: BTreeSet::new(),
            threads: BTreeSet::new(),
            processors: 0,
        }
    }

    /// `0 8 17 12 0 0 0x55d4d4fd8040` begins a line, `12.50% 0.00% … 0x8 N/A 0 [1878:python3]
    /// 0x55d4d4fbd443 410 0 0 2 1 [.] symbol …` is an offset in it.
    fn row(&mut self, text: &str) {
        let words: Vec<&str> = text.split_whitespace().collect();
        let Some(place) = words.iter().position(|word| word.starts_with("0x")) else {
            return;
        };
        if !words[0].ends_with('%') {
            self.at = words[0].parse().ok();
            return;
        }
        let busy = words[..place].iter().any(|word| {
            word.strip_suffix('%')
                .and_then(number)
                .is_some_and(|share| share > 0.0)
        });
        if self.at != Some(0) || !busy {
            return;
        }
        if let Ok(offset) = u64::from_str_radix(&words[place][2..], 16) {
            self.offsets.insert(offset);
        }
        let rest = &words[place + 1..];
        let code = rest
            .iter()
            .position(|word| word.starts_with("0x"))
            .unwrap_or(0);
        let thread = rest[..code]
            .iter()
            .find_map(|word| word.split_once(':')?.0.parse().ok());
        if let Some(thread) = thread {
            self.threads.insert(thread);
        }
        // Cycles of remote, local and all loads, records, processors.
        let processors = rest.get(code + 5).and_then(|word| word.parse().ok());
        self.processors = self.processors.max(processors.unwrap_or(0));
    }

    fn put(&self, file: &str, metrics: &mut Metrics) {
        let source = format!("{file}:{}", self.line);
        let mut number =
            |name: &str, unit, value: f64| metrics.number(name, unit, value, Some(&source));
        number("hitm.top_line_share", Unit::Share, self.share);
        for (name, count) in [
            ("hitm.distinct_offsets", self.offsets.len() as u64),
            ("hitm.threads_on_line", self.threads.len() as u64),
            ("hitm.processors_on_line", self.processors),
        ] {
            if count > 0 {
                number(name, Unit::Count, count as f64);
            }
        }
    }
}

/// Samples of `perf mem` by where they were served from.
#[derive(Default)]
struct Served {
    samples: f64,
    known: f64,
    l1: f64,
    llc: f64,
    dram: f64,
    remote: f64,
    hitm: f64,
    has_snoop: bool,
    tlb_known: f64,
    tlb_miss: f64,
    weighted: f64,
    weight_samples: f64,
}

/// `perf mem report --stdio`, sorted by anything that has `mem` in it.
pub fn mem(file: &str, bytes: &[u8]) -> Result<Import, Error> {
    let mut columns: Option<(u64, Vec<String>)> = None;
    let mut served = Served::default();
    let mut totals: (Option<f64>, Option<f64>) = (None, None);
    for (at, line) in lines(bytes) {
        let text = line.trim();
        if let Some(comment) = text.strip_prefix('#') {
            let comment = comment.trim();
            if let Some(rest) = comment.strip_prefix("Samples:") {
                totals.0 = rest.split_whitespace().next().and_then(samples_of);
            } else if let Some(rest) = comment.strip_prefix("Total weight :") {
                totals.1 = number(rest);
            } else if comment.starts_with("Overhead") && comment.contains("Memory access") {
                columns = Some((at, cells(comment).map(str::to_owned).collect()));
            }
            continue;
        }
        if text.is_empty() || !text.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        let Some((_, columns)) = &columns else {
            return Err(Error::line(file, at, "a row above its header"));
        };
        served.row(columns, text).map_err(|what| {
            Error::line(
                file,
                at,
                format!("no row of perf mem: {what}: `{}`", shown(text)),
            )
        })?;
    }
    let Some((header, _)) = columns else {
        return Err(Error::content(
            file,
            "no table of perf mem; print it with `perf mem report --stdio`",
        ));
    };
    if served.samples == 0.0 {
        return Err(Error::line(
            file,
            header,
            "a header and no samples; the file is cut, or nothing was sampled",
        ));
    }
    let mut import = Import::new(Format::PerfMem, file);
    let mut metrics = Metrics::default();
    let source = format!("{file}:{header}");
    let mut put = |name: &str, part: f64, of: f64| {
        if of > 0.0 {
            metrics.number(name, Unit::Share, part / of, Some(&source));
        }
    };
    put("mem.l1_share", served.l1, served.known);
    put("mem.llc_share", served.llc, served.known);
    put("mem.dram_share", served.dram, served.known);
    put("mem.remote_share", served.remote, served.known);
    put("mem.tlb_miss_share", served.tlb_miss, served.tlb_known);
    if served.has_snoop {
        put("hitm.share", served.hitm, served.known);
        metrics.number("hitm.total", Unit::Count, served.hitm, Some(&source));
    }
    let mean = match totals {
        _ if served.weight_samples > 0.0 => Some(served.weighted / served.weight_samples),
        (Some(samples), Some(weight)) if samples > 0.0 => Some(weight / samples),
        _ => None,
    };
    if let Some(mean) = mean {
        metrics.number("mem.mean_latency_cycles", Unit::Count, mean, Some(&source));
    }
    if served.known == 0.0 {
        import.notes.push("no sample says where it was served from (N/A); this processor may not support `perf mem record`".into());
    }
    import.subjects.push(Subject {
        kind: "lines".to_owned(),
        name: file.to_owned(),
        metrics,
    });
    Ok(import)
}

impl Served {
    fn row(&mut self, columns: &[String], text: &str) -> Result<(), String> {
        let fields: Vec<&str> = cells(text).collect();
        // Cells may be wider than their column, but all are there.
        if fields.len() != columns.len() {
            return Err(format!(
                "{} cells where the header has {}",
                fields.len(),
                columns.len()
            ));
        }
        let cell = |name: &str| {
            let at = columns.iter().position(|column| column == name)?;
            fields.get(at).copied()
        };
        let samples = cell("Samples")
            .and_then(number)
            .filter(|samples| *samples >= 0.0);
        let samples = samples.ok_or(
            "no number of samples; sort with `-F +sample` or leave the fields as they are",
        )?;
        self.samples += samples;
        let access = cell("Memory access").unwrap_or("");
        let hit = !access.contains("miss");
        if access.starts_with(|c: char| c.is_ascii_alphabetic()) && !access.starts_with("N/A") {
            self.known += samples;
            let add = |is: bool, to: &mut f64| *to += if is { samples } else { 0.0 };
            add(access.contains("L1") && hit, &mut self.l1);
            add(access.contains("L3") && hit, &mut self.llc);
            add(
                access.contains("RAM") || access.contains("PMEM"),
                &mut self.dram,
            );
            add(access.contains("Remote"), &mut self.remote);
            if let Some(snoop) = cell("Snoop") {
                self.has_snoop = true;
                add(snoop.eq_ignore_ascii_case("HitM"), &mut self.hitm);
            }
        }
        if let Some(tlb) = cell("TLB access").filter(|tlb| *tlb != "N/A") {
            self.tlb_known += samples;
            if tlb.contains("miss") || tlb.contains("Walker") {
                self.tlb_miss += samples;
            }
        }
        if let Some(weight) = cell("Local Weight")
            .and_then(number)
            .filter(|weight| *weight > 0.0)
        {
            self.weighted += weight * samples;
            self.weight_samples += samples;
        }
        Ok(())
    }
}

/// Cells have two spaces or more between them, and never two inside.
fn cells(text: &str) -> impl Iterator<Item = &str> {
    text.split("  ")
        .map(str::trim)
        .filter(|cell| !cell.is_empty())
}

/// `602` or `12K`, as the head of a report has it.
fn samples_of(text: &str) -> Option<f64> {
    let (digits, factor) = match text.chars().last()? {
        'K' => (&text[..text.len() - 1], 1e3),
        'M' => (&text[..text.len() - 1], 1e6),
        _ => (text, 1.0),
    };
    number(digits).map(|value| value * factor)
}
