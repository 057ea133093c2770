//! What `nsys export --type sqlite` writes: kernels, copies, calls of the runtime, waits.
//!
//! A database is code as well as data: it is opened to be read and never changed, without
//! trust in its schema; names that are no plain tables (views, virtual tables, computed
//! columns) are refused. One subject for each card.

mod timeline;

use std::collections::HashMap;
use std::path::Path;

use rules::{Metrics, Subject, Unit};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row};

use crate::detect::Format;
use crate::error::Error;
use crate::lines::said;
use crate::{Clock, Event, Import};

use timeline::{Span, Timeline};

const KERNELS: &str = "CUPTI_ACTIVITY_KIND_KERNEL";
const COPIES: &str = "CUPTI_ACTIVITY_KIND_MEMCPY";
const SETS: &str = "CUPTI_ACTIVITY_KIND_MEMSET";
const CALLS: &str = "CUPTI_ACTIVITY_KIND_RUNTIME";
const WAITS: &str = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION";
const GRAPHS: &str = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE";

/// Rows of one table; more are of no trace that a person looks at, but of a damaged file.
const MAX_ROWS: u64 = 20_000_000;

/// Its length, its key, the length of its head and a type, and where it is on its page.
const MIN_ROW_BYTES: u64 = 6;

const HOST_TO_DEVICE: i64 = 1;
const DEVICE_TO_HOST: i64 = 2;

pub fn read(path: &Path, file: &str) -> Result<Import, Error> {
    let database = Database::open(path, file)?;
    let mut import = Import::new(Format::NsysSqlite, file);
    let mut cards: HashMap<i64, Card> = HashMap::new();
    let session = session_start(&database)?;
    import.clock = if session.is_some() {
        Clock::Wall
    } else {
        Clock::Unknown
    };
    let offset = session.unwrap_or(0);
    let mut strings = Strings::new(&database)?;
    let mut graphs = database
        .rows(GRAPHS, &["start"], |_, _| Ok(()))?
        .unwrap_or(0)
        > 0;

    let kernels = database.rows(
        KERNELS,
        &[
            "start",
            "end",
            "deviceId",
            "demangledName",
            "globalPid",
            "graphNodeId",
        ],
        |row, at| {
            let span = Span::of(row.number(0)?, row.number(1)?)
                .ok_or_else(|| at.wrong("a kernel that ends before it begins"))?;
            let card = cards.entry(row.number(2)?.unwrap_or(0)).or_default();
            card.kernels += 1;
            card.kernel_nanos = card.kernel_nanos.saturating_add(span.nanos());
            card.busy.add(span);
            graphs |= row.number(5)?.is_some_and(|node| node != 0);
            let name = strings.get(row.number(3)?)?;
            import
                .events
                .push(event(span, offset, row.number(4)?, "kernel", name));
            Ok(())
        },
    )?;
    let pageable = pageable_kind(&database)?;
    database.rows(
        COPIES,
        &[
            "start",
            "end",
            "deviceId",
            "bytes",
            "copyKind",
            "srcKind",
            "dstKind",
            "globalPid",
        ],
        |row, at| {
            let span = Span::of(row.number(0)?, row.number(1)?)
                .ok_or_else(|| at.wrong("a copy that ends before it begins"))?;
            let bytes = row
                .number(3)?
                .and_then(|bytes| u64::try_from(bytes).ok())
                .ok_or_else(|| at.wrong("a copy of fewer than 0 bytes"))?;
            let card = cards.entry(row.number(2)?.unwrap_or(0)).or_default();
            card.busy.add(span);
            card.copies.add(span);
            let kind = row.number(4)?;
            let host_side = match kind {
                Some(HOST_TO_DEVICE) => row.number(5)?,
                Some(DEVICE_TO_HOST) => row.number(6)?,
                _ => None,
            };
            if kind == Some(HOST_TO_DEVICE) {
                card.to_device_bytes = card.to_device_bytes.saturating_add(bytes);
            }
            if let Some(host_side) = host_side {
                card.host_bytes = card.host_bytes.saturating_add(bytes);
                if host_side == pageable {
                    card.pageable_bytes = card.pageable_bytes.saturating_add(bytes);
                }
            }
            let name = match kind {
                Some(HOST_TO_DEVICE) => "host to device",
                Some(DEVICE_TO_HOST) => "device to host",
                Some(8) => "device to device",
                _ => "copy",
            };
            import
                .events
                .push(event(span, offset, row.number(7)?, "copy", name));
            Ok(())
        },
    )?;
    database.rows(SETS, &["start", "end", "deviceId"], |row, at| {
        let span = Span::of(row.number(0)?, row.number(1)?)
            .ok_or_else(|| at.wrong("a fill that ends before it begins"))?;
        cards
            .entry(row.number(2)?.unwrap_or(0))
            .or_default()
            .busy
            .add(span);
        Ok(())
    })?;
    let mut api = Api::default();
    let calls = database.rows(
        CALLS,
        &["start", "end", "globalTid", "nameId"],
        |row, at| {
            let span = Span::of(row.number(0)?, row.number(1)?)
                .ok_or_else(|| at.wrong("a call that ends before it begins"))?;
            let thread = row.number(2)?;
            let name = strings.get(row.number(3)?)?;
            graphs |= name.contains("GraphLaunch");
            api.add(thread, name, span);
            import.events.push(event(span, offset, thread, "api", name));
            Ok(())
        },
    )?;
    if calls.is_none() {
        // Without the calls themselves, what the card's driver says of waits.
        database.rows(WAITS, &["start", "end", "globalPid"], |row, at| {
            let span = Span::of(row.number(0)?, row.number(1)?)
                .ok_or_else(|| at.wrong("a wait that ends before it begins"))?;
            api.add(row.number(2)?, "Synchronize", span);
            Ok(())
        })?;
    }
    if kernels.is_none() && calls.is_none() {
        return Err(Error::content(
            file,
            format!(
                "a database without {KERNELS} and {CALLS}; export it with `nsys export --type sqlite` from a profile with `-t cuda`"
            ),
        ));
    }
    if cards.is_empty() {
        import
            .notes
            .push("no work on any card is in the trace".into());
    }
    if session.is_none() {
        import
            .notes
            .push("when the session began is not in the file, so that it joins no run".into());
    }
    let mut numbered: Vec<(i64, Card)> = cards.into_iter().collect();
    numbered.sort_by_key(|(number, _)| *number);
    for (number, card) in numbered {
        import
            .subjects
            .push(card.subject(file, number, &api, calls.is_some(), graphs));
    }
    Ok(import)
}

