//! SQL over the tables of one or several runs.
//!
//! One run: its files are the tables. Several: each table is the union of theirs,
//! with the run's name in a first column `run`. Views are made on top. Nothing can
//! be changed through a query.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use datafusion::{
    arrow::{datatypes::SchemaRef, record_batch::RecordBatch},
    catalog::MemorySchemaProvider,
    error::DataFusionError,
    execution::{context::SQLOptions, runtime_env::RuntimeEnvBuilder},
    parquet::file::{
        metadata::KeyValue,
        reader::{FileReader, SerializedFileReader},
    },
    prelude::{ParquetReadOptions, SessionConfig, SessionContext},
};
use futures::StreamExt;
use rundir::Run;

use crate::{
    StoreError, checksums,
    ingest::TABLES_DIRECTORY,
    schema::{KEY_LOG_BYTES, KEY_TABLE, KEY_VERSION, TABLES, Table, VERSION},
    views::VIEWS,
};

/// What a query may use; beyond it, sorts and groupings go to disk.
pub const MEMORY_LIMIT_BYTES: usize = 2 << 30;
const PARTITIONS: usize = 2;
/// Column that tells runs apart.
const RUN_COLUMN: &str = "run";

/// Whether a run can be queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TablesState {
    Missing,
    /// The log has grown since they were made, or one is missing.
    Stale,
    Ready,
}

/// How the tables of a run stand. Files that cannot be read, or are not ours, are
/// an error that names them.
pub fn tables_state(run: &Run) -> Result<TablesState, StoreError> {
    if !run.path().join(TABLES_DIRECTORY).is_dir() {
        return Ok(TablesState::Missing);
    }
    let has_log = run.log_directory().is_dir();
    let mut state = TablesState::Ready;
    for table in TABLES {
        // An older program made fewer tables.
        if has_log && !file_path(run.path(), table).exists() {
            state = TablesState::Stale;
            continue;
        }
        let path = file_path(run.path(), table);
        // What is missing is said below.
        if !checksums::is_as_written(&path).unwrap_or(true) {
            return Err(StoreError::BadTable {
                path,
                run: run.path().to_owned(),
                what: "the table is damaged".into(),
            });
        }
        let log_bytes = check_file(run.path(), table)?;
        // A run whose log was removed to save space keeps its tables.
        if has_log && log_bytes != Some(run.log_bytes()) {
            state = TablesState::Stale;
        }
    }
    Ok(state)
}

/// An open set of runs.
pub struct Session {
    context: SessionContext,
    runtime: tokio::runtime::Runtime,
    /// Other names for folders that DataFusion cannot name; made when first needed.
    links: OnceLock<tempfile::TempDir>,
}

impl Session {
    /// Opens the tables of runs that [`tables_state`] finds ready.
    pub fn open(runs: &[&Path]) -> Result<Session, StoreError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(PARTITIONS)
            .build()?;
        let environment = RuntimeEnvBuilder::new()
            .with_memory_limit(MEMORY_LIMIT_BYTES, 1.0)
            .build_arc()
            .map_err(failed)?;
        let mut config = SessionConfig::new()
            .with_target_partitions(PARTITIONS)
            .with_information_schema(true);
        let parquet = &mut config.options_mut().execution.parquet;
        parquet.pushdown_filters = true;
        let context = SessionContext::new_with_config_rt(config, environment);
        let session = Session {
            context,
            runtime,
            links: OnceLock::new(),
        };
        for run in runs {
            for table in TABLES {
                check_file(run, table)?;
            }
        }
        session
            .runtime
            .block_on(session.register(runs))
            .map_err(failed)?;
        Ok(session)
    }

    /// Runs a query. `sink` gets the columns once, then the rows in batches, until
    /// it answers [`Flow::Enough`].
    pub fn query<E: From<StoreError>>(
        &self,
        sql: &str,
        mut sink: impl FnMut(Part) -> Result<Flow, E>,
    ) -> Result<(), E> {
        self.runtime.block_on(async {
            let options = SQLOptions::new()
                .with_allow_ddl(false)
                .with_allow_dml(false)
                .with_allow_statements(false);
            let frame = self
                .context
                .sql_with_options(sql, options)
                .await
                .map_err(failed)?;
            let mut stream = frame.execute_stream().await.map_err(failed)?;
            let mut flow = sink(Part::Columns(stream.schema()))?;
            while flow == Flow::More
                && let Some(batch) = stream.next().await
            {
                flow = sink(Part::Rows(batch.map_err(failed)?))?;
            }
            Ok(())
        })
    }

    async fn register(&self, runs: &[&Path]) -> Result<(), DataFusionError> {
        if let [run] = runs {
            for table in TABLES {
                self.register_file(table.name, &file_path(run, table))
                    .await?;
            }
            for view in &VIEWS {
                self.create_view(view.name, &view.sql()).await?;
            }
            return Ok(());
        }
        let catalog = self
            .context
            .catalog("datafusion")
            .expect("the default catalog");
        let names = run_names(runs);
        for (number, run) in runs.iter().enumerate() {
            let schema = format!("run{number}");
            catalog.register_schema(&schema, Arc::new(MemorySchemaProvider::new()))?;
            for table in TABLES {
                let name = format!("{schema}.{}", table.name);
                self.register_file(&name, &file_path(run, table)).await?;
            }
        }
        for table in TABLES {
            let parts: Vec<String> = names
                .iter()
                .enumerate()
                .map(|(number, name)| {
                    let name = name.replace('\'', "''");
                    format!(
                        "SELECT '{name}' AS {RUN_COLUMN}, * FROM run{number}.{}",
                        table.name
                    )
                })
                .collect();
            self.create_view(table.name, &parts.join(" UNION ALL "))
                .await?;
        }
        for view in &VIEWS {
            self.create_view(view.name, &view.sql_of_runs()).await?;
        }
        Ok(())
    }

    async fn register_file(&self, name: &str, path: &Path) -> Result<(), DataFusionError> {
        let options = ParquetReadOptions::default();
        let url = match has_plain_name(path) {
            true => file_url(path),
            false => file_url(&self.link(name, path)?),
        };
        self.context.register_parquet(name, url, options).await
    }

    fn link(&self, name: &str, path: &Path) -> io::Result<PathBuf> {
        let links = match self.links.get() {
            Some(links) => links,
            None => {
                let made = tempfile::tempdir()?;
                self.links.get_or_init(|| made)
            }
        };
        let link = links.path().join(format!("{name}.parquet"));
        std::os::unix::fs::symlink(std::path::absolute(path)?, &link)?;
        Ok(link)
    }

    async fn create_view(&self, name: &str, sql: &str) -> Result<(), DataFusionError> {
        self.context
            .sql(&format!("CREATE VIEW {name} AS {sql}"))
            .await?;
        Ok(())
    }
}

