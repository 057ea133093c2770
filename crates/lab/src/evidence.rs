//! What proves a step: its machine code.
//!
//! A step may claim that it loads 128 bits at a time; whether the compiler agreed, its
//! instructions tell. They are counted by `cuobjdump` of NVIDIA's toolkit (or of PyPI's
//! nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm), with registers and spills, and kept in
//! `docs/lab/evidence.json`, which a test holds against the sources. No card is needed.

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command};

use anyhow::{Context as _, bail, ensure};
use cuda::Card;
use serde::{Deserialize, Serialize};

use crate::{
    experiments::{EXPERIMENTS, Experiment},
    profiler::{self, Metrics},
    step::Step,
    toolkit::{self, Compiled},
};

/// Of one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    pub experiment: String,
    pub step: String,
    pub function: String,
    /// What it was compiled with: a step may have several sizes.
    pub defines: Vec<String>,
    /// Of the source and what is defined for this step; another one means that this is stale.
    pub source_hash: String,
    pub registers: u32,
    /// Bytes of each thread's stack in memory: spilled registers and arrays.
    pub stack_bytes: u32,
    pub shared_bytes: u32,
    /// Instructions of the function in all.
    pub instructions: u32,
    /// How many of them begin so; a claim without one is wrong.
    pub claims: BTreeMap<String, u32>,
    /// Of a launch at a size that counts, by Nsight Compute, where it and a card were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiled: Option<Profiled>,
}

/// What the profiler saw, and where.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profiled {
    pub card: String,
    /// The words after `tensorscope lab`.
    pub command: String,
    /// What was launched: function, variant, size.
    #[serde(default)]
    pub launch: String,
    pub metrics: Metrics,
}