/// As the tool packs them: 24 bits of process, 24 of thread.
fn event(span: Span, offset: u64, global: Option<i64>, category: &str, name: &str) -> Event {
    let global = global.unwrap_or(0) as u64;
    Event {
        begin_nanos: span.start.saturating_add(offset),
        duration_nanos: span.nanos(),
        pid: (global >> 24 & 0xff_ffff) as u32,
        tid: (global & 0xff_ffff) as u32,
        category: category.to_owned(),
        name: name.to_owned(),
    }
}

#[derive(Default)]
struct Card {
    kernels: u64,
    kernel_nanos: u64,
    busy: Timeline,
    copies: Timeline,
    to_device_bytes: u64,
    host_bytes: u64,
    pageable_bytes: u64,
}

impl Card {
    fn subject(self, file: &str, number: i64, api: &Api, has_calls: bool, graphs: bool) -> Subject {
        let mut metrics = Metrics::default();
        let busy = self.busy.joined();
        let span = busy.last_end.saturating_sub(busy.first_start) as f64;
        let copies = self.copies.joined().nanos as f64;
        let mut put = |table: &str, name: &str, unit, value: f64| {
            metrics.number(name, unit, value, Some(&format!("{file} {table}")));
        };
        if span > 0.0 {
            let share = busy.nanos as f64 / span;
            put(KERNELS, "gpu.busy", Unit::Share, share);
            put(KERNELS, "gpu.gaps", Unit::Share, 1.0 - share);
            put(COPIES, "copies.share", Unit::Share, copies / span);
            let (launch, sync) = api.shares(busy.first_start, busy.last_end);
            if has_calls {
                put(CALLS, "api.launch_share", Unit::Share, launch);
            }
            put(
                if has_calls { CALLS } else { WAITS },
                "api.sync_share",
                Unit::Share,
                sync,
            );
        }
        if busy.gaps > 0 {
            put(
                KERNELS,
                "gpu.mean_gap_nanos",
                Unit::Nanos,
                (span - busy.nanos as f64) / busy.gaps as f64,
            );
        }
        put(KERNELS, "gpu.kernels", Unit::Count, self.kernels as f64);
        if self.kernels > 0 {
            put(
                KERNELS,
                "gpu.mean_kernel_nanos",
                Unit::Nanos,
                self.kernel_nanos as f64 / self.kernels as f64,
            );
        }
        put(
            COPIES,
            "copies.host_to_device_bytes",
            Unit::Bytes,
            self.to_device_bytes as f64,
        );
        if self.host_bytes > 0 {
            put(
                COPIES,
                "copies.pageable_share",
                Unit::Share,
                self.pageable_bytes as f64 / self.host_bytes as f64,
            );
        }
        metrics.flag("graphs.used", graphs, Some(file));
        Subject {
            kind: "trace".to_owned(),
            name: format!("card {number}"),
            metrics,
        }
    }
}

