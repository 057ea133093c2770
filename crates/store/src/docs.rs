//! `docs/trace-schema.md`, from the schemas and the views.

use std::fmt::Write as _;

use crate::{
    schema::{Nulls, TABLES},
    views::{QUERIES, VIEWS},
};

const HEAD: &str = "\
# The tables of a run

<!-- Generated from crates/store: TENSORSCOPE_BLESS=1 cargo test -p store --test docs -->

`tensorscope ingest RUN` (and `tensorscope sql`, if need be) turns the raw log into Parquet
files `RUN/tables/NAME.parquet`, one per table: zstd, sorted, with the range of every
column for each row group, so that filters skip what they can. Any tool that reads Parquet opens them:

```text
tensorscope sql RUN \"SELECT * FROM hot_tensors ORDER BY bytes DESC LIMIT 10\"
duckdb -c \"SELECT component, sum(bytes) FROM 'RUN/tables/accesses.parquet' GROUP BY component\"
python3 -c \"import pandas; print(pandas.read_parquet('RUN/tables/evals.parquet'))\"
```

Units are in the names: `_bytes`, `_nanos` (monotonic clock). Integers are signed. Texts are
dictionaries (categories in pandas). An evaluation that was cut off or damaged has no
rows: `run.partial_evals` and `run.corrupt_records` count them. `faults`, `io` and `residency` are
empty unless their recording was asked for; `devices`, `kernels` and `copies` if only the processor
computed. A graph that several devices compute is an evaluation for each of its parts.

A time that was not measured is null, never made up: nodes on a device have times in evaluations
whose kernels were timed. Count them (`COUNT(duration_nanos)`) before dividing by their sum.

## Several runs

`tensorscope sql RUN1 RUN2 … \"SELECT …\"` queries them as one dataset: every table and view has a
first column `run`, the name of the run's folder.

Other tools take the runs as partitions. Put them into folders named `run=NAME` and point the
tool at all of them:

```text
duckdb -c \"SELECT run, sum(bytes) FROM read_parquet('traces/run=*/tables/accesses.parquet', hive_partitioning = true) GROUP BY run\"
spark.read.option(\"basePath\", \"traces\").parquet(\"traces/run=*/tables/accesses.parquet\")
```

";

/// The whole page.
pub fn trace_schema() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("## Tables\n\n");
    for table in TABLES {
        let _ = writeln!(page, "### {}\n\n{}", table.name, table.row);
        if !table.sorted_by.is_empty() {
            let _ = writeln!(page, "Sorted by {}.", table.sorted_by);
        }
        page.push_str("\n| column | type | meaning |\n|---|---|---|\n");
        for column in table.columns {
            let null = match column.nulls {
                Nulls::Allowed => " or null",
                Nulls::Never => "",
            };
            let (name, ty, doc) = (column.name, column.ty.name(), column.doc);
            let _ = writeln!(page, "| `{name}` | {ty}{null} | {doc} |");
        }
        page.push('\n');
    }
    page.push_str("## Views\n\nIn `tensorscope sql` these names work like tables. Elsewhere, use their text.\n\n");
    for view in &VIEWS {
        let _ = writeln!(
            page,
            "### {}\n\n{}\n\n```sql\n{}\n```\n",
            view.name,
            view.doc,
            view.sql()
        );
    }
    page.push_str("## Queries\n\n");
    for (question, sql) in QUERIES {
        let _ = writeln!(page, "### {question}\n\n```sql\n{sql}\n```\n");
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}
