//! Block requests that `blktrace` has recorded, from the text that `blkparse` prints
//! without options.
//!
//! ```text
//!   8,0    3       11     0.009507758   697  C  WS 223490 + 16 [0]
//! device cpu sequence     seconds       pid act kind sector + sectors [program]
//! ```
//!
//! `D` (issued to the driver) and `C` (completed) become requests; `Q` (asked for)
//! tells whose they are, for `D` often comes from a thread of the kernel; `R` (put
//! back) tells that another `D` is the same request. Other
//! actions, messages and the summary at the end are passed over. Times count from
//! the start of the trace, so `start_nanos` says when that was on the clock of the
//! run (`blkparse -t` does not).

use std::collections::HashMap;
use std::io::BufRead;

use crate::block::pair::{Completed, Issued, Pairs};
use crate::devices::{Device, SECTOR_BYTES};
use crate::error::KernelError;
use crate::extents::DiskMap;
use crate::kernel_log::io::{Io, Rwbs};

/// Requests of all devices in the text, in the order of completion.
pub fn read(
    text: impl BufRead,
    start_nanos: u64,
    map: DiskMap,
    mut take: impl FnMut(&Io) -> Result<(), KernelError>,
) -> Result<Imported, KernelError> {
    let mut pairs = Pairs::new(map);
    let mut askers: HashMap<(Device, u64), u32> = HashMap::new();
    let mut records = Vec::new();
    let mut imported = Imported::default();
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = |what: String| KernelError::Line { line: number, what };
        let line = line.map_err(|cause| wrong(rundir::error::reason(&cause)))?;
        let Some(event) = parse(&line).map_err(wrong)? else {
            continue;
        };
        imported.events += 1;
        let nanos = start_nanos.saturating_add(event.nanos);
        let (device, sector, bytes) = (event.device, event.sector, event.bytes);
        match event.action {
            Action::Asked => {
                askers.insert((device, sector), event.pid);
            }
            Action::Issued => {
                let pid = askers.remove(&(device, sector)).unwrap_or(event.pid);
                let issued = Issued {
                    nanos,
                    device,
                    sector,
                    bytes,
                    rwbs: event.rwbs,
                    pid,
                    tid: pid,
                };
                pairs.issued(issued, &mut records);
            }
            Action::PutBack => pairs.put_back(device, sector),
            Action::Completed => {
                let completed = Completed {
                    nanos,
                    device,
                    sector,
                    bytes,
                };
                pairs.completed(completed, &mut records);
            }
        }
        records.drain(..).try_for_each(|io| take(&io))?;
    }
    pairs.finish(&mut records);
    records.drain(..).try_for_each(|io| take(&io))?;
    imported.requests = pairs.requests();
    imported.unpaired = pairs.unpaired();
    Ok(imported)
}

/// What was found in a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Lines with the actions Q, D, R and C.
    pub events: u64,
    pub requests: u64,
    /// Completions of requests issued before the trace began.
    pub unpaired: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Asked,
    Issued,
    PutBack,
    Completed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Event {
    device: Device,
    nanos: u64,
    pid: u32,
    action: Action,
    rwbs: Rwbs,
    sector: u64,
    bytes: u64,
}

/// `None` for what is passed over.
fn parse(line: &str) -> Result<Option<Event>, String> {
    let mut fields = line.split_ascii_whitespace();
    let mut next = || fields.next();
    // Only events start with a device; the summary has other first words.
    let Some(device) = next().and_then(parse_device) else {
        return Ok(None);
    };
    let early = || "the line ends early".to_owned();
    let mut field = || next().ok_or_else(early);
    let _cpu = field()?;
    let _sequence = field()?;
    let time = field()?;
    let pid = field()?;
    let action = match field()? {
        "Q" => Action::Asked,
        "D" => Action::Issued,
        "C" => Action::Completed,
        "R" => Action::PutBack,
        _ => return Ok(None),
    };
    let rwbs = Rwbs::from_text(field()?.as_bytes());
    let sector = field()?;
    // Flushes and commands of the driver have no sectors: `D  FN [kworker]`,
    // `D  N 0 [kworker]`.
    if sector.starts_with('[') || field()? != "+" {
        return Ok(None);
    }
    let sectors = field()?;
    let number = |text: &str, what: &str| {
        text.parse::<u64>()
            .map_err(|_| format!("{what} is not a number: `{}`", text.escape_debug()))
    };
    let bytes = number(sectors, "the number of sectors")?
        .checked_mul(SECTOR_BYTES)
        .ok_or("the number of sectors is too large")?;
    if bytes == 0 {
        return Ok(None);
    }
    let sector = number(sector, "the sector")?;
    sector
        .checked_mul(SECTOR_BYTES)
        .and_then(|at| at.checked_add(bytes))
        .ok_or("the sector is too large")?;
    Ok(Some(Event {
        device,
        nanos: parse_time(time)
            .ok_or_else(|| format!("the time is not valid: `{}`", time.escape_debug()))?,
        pid: u32::try_from(number(pid, "the process")?)
            .map_err(|_| format!("the process is too large: `{pid}`"))?,
        action,
        rwbs,
        sector,
        bytes,
    }))
}