/// Time of threads inside calls that launch and calls that wait.
#[derive(Default)]
struct Api {
    threads: HashMap<i64, (Timeline, Timeline, u64)>,
}

impl Api {
    fn add(&mut self, thread: Option<i64>, name: &str, span: Span) {
        let (launch, sync, total) = self.threads.entry(thread.unwrap_or(0)).or_default();
        *total = total.saturating_add(span.nanos());
        if name.contains("Synchronize") {
            sync.add(span);
        } else if name.contains("Launch") {
            launch.add(span);
        }
    }

    /// Of the thread that is most in calls: the one that drives the card.
    fn shares(&self, from: u64, to: u64) -> (f64, f64) {
        let busiest = self
            .threads
            .iter()
            .max_by_key(|(thread, (_, _, total))| (*total, **thread));
        let Some((_, (launch, sync, _))) = busiest else {
            return (0.0, 0.0);
        };
        let of = |timeline: &Timeline| {
            timeline.clipped(from, to).joined().nanos as f64 / (to - from).max(1) as f64
        };
        (of(launch), of(sync))
    }
}

struct Database<'a> {
    file: &'a str,
    connection: Connection,
    /// More rows than the file has room for are the same ones again.
    max_rows: u64,
}

/// Where in which table, for messages.
struct Place<'a> {
    file: &'a str,
    table: &'a str,
    row: u64,
}

impl Place<'_> {
    fn wrong(&self, reason: &str) -> Error {
        Error::content(
            self.file,
            format!("{}, row {}: {reason}", self.table, self.row),
        )
    }
}

/// A row whose values are numbers or nothing.
struct Numbers<'a, 'b> {
    row: &'a Row<'b>,
    columns: &'a [Option<usize>],
    place: Place<'a>,
}

impl Numbers<'_, '_> {
    fn number(&self, at: usize) -> Result<Option<i64>, Error> {
        let Some(column) = self.columns[at] else {
            return Ok(None);
        };
        self.row
            .get(column)
            .map_err(|error| self.place.wrong(&said(&error.to_string())))
    }
}

