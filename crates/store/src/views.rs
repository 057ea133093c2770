//! The common questions, as SQL.
//!
//! Written in the SQL that DuckDB and Spark understand as well: the documentation
//! shows these texts, and a test runs them there. `{run}` stands for nothing, or
//! for the column that tells several runs apart.

/// A named query that can be used like a table.
pub struct View {
    pub name: &'static str,
    pub doc: &'static str,
    sql: &'static str,
}

impl View {
    /// The view over one run.
    pub fn sql(&self) -> String {
        self.sql.replace("{run}", "").replace("{and_run}", "")
    }

    /// The view over several runs, whose tables have a column `run`.
    pub fn sql_of_runs(&self) -> String {
        let sql = self.sql.replace("{run}", "a.run, ");
        sql.replace("{and_run}", " AND a.run = b.run")
    }
}

pub const VIEWS: [View; 18] = [
    View {
        name: "hot_tensors",
        doc: "How much each weight is used; `bytes_per_byte` is bytes read per byte of its size.",
        sql: "\
SELECT {run}a.tensor_name, a.component, a.role, b.layer, b.size_bytes,
       SUM(a.accesses) AS accesses, SUM(a.bytes) AS bytes,
       CAST(SUM(a.bytes) AS DOUBLE) / b.size_bytes AS bytes_per_byte
FROM traffic a JOIN tensors b ON a.tensor = b.tensor{and_run}
WHERE a.kind = 'weight'
GROUP BY {run}a.tensor_name, a.component, a.role, b.layer, b.size_bytes",
    },
    View {
        name: "bytes_by_component",
        doc: "Weights read, by phase and component.",
        sql: "\
SELECT {run}a.phase, a.component, SUM(a.accesses) AS accesses, SUM(a.bytes) AS bytes
FROM traffic a
WHERE a.kind = 'weight'
GROUP BY {run}a.phase, a.component",
    },
    View {
        name: "bytes_by_kind",
        doc: "Weights, KV cache, inputs and activations: bytes read and written, by phase.",
        sql: "\
SELECT {run}a.phase, a.kind, a.direction, SUM(a.accesses) AS accesses, SUM(a.bytes) AS bytes
FROM traffic a
GROUP BY {run}a.phase, a.kind, a.direction",
    },
    View {
        name: "bytes_by_layer",
        doc: "Bytes by phase, layer and kind; layer is null for what belongs to none.",
        sql: "\
SELECT {run}a.phase, a.layer, a.kind, SUM(a.accesses) AS accesses, SUM(a.bytes) AS bytes
FROM traffic a
GROUP BY {run}a.phase, a.layer, a.kind",
    },
    View {
        name: "bytes_by_op",
        doc: "Bytes by phase, op and direction.",
        sql: "\
SELECT {run}a.phase, a.op, a.direction, SUM(a.accesses) AS accesses, SUM(a.bytes) AS bytes
FROM traffic a
GROUP BY {run}a.phase, a.op, a.direction",
    },
    View {
        name: "time_by_op",
        doc: "Executed nodes and their time, by op and device; `timed_nodes` of them were timed, and `nanos` is of those.",
        sql: "\
SELECT {run}a.op, a.device, COUNT(*) AS nodes, COUNT(a.duration_nanos) AS timed_nodes,
       SUM(a.duration_nanos) AS nanos
FROM nodes a
GROUP BY {run}a.op, a.device",
    },
    View {
        name: "time_by_kernel",
        doc: "Kernels of devices and the time that they had for themselves; `timed` of them were timed, and `nanos` is of those.",
        sql: "\
SELECT {run}a.device, a.name, COUNT(*) AS launches, COUNT(a.exclusive_nanos) AS timed,
       SUM(a.exclusive_nanos) AS nanos
FROM kernels a
GROUP BY {run}a.device, a.name",
    },
    View {
        name: "bytes_by_device",
        doc: "What each device read and wrote, and how long it computed; `untimed_evals` did not say, and `nanos` is without them.",
        sql: "\
SELECT {run}a.phase, a.device, COUNT(*) AS evals,
       SUM(CASE WHEN a.device <> 'CPU' AND a.device_end_nanos IS NULL THEN 1 ELSE 0 END) AS untimed_evals,
       SUM(CASE WHEN a.device = 'CPU' THEN a.end_nanos - a.begin_nanos
                ELSE a.device_end_nanos - a.device_begin_nanos END) AS nanos,
       SUM(a.read_bytes) AS read_bytes, SUM(a.written_bytes) AS written_bytes,
       SUM(a.weight_bytes) AS weight_bytes, SUM(a.kv_bytes) AS kv_bytes
FROM evals a
GROUP BY {run}a.phase, a.device",
    },
    View {
        name: "copied_bytes",
        doc: "What was copied between host and devices, by tensor.",
        sql: "\
SELECT {run}a.device, a.way, a.tensor_name, a.kind, COUNT(*) AS copies, SUM(a.bytes) AS bytes
FROM copies a
GROUP BY {run}a.device, a.way, a.tensor_name, a.kind",
    },
    View {
        name: "expert_use",
        doc: "How many tokens each expert of each layer got, and its mean router weight.",
        sql: "\
SELECT {run}a.layer, a.expert, COUNT(*) AS tokens, AVG(CAST(a.weight AS DOUBLE)) AS mean_weight
FROM routing a
GROUP BY {run}a.layer, a.expert",
    },
    View {
        name: "tokens_per_second",
        doc: "Speed by phase. The time of evaluations only: what the program does between them is left out. No speed where devices did not say how long they took.",
        sql: "\
SELECT {run}a.phase, COUNT(*) AS evals, SUM(a.tokens) AS tokens,
       SUM(a.nanos) / 1e9 AS seconds,
       CASE WHEN COUNT(*) = COUNT(a.nanos) THEN SUM(a.tokens) * 1e9 / SUM(a.nanos) END AS tokens_per_second
FROM (
  SELECT {run}a.phase, a.tokens,
         CASE WHEN a.device = 'CPU' THEN a.end_nanos - a.begin_nanos
              ELSE a.device_end_nanos - a.device_begin_nanos END AS nanos
  FROM evals a
) a
GROUP BY {run}a.phase",
    },
    View {
        name: "bytes_per_token",
        doc: "Each evaluation's bytes, shared by the tokens of its batch: `kv_bytes` shows the cache grow.",
        sql: "\
SELECT {run}a.eval, a.phase, a.tokens,
       CAST(a.weight_bytes AS DOUBLE) / a.tokens AS weight_bytes,
       CAST(a.kv_bytes AS DOUBLE) / a.tokens AS kv_bytes,
       CAST(a.read_bytes + a.written_bytes AS DOUBLE) / a.tokens AS all_bytes
FROM evals a
WHERE a.tokens > 0",
    },
    View {
        name: "faults_by_tensor",
        doc: "Page faults by what was touched; `tensor_name` is null for the headers of files and other memory (`file` is null there).",
        sql: "\
SELECT {run}a.file, a.tensor_name, a.component, a.layer,
       SUM(CASE WHEN a.kind = 'major' THEN 1 ELSE 0 END) AS major_faults,
       SUM(CASE WHEN a.kind = 'minor' THEN 1 ELSE 0 END) AS minor_faults,
       COUNT(*) AS faults
FROM faults a
GROUP BY {run}a.file, a.tensor_name, a.component, a.layer",
    },
    View {
        name: "reads_by_tensor",
        doc: "What the disk delivered of each tensor; `times_read` is bytes read per byte of its size. `tensor_name` is null for headers and padding.",
        sql: "\
SELECT {run}a.file, a.tensor_name, a.component, a.layer, a.tensor_bytes,
       COUNT(DISTINCT a.request) AS requests, SUM(a.bytes) AS bytes,
       CAST(SUM(a.bytes) AS DOUBLE) / a.tensor_bytes AS times_read
FROM io a
WHERE a.kind = 'read' AND a.file IS NOT NULL
GROUP BY {run}a.file, a.tensor_name, a.component, a.layer, a.tensor_bytes",
    },
    View {
        name: "reads_by_layer",
        doc: "What the disk delivered of each layer; layer is null for what belongs to none. A request that touches several layers counts in each.",
        sql: "\
SELECT {run}a.layer, COUNT(DISTINCT a.request) AS requests, SUM(a.bytes) AS bytes
FROM io a
WHERE a.kind = 'read' AND a.file IS NOT NULL
GROUP BY {run}a.layer",
    },
    View {
        name: "reads_by_node",
        doc: "What the disk was asked for while nodes of each op were running; null between evaluations. For single nodes, group `io` by `eval, step`.",
        sql: "\
SELECT {run}a.phase, a.op, COUNT(DISTINCT a.request) AS requests, SUM(a.bytes) AS bytes
FROM io a
WHERE a.kind = 'read' AND a.file IS NOT NULL
GROUP BY {run}a.phase, a.op",
    },
    View {
        name: "read_sizes",
        doc: "How large the requests that read the model are: those from `from_bytes` to below twice that.",
        sql: "\
SELECT {run}a.from_bytes, COUNT(*) AS requests, SUM(a.request_bytes) AS bytes
FROM (
  SELECT DISTINCT {run}a.request, a.sector, a.request_bytes,
         CAST(POWER(2.0, FLOOR(LOG2(a.request_bytes + 0.5))) AS BIGINT) AS from_bytes
  FROM io a
  WHERE a.kind = 'read' AND a.file IS NOT NULL
) a
GROUP BY {run}a.from_bytes",
    },
    View {
        name: "reread",
        doc: "How often the model was read: `times_read` is bytes read from its files per byte of them.",
        sql: "\
SELECT {run}a.model_bytes, SUM(b.bytes) AS bytes,
       CAST(SUM(b.bytes) AS DOUBLE) / a.model_bytes AS times_read
FROM run a JOIN io b ON b.kind = 'read' AND b.file IS NOT NULL{and_run}
GROUP BY {run}a.model_bytes",
    },
];