/// `8,0`.
fn parse_device(text: &str) -> Option<Device> {
    let (major, minor) = text.split_once(',')?;
    Some(Device {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    })
}

/// `0.009507758`.
fn parse_time(text: &str) -> Option<u64> {
    let (seconds, nanos) = text.split_once('.')?;
    if nanos.len() != 9 {
        return None;
    }
    let seconds: u64 = seconds.parse().ok()?;
    let nanos: u64 = nanos.parse().ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
  8,0    3        1     0.000000000   697  Q   R 223490 + 16 [llama-cli]
  8,0    3        2     0.000001829   697  G   R 223490 + 16 [llama-cli]
  8,0    3        5     0.000004000   697  P   N [llama-cli]
  8,0    3        7     0.000006000   697  U   N [llama-cli] 1
  8,0    1        8     0.000009000   212  D   R 223490 + 16 [kworker/1:1H]
  8,0    0        9     0.000010000   697  D  RA 500 + 8 [llama-cli]
  8,0    2       10     0.000011000     0  C  WS 77 + 8 [0]
  8,0    3       11     0.009507758   697  C   R 223490 + 16 [0]
  8,0    0       12     0.009600000     0  D  FN [kworker/0:0H]
  8,0    0       13     0.009600001   212  D   N 0 [kworker/0:0H]

CPU0 (sda):
 Reads Queued:           0,        0KiB\t Writes Queued:           0,        0KiB
";

    fn imported(text: &str) -> Result<(Vec<Io>, Imported), KernelError> {
        let mut all = Vec::new();
        let done = read(text.as_bytes(), 1000, DiskMap::default(), |io| {
            all.push(*io);
            Ok(())
        })?;
        Ok((all, done))
    }

    #[test]
    fn the_usual_output_becomes_requests() {
        let (all, done) = imported(SAMPLE).unwrap();
        let counts = (done.events, done.requests, done.unpaired);
        assert_eq!(counts, (5, 2, 1));
        let [first, second] = &all[..] else {
            panic!("{all:?}");
        };
        assert_eq!(first.issued_nanos, 10_000);
        assert_eq!(first.completed_nanos, Some(9_508_758));
        assert_eq!((first.sector, first.request_bytes), (223_490, 8192));
        assert_eq!((first.pid, first.rwbs.to_string()), (697, "R".to_owned()));
        assert_eq!(first.device, Device { major: 8, minor: 0 });
        assert_eq!((second.completed_nanos, second.sector), (None, 500));
        assert!(second.rwbs.is_read_ahead());
    }

    #[test]
    fn errors_name_the_line() {
        let check = |line: &str, expect: &str| {
            let text = format!("{SAMPLE}{line}\n");
            assert_eq!(imported(&text).unwrap_err().to_string(), expect);
        };
        check(
            "8,0 3 1 0.5 697 D R 1 + 1 [a]",
            "line 14: the time is not valid: `0.5`",
        );
        check(
            "8,0 3 1 0.000000005 697 D R 1 + x [a]",
            "line 14: the number of sectors is not a number: `x`",
        );
        check(
            "8,0 3 1 0.000000005 697 D R 111111111111446980 + 1 [a]",
            "line 14: the sector is too large",
        );
        check("8,0 3 1 0.000000005 697 D", "line 14: the line ends early");
        check(
            "8,0 3 1 0.000000005 697 D R 1 + 99999999999999999 [a]",
            "line 14: the number of sectors is too large",
        );
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "([0-9,. ]{0,30}[QDC][ RW0-9+]{0,20}\n?){0,5}") {
            let _ = imported(&text);
        }
    }
}