/// What a query answers.
pub enum Part {
    Columns(SchemaRef),
    Rows(RecordBatch),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    More,
    Enough,
}

fn failed(error: DataFusionError) -> StoreError {
    StoreError::query(error, MEMORY_LIMIT_BYTES)
}

/// Where the table of a run is, once it is made.
pub fn table_path(run: &Path, table: &str) -> PathBuf {
    run.join(TABLES_DIRECTORY).join(format!("{table}.parquet"))
}

pub(crate) fn file_path(run: &Path, table: &Table) -> PathBuf {
    table_path(run, table.name)
}

/// Whether DataFusion's paths can hold it, for which it is UTF-8 and without control
/// characters and most punctuation.
fn has_plain_name(path: &Path) -> bool {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let is_plain = |c: char| c.is_alphanumeric() || "/.-_ =+,:@".contains(c);
    path.to_str().is_some_and(|path| path.chars().all(is_plain))
}

/// The path as a URL: in a plain path DataFusion takes `*`, `?` and `[` for patterns.
fn file_url(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut url = "file://".to_owned();
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                url.push(byte.into())
            }
            _ => url.push_str(&format!("%{byte:02X}")),
        }
    }
    url
}

/// Checks that the file is this table; the bytes of the log it was made from.
fn check_file(run: &Path, table: &Table) -> Result<Option<u64>, StoreError> {
    if !run.join(TABLES_DIRECTORY).is_dir() {
        return Err(StoreError::NoTables {
            path: run.to_owned(),
        });
    }
    let path = file_path(run, table);
    let bad = |what: String| StoreError::BadTable {
        path: path.clone(),
        run: run.to_owned(),
        what,
    };
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(bad("the table is missing".into()));
        }
        Err(error) => return Err(StoreError::io(&path, "cannot open")(error)),
    };
    let reader = SerializedFileReader::new(file).map_err(|error| {
        bad(format!(
            "the table is damaged: {}",
            one_line(&error.to_string())
        ))
    })?;
    let metadata = reader.metadata().file_metadata();
    let about: HashMap<&str, &str> = metadata
        .key_value_metadata()
        .into_iter()
        .flatten()
        .filter_map(|KeyValue { key, value }| Some((key.as_str(), value.as_deref()?)))
        .collect();
    match about.get(KEY_TABLE) {
        None => return Err(bad("this Parquet file was not made by tensorscope".into())),
        Some(&name) if name != table.name => {
            return Err(bad(format!("this is table `{name}` under another name")));
        }
        Some(_) => {}
    }
    let version = about.get(KEY_VERSION).copied().unwrap_or("none");
    if version != VERSION {
        return Err(bad(format!(
            "the table has version {version}, this program reads {VERSION}"
        )));
    }
    let known: HashSet<&str> = metadata
        .schema_descr()
        .columns()
        .iter()
        .map(|c| c.name())
        .collect();
    if let Some(column) = table.columns.iter().find(|c| !known.contains(c.name)) {
        return Err(bad(format!("the table lacks column `{}`", column.name)));
    }
    Ok(about
        .get(KEY_LOG_BYTES)
        .and_then(|bytes| bytes.parse().ok()))
}

fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// The folders' own names, or, where two are equal, the paths as given.
fn run_names(runs: &[&Path]) -> Vec<String> {
    let name = |run: &&Path| {
        let resolved = std::path::absolute(run).unwrap_or_else(|_| run.to_path_buf());
        let name = resolved
            .file_name()
            .map(|n| n.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| run.display().to_string());
        // `run=NAME`, as partitions are named, is the run NAME for other tools.
        name.strip_prefix("run=").map(str::to_owned).unwrap_or(name)
    };
    let names: Vec<String> = runs.iter().map(name).collect();
    let distinct: HashSet<&String> = names.iter().collect();
    if distinct.len() == names.len() {
        return names;
    }
    runs.iter().map(|run| run.display().to_string()).collect()
}
