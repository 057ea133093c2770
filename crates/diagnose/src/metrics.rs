//! What is known of each phase of a run, as named numbers for the rules.
//!
//! A number that was not recorded is absent. Each has the query that shows it, where the
//! tables have it; docs/diagnose.md lists the names.

use analysis::{
    actions::Setup,
    facts::Facts,
    time_stack::{FunctionTime, PhaseTime, ThreadTimes, Usage},
    traffic::TimeRow,
    underneath::UnderneathResults,
};
use kernelio::compute::ComputeCeiling;
use rules::{Metric, Metrics, Subject, Unit};
use rundir::metadata::Metadata;

use crate::stack::{KERNELS, PhaseStack};

mod devices;
mod memory;
mod products;

/// What memory gives to threads, in bytes a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ceilings {
    /// To as many threads as the run had.
    pub memory: Option<u64>,
    /// To all processors that the run may have.
    pub memory_all: Option<u64>,
    pub disk: Option<u64>,
    /// Arithmetic, and llama.cpp's products with weights of the model's types.
    pub compute: Option<ComputeCeiling>,
}

/// What a run is diagnosed from.
pub struct Inputs<'a> {
    pub facts: &'a Facts,
    pub underneath: Option<&'a UnderneathResults>,
    /// One for each phase; of `underneath` where threads were watched.
    pub times: &'a [PhaseTime],
    pub metadata: Option<&'a Metadata>,
    pub setup: &'a Setup,
    pub ceilings: Ceilings,
    /// Threads that computed each phase, by its name.
    pub threads: &'a [(String, u32)],
    /// Kernels that are faster on the machine of the run than those that computed.
    pub better_kernels: Option<&'a str>,
    /// A generated token's time with fed weights, as predicted.
    pub fed_nanos_per_token: Option<f64>,
    /// Numbers that others have found out about a phase: of roofline and imports.
    pub more: &'a [Subject],
}

/// Of a phase's time, from which the processor's memory is worth a number beside a device.
const NOTABLE_COMPUTING: f64 = 0.02;

const CPU_QUERY: &str =
    "SELECT activity, sum(sampled_nanos) FROM samples WHERE phase = '{phase}' GROUP BY activity";
const OFF_QUERY: &str =
    "SELECT reason, count(*), sum(nanos) FROM off_cpu WHERE phase = '{phase}' GROUP BY reason";
const MACHINE_QUERY: &str = "SELECT * FROM machine ORDER BY nanos";
const EVALS_QUERY: &str = "SELECT count(*) AS evals, sum(tokens) AS tokens, max(threads) AS threads, \
     sum(end_nanos - begin_nanos) AS nanos FROM evals WHERE phase = '{phase}'";
const OPS_QUERY: &str = "SELECT n.op, sum(n.duration_nanos) AS nanos FROM nodes n JOIN evals e ON n.eval = e.eval \
     WHERE e.phase = '{phase}' GROUP BY n.op ORDER BY nanos DESC";
const BYTES_QUERY: &str = "SELECT kind, component, sum(bytes) FROM traffic WHERE phase = '{phase}' AND \
     direction = 'read' GROUP BY kind, component";
const FAULTS_QUERY: &str =
    "SELECT kind, count(*) FROM faults WHERE phase = '{phase}' GROUP BY kind";
const IO_QUERY: &str = "SELECT sum(bytes) AS bytes, sum(bytes * read_ahead) AS ahead FROM io WHERE \
     kind = 'read' AND file IS NOT NULL AND phase = '{phase}'";
const TYPES_QUERY: &str =
    "SELECT type, sum(size_bytes) FROM tensors WHERE kind = 'weight' GROUP BY type";
const SETTINGS: &str = "metadata.json: settings";
const MACHINE: &str = "metadata.json: machine";

/// One for each phase.
pub fn subjects(inputs: &Inputs, stacks: &[PhaseStack]) -> Vec<Subject> {
    let of = |(stack, time)| Of {
        inputs,
        stack,
        time,
        metrics: Metrics::default(),
    };
    let phases = stacks.iter().zip(inputs.times).map(of);
    phases.map(Of::subject).collect()
}

struct Of<'a> {
    inputs: &'a Inputs<'a>,
    stack: &'a PhaseStack,
    time: &'a PhaseTime,
    metrics: Metrics,
}