impl<'a> Database<'a> {
    fn open(path: &Path, file: &'a str) -> Result<Database<'a>, Error> {
        // `immutable`: no lock and no journal is looked for beside the file.
        let mut address = "file:".to_owned();
        let absolute = std::path::absolute(path).map_err(|source| Error::io(file, source))?;
        for byte in absolute.as_os_str().as_encoded_bytes() {
            match byte {
                b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                    address.push(*byte as char)
                }
                other => address.push_str(&format!("%{other:02x}")),
            }
        }
        address.push_str("?mode=ro&immutable=1");
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_URI
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let refused = |error: rusqlite::Error| {
            Error::content(
                file,
                format!("no database that can be read: {}", said(&error.to_string())),
            )
        };
        let connection = Connection::open_with_flags(address, flags).map_err(refused)?;
        for (setting, on) in [
            (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
            (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
            (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
            (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
        ] {
            connection.set_db_config(setting, on).map_err(refused)?;
        }
        connection
            .execute_batch(
                "PRAGMA cell_size_check = ON; PRAGMA query_only = ON; PRAGMA mmap_size = 0;",
            )
            .map_err(refused)?;
        let bytes = std::fs::metadata(path)
            .map_err(|source| Error::io(file, source))?
            .len();
        Ok(Database {
            file,
            connection,
            max_rows: MAX_ROWS.min(bytes / MIN_ROW_BYTES),
        })
    }

    fn refused(&self, error: &rusqlite::Error) -> Error {
        Error::content(
            self.file,
            format!("the database is damaged: {}", said(&error.to_string())),
        )
    }

    /// The columns of a plain table; none where there is no such name.
    fn columns(&self, table: &str) -> Result<Option<Vec<String>>, Error> {
        let refused = |error: rusqlite::Error| self.refused(&error);
        let kind: Option<(String, Option<String>)> = self
            .connection
            .query_row(
                "SELECT type, sql FROM sqlite_master WHERE name = ?1 AND type IN ('table', 'view')",
                [table],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()
            .map_err(refused)?;
        let Some((kind, sql)) = kind else {
            return Ok(None);
        };
        let plain = sql.is_some_and(|sql| {
            sql.get(..13)
                .is_some_and(|start| start.eq_ignore_ascii_case("CREATE TABLE "))
        });
        if kind != "table" || !plain {
            return Err(Error::content(
                self.file,
                format!("{table} is no plain table; nsys writes no such file"),
            ));
        }
        let mut columns = Vec::new();
        let mut statement = self
            .connection
            .prepare("SELECT name, hidden FROM pragma_table_xinfo(?1)")
            .map_err(refused)?;
        let mut rows = statement.query([table]).map_err(refused)?;
        while let Some(row) = rows.next().map_err(refused)? {
            let hidden: i64 = row.get(1).map_err(refused)?;
            if hidden != 0 {
                return Err(Error::content(
                    self.file,
                    format!("{table} has computed columns; nsys writes no such file"),
                ));
            }
            columns.push(row.get(0).map_err(refused)?);
        }
        Ok(Some(columns))
    }

    /// Each row of a table, with the values of these columns; a column that the table does not
    /// have is nothing. Returns the number of rows, or none without the table.
    fn rows(
        &self,
        table: &str,
        wanted: &[&str],
        mut take: impl FnMut(&Numbers<'_, '_>, &Place<'_>) -> Result<(), Error>,
    ) -> Result<Option<u64>, Error> {
        let Some(known) = self.columns(table)? else {
            return Ok(None);
        };
        let mut selected = Vec::new();
        let columns: Vec<Option<usize>> = wanted
            .iter()
            .map(|name| {
                let has = known.iter().any(|column| column == name);
                has.then(|| {
                    selected.push(format!("\"{name}\""));
                    selected.len() - 1
                })
            })
            .collect();
        if selected.is_empty() {
            return Err(Error::content(
                self.file,
                format!("{table} has none of the columns of nsys"),
            ));
        }
        let query = format!("SELECT {} FROM \"{table}\"", selected.join(", "));
        let mut statement = self
            .connection
            .prepare(&query)
            .map_err(|error| self.refused(&error))?;
        let mut rows = statement.query([]).map_err(|error| self.refused(&error))?;
        let mut count = 0;
        while let Some(row) = rows.next().map_err(|error| self.refused(&error))? {
            count += 1;
            let place = || Place {
                file: self.file,
                table,
                row: count,
            };
            if count > self.max_rows {
                return Err(place().wrong(
                    "more than the file has room for, or than are looked at; export a shorter time (`--ts-shift`, `nsys profile --duration`)",
                ));
            }
            let numbers = Numbers {
                row,
                columns: &columns,
                place: place(),
            };
            take(&numbers, &place())?;
        }
        Ok(Some(count))
    }
}

/// When the times count from, since 1970.
fn session_start(database: &Database<'_>) -> Result<Option<u64>, Error> {
    let mut start = None;
    database.rows(
        "TARGET_INFO_SESSION_START_TIME",
        &["utcEpochNs"],
        |row, _| {
            let nanos = row.number(0)?.and_then(|nanos| u64::try_from(nanos).ok());
            start = start.or(nanos);
            Ok(())
        },
    )?;
    Ok(start)
}

/// The number of memory that the driver must copy once more; newer files say it themselves.
fn pageable_kind(database: &Database<'_>) -> Result<i64, Error> {
    const USUAL: i64 = 0;
    if database.columns("ENUM_CUDA_MEM_KIND")?.is_none() {
        return Ok(USUAL);
    }
    let found = database
        .connection
        .query_row(
            "SELECT id FROM ENUM_CUDA_MEM_KIND WHERE label = 'Pageable'",
            [],
            |row| row.get(0),
        )
        .optional();
    Ok(found
        .map_err(|error| database.refused(&error))?
        .unwrap_or(USUAL))
}

/// `StringIds`, each looked up once.
struct Strings<'a> {
    database: &'a Database<'a>,
    known: HashMap<i64, String>,
    has_table: bool,
}

impl<'a> Strings<'a> {
    fn new(database: &'a Database<'a>) -> Result<Strings<'a>, Error> {
        Ok(Strings {
            database,
            known: HashMap::new(),
            has_table: database.columns("StringIds")?.is_some(),
        })
    }

    fn get(&mut self, id: Option<i64>) -> Result<&str, Error> {
        let Some(id) = id.filter(|_| self.has_table) else {
            return Ok("");
        };
        if !self.known.contains_key(&id) {
            let text: Option<String> = self
                .database
                .connection
                .query_row(
                    "SELECT substr(value, 1, 4096) FROM StringIds WHERE id = ?1",
                    [id],
                    |row| row.get(0),
                )
                .optional()
                .map_err(|error| self.database.refused(&error))?;
            self.known.insert(id, text.unwrap_or_default());
        }
        Ok(self.known.get(&id).map_or("", String::as_str))
    }
}