/// Of every step that has machine code, for Hopper. What a profiler saw before stays where the
/// source is the same; experiments with a step of which it saw nothing are profiled. That takes
/// long: `save` gets what there is after each experiment.
pub fn collect(
    before: &[Evidence],
    save: impl Fn(&[Evidence]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut found = machine_code()?;
    let card = Card::open();
    if let Err(missing) = &card {
        eprintln!("tensorscope: nothing is profiled: {missing:#}");
    }
    for evidence in &mut found {
        let same = |old: &&Evidence| {
            old.experiment == evidence.experiment
                && old.step == evidence.step
                && old.defines == evidence.defines
                && old.source_hash == evidence.source_hash
        };
        evidence.profiled = before
            .iter()
            .find(same)
            .and_then(|old| old.profiled.clone());
    }
    save(&found)?;
    if let Ok(card) = card {
        let card = &card.about().name;
        for experiment in EXPERIMENTS {
            let is_missing =
                |of: &Evidence| of.experiment == experiment.name && of.profiled.is_none();
            if found.iter().any(is_missing) {
                profile(experiment, card, &mut found);
                save(&found)?;
            }
        }
    }
    Ok(())
}

/// JSON, one step a line.
pub fn text(found: &[Evidence]) -> serde_json::Result<String> {
    let lines = found.iter().map(serde_json::to_string);
    let lines = lines.collect::<serde_json::Result<Vec<_>>>()?;
    Ok(format!("[\n{}\n]\n", lines.join(",\n")))
}

/// Runs an experiment under the profiler, once for all steps.
fn profile(experiment: &Experiment, card: &str, found: &mut [Evidence]) {
    let words = [&[experiment.name], experiment.profiled].concat();
    let command = words.join(" ");
    let seen = match profiler::seen(&words, profiler::METRICS) {
        Ok(seen) => seen,
        Err(missing) => {
            eprintln!("tensorscope: {command}: not profiled: {missing:#}");
            return;
        }
    };
    for evidence in found
        .iter_mut()
        .filter(|evidence| evidence.experiment == experiment.name)
    {
        let of_step = |seen: &&profiler::Seen| {
            seen.shown.step == evidence.step && seen.shown.defines == evidence.defines
        };
        let seen = seen.iter().find(of_step);
        let Some((seen, (kernel, metrics))) =
            seen.and_then(|seen| Some((seen, seen.main(&evidence.function)?)))
        else {
            let name = &evidence.step;
            eprintln!("tensorscope: {command}: {name} was not shown to the profiler");
            continue;
        };
        let launch = format!("{kernel}, {}", seen.shown.case);
        evidence.profiled = Some(Profiled {
            card: card.to_owned(),
            command: command.clone(),
            launch: launch.trim_end_matches(", ").to_owned(),
            metrics: metrics.clone(),
        });
    }
}

fn machine_code() -> anyhow::Result<Vec<Evidence>> {
    let tool = tool()?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("kernels.cubin");
    let mut found = Vec::new();
    for experiment in EXPERIMENTS {
        for step in experiment.steps.iter().filter(|step| step.is_for_cards()) {
            let compiled =
                toolkit::compile((9, 0), step.file.path, step.file.text, &step.defines())?;
            let code = Code::of(&compiled, step, &tool, &path)?;
            found.push(code.evidence(experiment.name, step));
        }
    }
    Ok(found)
}

/// What a step is made from.
pub fn source_hash(step: &Step) -> String {
    let text = format!(
        "{}\n{}\n{}",
        toolkit::COMMON,
        step.file.text,
        step.defines().join("\n")
    );
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// One function of a cubin, as the tool prints it.
struct Code {
    resources: String,
    instructions: Vec<String>,
}

impl Code {
    fn of(
        compiled: &Compiled,
        step: &Step,
        tool: &PathBuf,
        path: &PathBuf,
    ) -> anyhow::Result<Code> {
        fs::write(path, &compiled.image)?;
        let ask = |what: &str| -> anyhow::Result<String> {
            let answer = Command::new(tool).arg(what).arg(path).output();
            let answer = answer.with_context(|| tool.display().to_string())?;
            let words = String::from_utf8_lossy(&answer.stderr);
            ensure!(
                answer.status.success(),
                "{} {what}: {}",
                tool.display(),
                words.trim()
            );
            Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
        };
        let resources = resources(&ask("-res-usage")?, step.function);
        let instructions = instructions(&ask("-sass")?, step.function);
        let Some(resources) = resources.filter(|_| !instructions.is_empty()) else {
            bail!(
                "{}: {} is not in what was compiled",
                step.name,
                step.function
            );
        };
        Ok(Code {
            resources,
            instructions,
        })
    }

    fn evidence(&self, experiment: &str, step: &Step) -> Evidence {
        let count = |claim: &str| {
            let found = self
                .instructions
                .iter()
                .filter(|instruction| instruction.starts_with(claim));
            found.count() as u32
        };
        Evidence {
            experiment: experiment.to_owned(),
            step: step.name.to_owned(),
            function: step.function.to_owned(),
            defines: step.defines(),
            source_hash: source_hash(step),
            registers: number_after(&self.resources, "REG:"),
            stack_bytes: number_after(&self.resources, "STACK:"),
            shared_bytes: number_after(&self.resources, "SHARED:"),
            instructions: self.instructions.len() as u32,
            claims: step
                .claims
                .iter()
                .map(|claim| ((*claim).to_owned(), count(claim)))
                .collect(),
            profiled: None,
        }
    }
}

/// The line behind ` Function NAME:`.
fn resources(text: &str, function: &str) -> Option<String> {
    let mut lines = text.lines();
    lines.find(|line| line.trim() == format!("Function {function}:"))?;
    lines.next().map(str::to_owned)
}

/// Of the function, without their addresses and predicates.
fn instructions(text: &str, function: &str) -> Vec<String> {
    let mut is_inside = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("Function : ") {
            is_inside = name == function;
        } else if is_inside
            && let Some((_, code)) = line
                .strip_prefix("/*")
                .and_then(|line| line.split_once("*/"))
        {
            let mut words = code.split_whitespace();
            let first = words.find(|word| !word.starts_with('@'));
            // A line with the second half of an encoding has no instruction.
            if let Some(word) =
                first.filter(|word| word.starts_with(|c: char| c.is_ascii_uppercase()))
            {
                found.push(word.trim_end_matches(';').to_owned());
            }
        }
    }
    found
}

fn number_after(text: &str, name: &str) -> u32 {
    let digits = text.split(name).nth(1).unwrap_or("");
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    digits[..end].parse().unwrap_or(0)
}

fn tool() -> anyhow::Result<PathBuf> {
    match cuda::tool("cuobjdump") {
        Some(path) => Ok(path),
        None => bail!(
            "cuobjdump is needed to look at machine code; `pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm` brings it (then set VIRTUAL_ENV)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDED: &str = include_str!("../../../docs/lab/evidence.json");

    fn recorded() -> Vec<Evidence> {
        serde_json::from_str(RECORDED).expect("docs/lab/evidence.json")
    }

    #[test]
    fn every_claim_of_a_step_is_in_its_recorded_machine_code() {
        let recorded = recorded();
        for experiment in EXPERIMENTS {
            for step in experiment.steps.iter().filter(|step| step.is_for_cards()) {
                let of_step = |e: &&Evidence| {
                    e.experiment == experiment.name
                        && e.step == step.name
                        && e.defines == step.defines()
                };
                let name = format!("{} / {}", experiment.name, step.name);
                let again = "record it again: tensorscope lab --evidence docs/lab/evidence.json";
                let evidence = recorded
                    .iter()
                    .find(of_step)
                    .unwrap_or_else(|| panic!("{name}: {again}"));
                assert_eq!(
                    evidence.source_hash,
                    source_hash(step),
                    "{name} was changed since; {again}"
                );
                let profiled = evidence.profiled.as_ref();
                let seen = profiled.map_or(0, |profiled| profiled.metrics.len());
                assert_eq!(
                    seen,
                    profiler::METRICS.len(),
                    "{name}: the profiler did not see it; {again}, where a card and ncu are"
                );
                for claim in step.claims {
                    let count = evidence.claims.get(*claim).copied().unwrap_or(0);
                    assert!(
                        count > 0,
                        "{name} claims {claim}, which is not in its machine code"
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_recorded_is_one_line_a_step() {
        let recorded = recorded();
        let text = text(&recorded).unwrap();
        assert_eq!(text.lines().count(), recorded.len() + 2);
        assert_eq!(text, RECORDED);
    }

    #[test]
    fn a_disassembly_is_read() {
        let text = "\n\tcode for sm_90a\n\t\tFunction : other\n        /*0000*/                   NOP ;  /* 0x00 */\n\t\tFunction : naive\n\t.headerflags\t@\"x\"\n        /*0000*/                   LDC R1, c[0x0][0x28] ;   /* 0x00000a00ff017b82 */\n                                                           /* 0x000fe20000000800 */\n        /*0010*/              @P0  LDG.E.128 R4, desc[UR4][R2.64] ; /* 0x0 */\n        /*0020*/              @!P1 EXIT ;\n";
        assert_eq!(instructions(text, "naive"), ["LDC", "LDG.E.128", "EXIT"]);
        let text =
            "Fatbin\n Function naive:\n  REG:32 STACK:8 SHARED:1024 LOCAL:0 CONSTANT[0]:556\n";
        let line = resources(text, "naive").unwrap();
        assert_eq!(
            [
                number_after(&line, "REG:"),
                number_after(&line, "STACK:"),
                number_after(&line, "SHARED:")
            ],
            [32, 8, 1024]
        );
        assert!(resources(text, "nai").is_none());
    }
}
