//! `tensorscope doctor`: what this machine allows, and the command that fixes
//! what it does not.
//!
//! Everything is tried, not guessed from settings; settings only explain why a
//! trial failed.

mod gpus;
mod vulkan;

use std::{
    fs, io,
    path::Path,
    process::{Command, ExitCode},
};

use rundir::limits::Limit;

use launch::library_file;

/// Say what this machine allows, and the command that fixes what it does not
///
/// Exit code 0 when everything works, 1 when something does not.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tensorscope doctor
  tensorscope doctor --json | jq -r '.[] | select(.works | not) | .fix'")]
pub struct Args {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Finding {
    what: &'static str,
    /// Who needs it.
    used_by: &'static str,
    works: bool,
    /// How it stands, in a clause.
    state: String,
    /// One command, or a list of them to choose from.
    fix: Option<String>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut findings = vec![
        processor(),
        preload(),
        perf_events(),
        block_events(),
        locked_memory(),
        io_uring(),
        control_groups(),
        huge_pages(),
    ];
    findings.extend(gpus::findings());
    let out = if args.json {
        serde_json::to_string_pretty(&findings)?
    } else {
        page(&findings)
    };
    terminal::print(&out)?;
    Ok(match findings.iter().all(|f| f.works) {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(1),
    })
}

fn page(findings: &[Finding]) -> String {
    let mut lines = Vec::new();
    for finding in findings {
        let mark = if finding.works { "ok " } else { "NO " };
        lines.push(format!("{mark} {:<14} {}", finding.what, finding.state));
        if !finding.works {
            lines.push(format!("    {:<14} needed by {}", "", finding.used_by));
        }
        if let Some(fix) = &finding.fix {
            lines.push(format!("    {:<14} fix: {fix}", ""));
        }
    }
    lines.join("\n")
}

fn works(what: &'static str, used_by: &'static str, state: String) -> Finding {
    Finding {
        what,
        used_by,
        works: true,
        state,
        fix: None,
    }
}

fn fails(what: &'static str, used_by: &'static str, state: String, fix: &str) -> Finding {
    Finding {
        what,
        used_by,
        works: false,
        state,
        fix: Some(fix.to_owned()),
    }
}

/// Which of the built-in kernels are used; executes an instruction of each set that matters.
fn processor() -> Finding {
    let (what, used_by) = ("processor", "`record -m`, `run -m`");
    let used = match engine::variant::chosen() {
        Ok(variant) => variant,
        Err(error) => {
            return fails(
                what,
                used_by,
                error.to_string(),
                match std::env::var_os(engine::variant::VARIABLE) {
                    Some(_) => "unset TENSORSCOPE_CPU",
                    None => {
                        "use another machine, or record a program whose llama.cpp was built for this one"
                    }
                },
            );
        }
    };
    let mut state = format!("the built-in llama.cpp uses its {} kernels", used.name);
    if !used.needs.is_empty() {
        state += &format!(" ({})", used.needs.join(", "));
    }
    let others = engine::variant::all()
        .iter()
        .filter(|v| v.name != used.name);
    let (lacking, running): (Vec<_>, Vec<_>) = others.partition(|other| other.lacks().is_some());
    if !running.is_empty() {
        let names: Vec<&str> = running.iter().map(|other| other.name).collect();
        state += &format!("; TENSORSCOPE_CPU chooses another: {}", names.join(", "));
    }
    for other in lacking {
        let instructions = other.lacks().unwrap_or_default();
        state += &format!("; {} would need {instructions}", other.name);
    }
    if let Some(name) = engine::processor::announces_in_vain() {
        state += &format!(
            "; it announces {name} but traps on it: programs compiled for this machine die with SIGILL"
        );
    }
    works(what, used_by, state)
}

/// Loads the library into a program and looks whether it is there.
fn preload() -> Finding {
    let (what, used_by) = ("preload", "`record -- PROGRAM`");
    let library = match library_file::path() {
        Ok(library) => library,
        Err(error) => {
            return fails(
                what,
                used_by,
                format!("{error:#}"),
                "put libtensorscope_agent.so beside this program; if it is there, export XDG_CACHE_HOME=/a/folder/that/may/hold/programs",
            );
        }
    };
    let tried = Command::new("/bin/cat")
        .arg("/proc/self/maps")
        .env("LD_PRELOAD", &library)
        .env_remove("TENSORSCOPE_LOG")
        .output();
    let shown = library.display().to_string();
    match tried {
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains(&shown) => {
            works(what, used_by, format!("the library loads, from {shown}"))
        }
        Ok(output) => fails(
            what,
            used_by,
            format!(
                "the loader ignores it: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ),
            "use a tensorscope that was built for this system's C library",
        ),
        Err(error) => fails(
            what,
            used_by,
            format!("cannot run /bin/cat to try: {error}"),
            "install coreutils",
        ),
    }
}

/// Opens the counter of this process's page faults.
fn perf_events() -> Finding {
    let (what, used_by) = ("perf events", "`record --faults`");
    let paranoid = setting("/proc/sys/kernel/perf_event_paranoid");
    let paranoid = paranoid.as_deref().unwrap_or("not there");
    let state = format!("kernel.perf_event_paranoid is {paranoid}");
    match kernelio::faults::can_be_counted() {
        Ok(()) => works(
            what,
            used_by,
            format!("page faults can be counted; {state}"),
        ),
        Err(error) => fails(
            what,
            used_by,
            format!("{state}: {error}"),
            "sudo sysctl kernel.perf_event_paranoid=1",
        ),
    }
}

fn block_events() -> Finding {
    let (what, used_by) = ("block events", "`record --io`");
    match kernelio::block::probe() {
        None => works(what, used_by, "block requests can be traced".to_owned()),
        Some(missing) => fails(what, used_by, missing.why, &missing.fix),
    }
}

fn locked_memory() -> Finding {
    let (what, used_by) = ("memlock", "run: weights that are kept stay out of swap");
    const TRIED_BYTES: usize = 1 << 30;
    let limit = match rundir::limits::describe().memlock_bytes {
        Some(Limit::Unlimited) => "unlimited".to_owned(),
        Some(Limit::Bytes(bytes)) => indicatif::HumanBytes(bytes).to_string(),
        None => "unknown".to_owned(),
    };
    // Locked on fault, so that trying costs no memory.
    const MLOCK_ONFAULT: libc::c_uint = 1;
    // SAFETY: a fresh private mapping, of which nothing is touched, and which is
    // given back.
    let locked = unsafe {
        let base = libc::mmap(
            std::ptr::null_mut(),
            TRIED_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        );
        if base == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            let locked = libc::mlock2(base, TRIED_BYTES, MLOCK_ONFAULT);
            let error = io::Error::last_os_error();
            libc::munmap(base, TRIED_BYTES);
            if locked == 0 { Ok(()) } else { Err(error) }
        }
    };
    match locked {
        Ok(()) => works(
            what,
            used_by,
            format!("1 GiB can be locked; the limit is {limit}"),
        ),
        Err(error) => fails(
            what,
            used_by,
            format!("1 GiB cannot be locked ({error}); the limit is {limit}"),
            "sudo prlimit --memlock=unlimited:unlimited --pid $$   (this shell; for good: /etc/security/limits.conf)",
        ),
    }
}

fn io_uring() -> Finding {
    let (what, used_by) = ("io_uring", "`run`, `bench ceilings`");
    match support::direct::Ring::new(1) {
        Ok(_) => works(what, used_by, "a ring can be made".to_owned()),
        Err(error) => {
            let disabled = setting("/proc/sys/kernel/io_uring_disabled");
            let why = match disabled.as_deref() {
                None | Some("0") => "a container or seccomp filter forbids it".to_owned(),
                Some(value) => format!("kernel.io_uring_disabled is {value}"),
            };
            let fix = match disabled.as_deref() {
                None | Some("0") => "docker run --security-opt seccomp=unconfined …",
                Some(_) => "sudo sysctl kernel.io_uring_disabled=0",
            };
            fails(what, used_by, format!("{error}; {why}"), fix)
        }
    }
}

/// Makes a group, enters and removes it, as whatever limits memory does.
fn control_groups() -> Finding {
    let (what, used_by) = (
        "cgroups",
        "`record --memory`, `run --memory`, `bench feed`: memory is limited",
    );
    match kernelio::pressure::probe() {
        Ok(place) => works(
            what,
            used_by,
            format!(
                "version {}, memory can be limited below {}",
                place.version,
                place.parent.display()
            ),
        ),
        Err(kernelio::KernelError::Missing(missing)) => fails(
            what,
            used_by,
            format!("memory cannot be limited: {}", missing.why),
            &missing.fix,
        ),
        Err(error) => fails(what, used_by, error.to_string(), "run with sudo"),
    }
}

fn huge_pages() -> Finding {
    let (what, used_by) = (
        "huge pages",
        "run: reading weights costs less of the processor",
    );
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let Some(text) = setting(path) else {
        return fails(
            what,
            used_by,
            "this kernel has no transparent huge pages".to_owned(),
            "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
        );
    };
    let chosen = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or("unknown", |(chosen, _)| chosen);
    match chosen {
        "always" | "madvise" => works(what, used_by, format!("transparent, {chosen}")),
        _ => fails(
            what,
            used_by,
            format!("transparent huge pages are set to {chosen}"),
            &format!("echo madvise | sudo tee {path}"),
        ),
    }
}

fn setting(path: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new(path)).ok()?;
    Some(text.trim().to_owned())
}
