//! One measured run: `tensorscope run --json` as a process of its own.

use std::{
    ffi::OsString,
    fs::{self, File},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, anyhow};

use kernelio::leftover::Leftover;
use launch::{child::die_with_us, report::Report};
use terminal::signals;

/// Fewer tokens than one small batch, so that it is one evaluation.
const PROMPT: &str = "The memory of a machine is never enough.";
/// Room for the prompt in the context.
const PROMPT_TOKENS: u32 = 64;
/// Run directory of a recorded one.
const RECORDED: &str = "recorded";
/// How often a run is asked whether it has ended.
const GLANCE: Duration = Duration::from_millis(10);

/// What all runs have in common.
pub struct Runner {
    pub model: PathBuf,
    pub threads: Option<u16>,
    /// Drawn experts, where the router is not asked.
    pub routing: Option<String>,
    /// Of temporary files.
    pub scratch: Leftover,
}

/// What makes a run this one.
#[derive(Clone, Copy, Default)]
pub struct Wanted<'a> {
    pub tokens: u32,
    pub context: u32,
    pub limit_bytes: u64,
    pub strategy: &'a str,
    pub plan: Option<&'a Path>,
    pub advice: Option<&'a str>,
    /// Feed also what fits.
    pub always: bool,
    pub routing_file: Option<&'a Path>,
    pub is_recorded: bool,
}

/// How it ended.
pub enum Ended {
    Well(Box<Report>),
    /// With its last line; killed by the kernel for its memory, or not.
    Badly {
        why: String,
        oom: bool,
    },
    /// We were asked to stop.
    Interrupted,
}

/// Context in which so many tokens have room.
pub fn context(tokens: u32) -> u32 {
    (PROMPT_TOKENS + tokens).next_multiple_of(256)
}

impl Runner {
    pub fn run(&self, wanted: &Wanted<'_>) -> anyhow::Result<Ended> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let (out, talk) = (self.file("out.json"), self.file("talk.txt"));
        // Of the recorded run before.
        let _ = fs::remove_dir_all(self.file(RECORDED));
        let mut command = Command::new(program);
        command
            .args(self.arguments(wanted))
            .stdin(Stdio::null())
            .stdout(File::create(&out)?)
            .stderr(File::create(&talk)?);
        // All runs are started by the one thread that measures.
        die_with_us(&mut command);
        let mut child = command.spawn().context("cannot start a run")?;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if signals::stop_asked() {
                // At once: what it has measured is of no use, and the next signal
                // would find us with the disk's settings changed.
                let _ = child.kill();
                child.wait()?;
                return Ok(Ended::Interrupted);
            }
            thread::sleep(GLANCE);
        };
        if signals::stop_asked() {
            return Ok(Ended::Interrupted);
        }
        if !status.success() {
            return Ok(Ended::Badly {
                why: why(status, &fs::read_to_string(&talk).unwrap_or_default()),
                oom: status.signal() == Some(libc::SIGKILL),
            });
        }
        let report = serde_json::from_str(&fs::read_to_string(&out)?)
            .map_err(|error| anyhow!("a run reported what cannot be read: {error}"))?;
        Ok(Ended::Well(Box::new(report)))
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn arguments(&self, wanted: &Wanted<'_>) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["run".into(), "-m".into()];
        arguments.push(self.model.clone().into());
        let mut add = |flag: &str, value: &dyn AsRef<std::ffi::OsStr>| {
            arguments.push(flag.into());
            arguments.push(value.as_ref().into());
        };
        add("-p", &PROMPT);
        add("-n", &wanted.tokens.to_string());
        add("--temp", &"1");
        add("--seed", &"3");
        add("--ctx-size", &wanted.context.to_string());
        add("--ubatch-size", &"64");
        add("--strategy", &wanted.strategy);
        // One token a pass, in all that is compared.
        add("--draft", &"off");
        add("--memory", &wanted.limit_bytes.to_string());
        if let Some(threads) = self.threads {
            add("-t", &threads.to_string());
        }
        if let Some(routing) = &self.routing {
            add("--routing", routing);
        }
        if let Some(plan) = wanted.plan {
            add("--plan", &plan);
        }
        if let Some(advice) = wanted.advice {
            add("--madvise", &advice);
        }
        if let Some(file) = wanted.routing_file {
            add("--routing-file", &file);
        }
        if wanted.is_recorded {
            add("--record", &self.file(RECORDED));
        }
        if wanted.always {
            arguments.push("--always".into());
        }
        arguments.extend(["--ignore-eos", "--cold", "--json", "-q"].map(OsString::from));
        arguments
    }
}

/// The last line that a run said, or how it was ended.
fn why(status: ExitStatus, talk: &str) -> String {
    if let Some(signal) = status.signal() {
        return match signal {
            libc::SIGKILL => "killed: its memory did not suffice".to_owned(),
            signal => format!("ended by signal {signal}"),
        };
    }
    let line = talk.lines().rev().find(|line| !line.trim().is_empty());
    let line = line.unwrap_or("it ended without a word");
    line.trim_start_matches("tensorscope: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_fails_is_told_by_its_last_line() {
        let failed = ExitStatus::from_raw(2 << 8);
        assert_eq!(
            why(failed, "a\ntensorscope: no such file\n\n"),
            "no such file"
        );
        assert_eq!(why(failed, ""), "it ended without a word");
        let killed = ExitStatus::from_raw(libc::SIGKILL);
        assert_eq!(why(killed, "a"), "killed: its memory did not suffice");
    }

    #[test]
    fn the_context_has_room_for_prompt_and_tokens() {
        assert_eq!(context(10), 256);
        assert_eq!(context(192), 256);
        assert_eq!(context(193), 512);
    }
}
