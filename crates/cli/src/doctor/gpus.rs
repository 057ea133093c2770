//! What `doctor` says of graphics cards: their driver, what times kernels, and what is in the way.
//!
//! A machine without a card is not broken: it has one line that says so.

use cuda::{
    CudaError,
    cupti::{self, Search},
    devices::{self, Installed},
    places::{Environment, environment},
};

use super::{Finding, fails, vulkan, works};

const RECORDING: &str = "`record -- PROGRAM` on a GPU";

pub fn findings() -> Vec<Finding> {
    let installed = devices::installed();
    let mut findings = vec![driver(&installed)];
    if let Ok(installed) = &installed
        && !installed.cards.is_empty()
    {
        let search = cupti::find(Some(installed.driver_version), None);
        findings.push(times(&search, installed.driver_version));
        findings.push(profilers(&environment));
        findings.push(graphs(&environment));
    }
    findings.extend(other_devices(&vulkan::devices()));
    findings
}

fn driver(installed: &Result<Installed, CudaError>) -> Finding {
    let what = "gpu";
    match installed {
        Ok(installed) => {
            let version = devices::version_text(installed.driver_version);
            let cards = (0..).zip(&installed.cards).map(|(number, card): (u32, _)| {
                let gigabytes = card.memory_bytes as f64 / 1e9;
                format!("CUDA{number} is {}, {gigabytes:.1} GB", card.name)
            });
            let cards: Vec<String> = cards.collect();
            let shown = match cards.is_empty() {
                true => "it shows no card".to_owned(),
                false => cards.join("; "),
            };
            let state = format!("NVIDIA's driver for CUDA {version}; {shown}");
            works(what, RECORDING, state)
        }
        Err(CudaError::NoDriver { reason }) => works(
            what,
            RECORDING,
            format!("no NVIDIA card can be used here: there is no driver ({reason})"),
        ),
        Err(error) => fails(
            what,
            RECORDING,
            error.to_string(),
            "nvidia-smi   (it says what is wrong; after an update of the driver: sudo reboot)",
        ),
    }
}

fn times(search: &Search, driver_version: i32) -> Finding {
    let what = "cupti";
    let used_by = "`record` on a GPU: times of kernels (without it those of whole evaluations)";
    let fix = cupti::fix(Some(driver_version));
    match (&search.usable, search.refused.first()) {
        (Some(found), _) => works(
            what,
            used_by,
            format!("that of CUDA {}, {}", found.version, found.path.display()),
        ),
        (None, Some((path, why))) => fails(what, used_by, format!("{} {why}", path.display()), fix),
        (None, None) => fails(what, used_by, "libcupti was not found".to_owned(), fix),
    }
}

fn profilers(environment: Environment) -> Finding {
    let what = "gpu profiler";
    let used_by = "`record` on a GPU: times of kernels";
    match cupti::subscriber(environment) {
        None => works(what, used_by, "no other one is attached".to_owned()),
        Some(other) => fails(
            what,
            used_by,
            format!(
                "{} is attached ({} is set), and a process has one subscriber to CUPTI",
                other.name, other.variable
            ),
            &format!("unset {}, or start tensorscope without it", other.variable),
        ),
    }
}

fn graphs(environment: Environment) -> Finding {
    let what = "cuda graphs";
    let used_by = "llama.cpp: launches of small kernels cost less";
    let variable = "GGML_CUDA_DISABLE_GRAPHS";
    match environment(variable) {
        None => works(what, used_by, "not switched off".to_owned()),
        Some(_) => fails(
            what,
            used_by,
            format!("switched off by {variable}: what is recorded is slower than it need be"),
            &format!("unset {variable}"),
        ),
    }
}

fn other_devices(names: &[String]) -> Option<Finding> {
    (!names.is_empty()).then(|| {
        works(
            "vulkan",
            "`record -- PROGRAM` with a Vulkan backend",
            format!("{}; recorded without times of kernels", names.join("; ")),
        )
    })
}