impl Of<'_> {
    fn subject(mut self) -> Subject {
        self.stack();
        self.threads();
        self.memory();
        self.disk();
        self.operations();
        self.settings();
        self.machine();
        self.devices();
        self.products();
        let name = self.stack.name.clone();
        let more = self.inputs.more.iter();
        for other in more.filter(|s| s.kind == "phase" && s.name == name) {
            self.metrics.0.extend(other.metrics.0.clone());
        }
        Subject {
            kind: "phase".to_owned(),
            name,
            metrics: self.metrics,
        }
    }

    fn put(&mut self, name: &str, unit: Unit, value: f64, source: &str) {
        let source = source.replace("{phase}", &self.stack.name);
        self.metrics.number(name, unit, value, Some(&source));
    }

    fn put_known(&mut self, name: &str, unit: Unit, value: Option<u64>, source: &str) {
        if let Some(value) = value {
            self.put(name, unit, value as f64, source);
        }
    }

    fn stack(&mut self) {
        self.metrics.text("phase", &self.stack.name, None);
        let parts = self.stack.stack.clone().into_iter();
        // These are one number here.
        for part in parts.filter(|part| !part.name.starts_with(KERNELS)) {
            let source = match part.name.as_str() {
                "preempted" | "throttled" | "stolen" => OFF_QUERY,
                "host" | "in_operations" => EVALS_QUERY,
                "page_faults" | "fed_reads" => FAULTS_QUERY,
                _ => CPU_QUERY,
            };
            self.put(
                &format!("stack.{}", part.name),
                Unit::Share,
                part.share,
                source,
            );
        }
        let sums: [(&str, &[&str]); 4] = [
            ("computing", &["at_wall", "below_wall"]),
            ("disk", &["page_faults", "fed_reads"]),
            ("other_threads", &["barriers", "imbalance"]),
            ("not_running", &["preempted", "throttled", "stolen"]),
        ];
        for (name, parts) in sums {
            let known: Vec<f64> = parts.iter().filter_map(|p| self.stack.share(p)).collect();
            if !known.is_empty() {
                let sum = known.iter().sum();
                self.put(&format!("stack.{name}"), Unit::Share, sum, CPU_QUERY);
            }
        }
        self.put(
            "token_nanos",
            Unit::Nanos,
            self.stack.token_nanos,
            EVALS_QUERY,
        );
        self.put("tokens", Unit::Count, self.stack.tokens as f64, EVALS_QUERY);
        let evaluations = self.stack.evaluations.max(1) as f64;
        let each = self.stack.tokens as f64 / evaluations;
        self.put("tokens_per_evaluation", Unit::Count, each, EVALS_QUERY);
        self.put("evaluations", Unit::Count, evaluations, EVALS_QUERY);
        let nanos = self.stack.nanos as f64;
        self.put(
            "nanos_per_evaluation",
            Unit::Nanos,
            nanos / evaluations,
            EVALS_QUERY,
        );
        self.put("phase_nanos", Unit::Nanos, nanos, EVALS_QUERY);
    }

    fn threads(&mut self) {
        let found = self.inputs.threads.iter();
        let threads = found.filter(|(phase, _)| *phase == self.stack.name);
        let threads = threads.map(|(_, threads)| u64::from(*threads)).max();
        self.put_known("threads", Unit::Count, threads, EVALS_QUERY);
        let seconds = self.time.nanos as f64 / 1e9;
        let time = self.time;
        if let Some(threads) = &time.threads {
            let ThreadTimes {
                preemptions,
                migrations,
                sleeps,
                ..
            } = *threads;
            let rates = [
                ("preemptions_per_second", preemptions),
                ("migrations_per_second", migrations),
                ("sleeps_per_second", sleeps),
            ];
            for (name, count) in rates {
                self.put(name, Unit::Count, count as f64 / seconds, OFF_QUERY);
            }
            let imbalance = threads.imbalance;
            self.put("threads.imbalance", Unit::Times, imbalance, CPU_QUERY);
            let all = threads.nanos.max(1) as f64;
            let kernel = threads.kernel as f64 / all;
            self.put("threads.kernel", Unit::Share, kernel, CPU_QUERY);
            self.put(
                "threads.asleep",
                Unit::Share,
                threads.asleep as f64 / all,
                OFF_QUERY,
            );
            self.put(
                "threads.samples",
                Unit::Count,
                threads.samples as f64,
                CPU_QUERY,
            );
        }
        let host = self.time.host.max(1) as f64;
        if let Some(FunctionTime { name, nanos }) = time.host_functions.first() {
            self.metrics.text("host.function", name, Some(CPU_QUERY));
            self.put(
                "host.function_share",
                Unit::Share,
                *nanos as f64 / host,
                CPU_QUERY,
            );
        }
        if let Some(FunctionTime { name, nanos }) = time.system_calls.first() {
            self.metrics.text("calls.most", name, Some(CPU_QUERY));
            let share = *nanos as f64 / self.time.nanos.max(1) as f64;
            self.put("calls.most_share", Unit::Share, share, CPU_QUERY);
        }
    }

    fn memory(&mut self) {
        let traffic = &self.inputs.facts.traffic;
        let phase = self.stack.name.clone();
        let bytes = |kind: &str| -> f64 {
            let rows = traffic.rows.iter();
            let rows = rows.filter(|r| r.phase == phase && r.kind == kind && r.direction == "read");
            rows.map(|r| r.bytes).sum::<u64>() as f64
        };
        let (weights, kv) = (bytes("weight"), bytes("kv_cache"));
        let head: u64 = {
            let rows = traffic.rows.iter();
            let rows = rows.filter(|r| r.phase == phase && r.component == "output");
            rows.map(|r| r.bytes).sum()
        };
        let tokens = self.stack.tokens.max(1) as f64;
        let evaluations = self.stack.evaluations.max(1) as f64;
        let all = (weights + kv).max(1.0);
        self.put(
            "weights.bytes_per_evaluation",
            Unit::Bytes,
            weights / evaluations,
            BYTES_QUERY,
        );
        self.put(
            "weights.bytes_per_token",
            Unit::Bytes,
            weights / tokens,
            BYTES_QUERY,
        );
        self.put("kv.bytes_per_token", Unit::Bytes, kv / tokens, BYTES_QUERY);
        self.put("kv.share", Unit::Share, kv / all, BYTES_QUERY);
        self.put("head.share", Unit::Share, head as f64 / all, BYTES_QUERY);
        let computing = self.stack.share("at_wall").unwrap_or(0.0)
            + self.stack.share("below_wall").unwrap_or(0.0)
            + self.stack.share("in_operations").unwrap_or(0.0);
        // Beside a device what the processor reads, if it computes at all.
        let read = match &self.time.device {
            None => Some(weights + kv),
            Some(_) => (computing >= NOTABLE_COMPUTING).then_some(self.time.bytes as f64),
        };
        if let Some(read) = read {
            self.speed_of_memory(read, computing);
        }
        if let Some(nanos) = self.inputs.fed_nanos_per_token {
            let source = "tensorscope plan RUN --memory SIZE";
            self.put("fed.predicted_nanos", Unit::Nanos, nanos, source);
        }
        let setup = self.inputs.setup;
        self.put(
            "model.bytes",
            Unit::Bytes,
            setup.model_bytes as f64,
            "metadata.json: model",
        );
        self.put_known(
            "memory.available_bytes",
            Unit::Bytes,
            setup.memory_bytes,
            MACHINE,
        );
        let described = self.inputs.metadata.and_then(|m| m.model.as_ref());
        if let Some(model) = described {
            let experts = model.hyperparameters.n_expert as f64;
            let (parameters, source) = (model.parameters as f64, "metadata.json: model");
            self.put("model.parameters", Unit::Count, parameters, source);
            self.put(
                "model.experts",
                Unit::Count,
                experts,
                "metadata.json: model",
            );
            let most = model.quantisation.iter().max_by_key(|ty| ty.size_bytes);
            if let Some(most) = most {
                self.metrics
                    .text("weights.type", &most.ty, Some(TYPES_QUERY));
            }
        }
    }

    fn disk(&mut self) {
        let Some(below) = self.inputs.underneath else {
            return;
        };
        let phase = &self.stack.name;
        let tokens = self.stack.tokens.max(1) as f64;
        if let Some(verdict) = below.verdicts.iter().find(|v| v.phase == *phase) {
            let verdict = verdict.clone();
            let per_token = |count: u64| count as f64 / tokens;
            if let Some(faults) = verdict.major_faults {
                self.put(
                    "faults.major_per_token",
                    Unit::Count,
                    per_token(faults),
                    FAULTS_QUERY,
                );
            }
            if let Some(faults) = verdict.minor_faults {
                self.put(
                    "faults.minor_per_token",
                    Unit::Count,
                    per_token(faults),
                    FAULTS_QUERY,
                );
            }
            if let Some(bytes) = verdict.disk_bytes {
                self.put(
                    "read.bytes_per_token",
                    Unit::Bytes,
                    per_token(bytes),
                    IO_QUERY,
                );
                let needed = self.metrics.get("weights.bytes_per_evaluation");
                let needed = needed.and_then(Metric::as_number).unwrap_or(0.0);
                let each = bytes as f64 / self.stack.evaluations.max(1) as f64;
                self.put("read.factor", Unit::Times, each / needed.max(1.0), IO_QUERY);
            }
            if let Some(share) = verdict.io_share {
                self.put("read.outstanding", Unit::Share, share, IO_QUERY);
            }
            self.put_known(
                "disk.bytes_per_second",
                Unit::BytesPerSecond,
                verdict.disk_bytes_per_second,
                IO_QUERY,
            );
            if let Some(depth) = verdict.mean_depth {
                self.put("disk.depth", Unit::Count, depth, IO_QUERY);
            }
        }
        let ceiling = self.inputs.ceilings.disk;
        self.put_known(
            "disk.ceiling",
            Unit::BytesPerSecond,
            ceiling,
            "tensorscope bench ceilings",
        );
        if let Some(reread) = &below.reread {
            let again = reread.read_again_bytes as f64 / reread.read_bytes.max(1) as f64;
            self.put("read.again_share", Unit::Share, again, IO_QUERY);
        }
        if let Some(disk) = &below.disk {
            let (others, writes) = (disk.other_bytes, disk.write_bytes);
            let all = (disk.bytes + others + writes).max(1) as f64;
            self.put(
                "disk.others_share",
                Unit::Share,
                (others + writes) as f64 / all,
                IO_QUERY,
            );
            self.put(
                "disk.read_ahead_share",
                Unit::Share,
                disk.read_ahead_share,
                IO_QUERY,
            );
        }
    }

    fn operations(&mut self) {
        let phase = self.stack.name.clone();
        let times = || {
            let rows = self.inputs.facts.traffic.times.iter();
            rows.filter(|row| row.phase == phase)
        };
        let all: u64 = times().map(|row| row.nanos).sum();
        let share = |keep: &dyn Fn(&TimeRow) -> bool| {
            let kept = times().filter(|row| keep(row));
            kept.map(|row| row.nanos).sum::<u64>() as f64 / all.max(1) as f64
        };
        let is_product = |row: &TimeRow| row.op.starts_with("MUL_MAT");
        let is_kv = |row: &TimeRow| row.component == "kv_cache";
        let shares = [
            (
                "time.products",
                share(&|row| is_product(row) && !is_kv(row)),
            ),
            (
                "time.kv_products",
                share(&|row| is_product(row) && is_kv(row)),
            ),
            (
                "time.casts",
                share(&|row| row.op.starts_with("CPY") && is_kv(row)),
            ),
            ("time.softmax", share(&|row| row.op.contains("SOFT_MAX"))),
            (
                "time.flash_attention",
                share(&|row| row.op.contains("FLASH_ATTN")),
            ),
            ("time.head", share(&|row| row.component == "output")),
            (
                "time.small",
                share(&|row| !is_product(row) && !row.op.contains("FLASH_ATTN")),
            ),
        ];
        let steps = self.inputs.facts.traffic.phase(&phase).map(|sum| sum.steps);
        for (name, share) in shares {
            self.put(name, Unit::Share, share, OPS_QUERY);
        }
        if let Some(steps) = steps {
            let each = self.stack.nanos as f64 / steps.max(1) as f64;
            self.put("nanos_per_node", Unit::Nanos, each, OPS_QUERY);
        }
    }

    fn settings(&mut self) {
        let setup = self.inputs.setup;
        self.metrics
            .flag("is_program", setup.is_program, Some(SETTINGS));
        self.metrics
            .text("model.path", &setup.model, Some(SETTINGS));
        let Some(metadata) = self.inputs.metadata else {
            return;
        };
        if let Some(settings) = &metadata.settings {
            self.put(
                "ubatch",
                Unit::Count,
                settings.ubatch_tokens.min(settings.batch_tokens).into(),
                SETTINGS,
            );
            self.put("parallel", Unit::Count, settings.parallel.into(), SETTINGS);
            self.put(
                "context",
                Unit::Count,
                settings.context_tokens.into(),
                SETTINGS,
            );
            self.metrics.flag("repack", settings.repack, Some(SETTINGS));
            self.metrics.flag("mmap", settings.mmap, Some(SETTINGS));
            self.metrics
                .text("flash_attention", &settings.flash_attention, Some(SETTINGS));
            self.metrics
                .text("kv.type_k", &settings.kv_type_k, Some(SETTINGS));
            self.metrics
                .text("kv.type_v", &settings.kv_type_v, Some(SETTINGS));
        }
        if let Some(kernels) = &metadata.versions.kernels {
            self.metrics
                .text("kernels", kernels, Some("metadata.json: versions"));
        }
        if let Some(better) = self.inputs.better_kernels {
            self.metrics
                .text("kernels.better", better, Some("tensorscope doctor"));
        }
        self.metrics
            .flag("is_fed", metadata.fed.is_some(), Some("metadata.json: fed"));
        if let Some(fed) = metadata.fed {
            let source = "metadata.json: fed";
            self.put(
                "fed.budget_bytes",
                Unit::Bytes,
                fed.budget_bytes as f64,
                source,
            );
            let experts = fed.expert_hits + fed.expert_misses;
            if experts > 0 {
                let misses = fed.expert_misses as f64 / experts as f64;
                self.put("fed.miss_share", Unit::Share, misses, source);
            }
        }
        if let Some(below) = &metadata.underneath {
            let source = "metadata.json: underneath";
            self.put_known(
                "memory.limit_bytes",
                Unit::Bytes,
                below.memory_limit_bytes,
                source,
            );
            self.put_known(
                "memory.peak_bytes",
                Unit::Bytes,
                below.peak_memory_bytes,
                source,
            );
        }
    }

    fn machine(&mut self) {
        if let Some(metadata) = self.inputs.metadata {
            let machine = &metadata.machine;
            self.put_known(
                "processors.online",
                Unit::Count,
                machine.cpus_online,
                MACHINE,
            );
            self.put_known("processors", Unit::Count, machine.cpus_allowed, MACHINE);
            self.put_known("cores", Unit::Count, machine.cores, MACHINE);
            self.put_known("nodes", Unit::Count, machine.nodes, MACHINE);
            if let Some(huge_pages) = &machine.huge_pages {
                self.metrics.text("huge_pages", huge_pages, Some(MACHINE));
            }
            if let Some(disk) = &machine.model_disk {
                let ahead = disk.read_ahead_bytes;
                self.put_known("read_ahead_bytes", Unit::Bytes, ahead, MACHINE);
                self.metrics
                    .text("disk.device", &disk.device, Some(MACHINE));
            }
        }
        let Usage {
            own_nanos,
            others_nanos,
            queued_nanos,
            swapped_in_bytes,
            mean_hertz,
            processors,
            ..
        } = self.time.machine;
        // Of the program that computed, which may have been given fewer than whoever recorded.
        self.put_known("processors", Unit::Count, processors, MACHINE_QUERY);
        let inside = (self.time.nanos - self.time.host.min(self.time.nanos)).max(1) as f64;
        let of_processors = [
            ("processors.own", own_nanos),
            ("processors.others", others_nanos),
            ("processors.queued", queued_nanos),
        ];
        for (name, nanos) in of_processors {
            if let Some(nanos) = nanos {
                self.put(name, Unit::Count, nanos as f64 / inside, MACHINE_QUERY);
            }
        }
        self.put_known("swap.bytes", Unit::Bytes, swapped_in_bytes, MACHINE_QUERY);
        self.put_known("hertz", Unit::Count, mean_hertz, MACHINE_QUERY);
    }
}