/// Questions with their answers' query, for the documentation.
pub const QUERIES: [(&str, &str); 11] = [
    (
        "the ten hottest weights",
        "\
SELECT tensor_name, accesses, bytes
FROM hot_tensors
ORDER BY bytes DESC, tensor_name
LIMIT 10",
    ),
    (
        "where the bytes of generated tokens go",
        "\
SELECT component, accesses, bytes
FROM bytes_by_component
WHERE phase = 'generate'
ORDER BY bytes DESC",
    ),
    (
        "bytes by component, from single accesses",
        "\
SELECT component, COUNT(*) AS accesses, SUM(bytes) AS bytes
FROM accesses
WHERE kind = 'weight'
GROUP BY component
ORDER BY bytes DESC",
    ),
    (
        "bytes of each evaluation, from single accesses",
        "\
SELECT eval, COUNT(*) AS accesses, SUM(bytes) AS bytes
FROM accesses
GROUP BY eval
ORDER BY eval",
    ),
    (
        "the weights that one token reads, in order, with their place in the file",
        "\
SELECT step, tensor_name, expert, file_offset, bytes
FROM accesses
WHERE eval = 1 AND kind = 'weight'
ORDER BY step, file_offset",
    ),
    (
        "the experts of one layer, by bytes read",
        "\
SELECT expert, COUNT(*) AS accesses, SUM(bytes) AS bytes
FROM accesses
WHERE layer = 0 AND expert IS NOT NULL
GROUP BY expert
ORDER BY bytes DESC, expert",
    ),
    (
        "the slowest nodes",
        "\
SELECT name, op, COUNT(*) AS executions, SUM(duration_nanos) AS nanos
FROM nodes
GROUP BY name, op
ORDER BY nanos DESC, name
LIMIT 10",
    ),
    (
        "the kernels that a device spent most time in, and their nodes",
        "\
SELECT k.name, n.op, COUNT(*) AS launches, SUM(k.exclusive_nanos) AS nanos
FROM kernels k JOIN nodes n ON k.eval = n.eval AND k.step = n.step
WHERE k.exclusive_nanos IS NOT NULL
GROUP BY k.name, n.op
ORDER BY nanos DESC, k.name, n.op
LIMIT 10",
    ),
    (
        "bandwidth of the weights' reads, by op",
        "\
SELECT n.op, SUM(w.bytes) AS bytes, SUM(n.duration_nanos) AS nanos
FROM nodes n JOIN (
  SELECT eval, step, SUM(bytes) AS bytes
  FROM accesses
  WHERE kind = 'weight' AND eval BETWEEN 1 AND 100
  GROUP BY eval, step
) w ON n.eval = w.eval AND n.step = w.step
WHERE n.duration_nanos IS NOT NULL
GROUP BY n.op
ORDER BY bytes DESC",
    ),
    (
        "page faults while each op was running",
        "\
SELECT op, kind, COUNT(*) AS faults
FROM faults
GROUP BY op, kind
ORDER BY faults DESC, op, kind",
    ),
    (
        "the tensors of which the kernel kept least",
        "\
SELECT tensor_name, size_bytes, MIN(resident_bytes) AS least_bytes, MAX(resident_bytes) AS most_bytes
FROM residency
GROUP BY tensor_name, size_bytes
ORDER BY least_bytes, tensor_name
LIMIT 10",
    ),
];
