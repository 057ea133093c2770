//! Replicas as processes: this program, started several times, each with one replica that does
//! what its standard input says. A line with two numbers, a batch and steps, is answered with
//! `done` when that many steps are made; a batch with 0 steps only prepares.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, anyhow, bail, ensure};
use cuda::Card;

use super::{Measured, Replica, check, mps::Mps, random_weights, seconds_of};
use crate::{experiments::Request, inputs::Inputs, measure};

const DONE: &str = "done";

/// How processes share the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// The driver gives the whole card to one after the other.
    InTurns,
    /// Kernels of all run side by side.
    Mps,
}

impl Company {
    pub fn words(self) -> &'static str {
        match self {
            Company::InTurns => "processes in turns",
            Company::Mps => "processes under MPS",
        }
    }

    fn name(self, replicas: usize) -> String {
        match replicas {
            1 => format!("1 {}", self.words().replacen("processes", "process", 1)),
            more => format!("{more} {}", self.words()),
        }
    }
}

/// Measures so many processes at so many batches; the largest, the smallest and one between.
pub fn measure(
    company: Company,
    (layers, batches, counts): (usize, &[usize], &[usize]),
    request: &Request,
) -> anyhow::Result<Vec<Measured>> {
    let mps = match company {
        Company::InTurns => None,
        Company::Mps => Some(Mps::start()?),
    };
    let most = counts.iter().copied().max().unwrap_or(1);
    let processes = (0..most).map(|_| Process::start(layers, request.seed, mps.as_ref()));
    let mut processes = processes.collect::<anyhow::Result<Vec<_>>>()?;
    let mut measured = Vec::new();
    for batch in some_of(batches) {
        // All prepare at the same time; then some of them work.
        together(&mut processes, batch, 0).map_err(|error| {
            let words = mps.as_ref().map_or(String::new(), Mps::last_words);
            anyhow!("{error:#}{words}")
        })?;
        if let Some(mps) = &mps {
            let clients = mps.clients()?;
            ensure!(
                clients >= most,
                "it serves {clients} of {most} processes{}",
                mps.last_words()
            );
        }
        let enough = if request.is_quick { 1e-2 } else { 0.1 };
        let mut steps = Vec::new();
        for &count in counts {
            let once = together(&mut processes[..count], batch, 4)? / 4.0;
            steps.push(measure::repeats(once, enough).max(2));
        }
        let times = measure::in_turns(counts.len(), request.rounds.min(10), |i| {
            let seconds = together(&mut processes[..counts[i]], batch, steps[i])?;
            Ok(seconds / f64::from(steps[i]))
        })?;
        for (&replicas, times) in counts.iter().zip(times) {
            measured.push(Measured {
                replicas,
                batch,
                name: company.name(replicas),
                times,
            });
        }
    }
    // They end before MPS does.
    drop(processes);
    Ok(measured)
}

fn some_of(batches: &[usize]) -> Vec<usize> {
    let (Some(&first), Some(&last)) = (batches.first(), batches.last()) else {
        return Vec::new();
    };
    let between = batches.iter().find(|&&batch| batch * 4 >= last);
    let mut some = vec![first, between.copied().unwrap_or(last), last];
    some.dedup();
    some
}

/// Seconds until all have made so many steps.
fn together(processes: &mut [Process], batch: usize, steps: u32) -> anyhow::Result<f64> {
    let (seconds, done) = measure::seconds(|| -> anyhow::Result<()> {
        for process in &mut *processes {
            writeln!(process.input, "{batch} {steps}").context("a replica has ended")?;
        }
        processes.iter_mut().try_for_each(Process::wait)
    });
    done.map(|()| seconds)
}

/// One replica, elsewhere.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(layers: usize, seed: u32, mps: Option<&Mps>) -> anyhow::Result<Process> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["lab", "--replica", &format!("{layers} {seed}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(mps) = mps {
            command.envs(mps.environment());
        }
        let mut child = command.spawn().context("a replica does not start")?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("a replica has no input or no output");
        };
        Ok(Process {
            child,
            input,
            output: BufReader::new(output),
        })
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        match line.trim() {
            DONE => Ok(()),
            "" => bail!("a replica ended before it was asked to"),
            error => bail!("a replica: {error}"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It would end with its input, too, but not while it waits for the card.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process that is a replica does; `words` are its layers and its seed.
pub fn serve(words: &str) -> anyhow::Result<()> {
    let numbers = numbers(words)?;
    let mut output = std::io::stdout();
    let answered = answer(numbers, |line| {
        writeln!(output, "{line}")?;
        output.flush()
    });
    if let Err(error) = answered {
        // Whoever started this reads it.
        writeln!(output, "{error:#}")?;
    }
    Ok(())
}

fn answer(
    (layers, seed): (usize, u32),
    mut say: impl FnMut(&str) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    let card = Card::open()?;
    let inputs = Inputs::new(&card)?;
    let weights = random_weights(&card, &inputs, layers, seed)?;
    let mut replicas: HashMap<usize, Vec<Replica>> = HashMap::new();
    for line in std::io::stdin().lines() {
        let (batch, steps) = numbers(&line?)?;
        if !replicas.contains_key(&batch) {
            let replica = Replica::new(&card, &inputs, weights.clone(), batch, seed)?;
            let alone = vec![vec![replica]];
            check(&alone, &weights, batch, seed)?;
            replicas.extend(alone.into_iter().map(|group| (batch, group)));
        }
        seconds_of(&replicas[&batch], steps)?;
        say(DONE)?;
    }
    Ok(())
}

fn numbers(words: &str) -> anyhow::Result<(usize, u32)> {
    let (first, second) = words
        .trim()
        .split_once(' ')
        .with_context(|| format!("{words:?} is not two numbers"))?;
    Ok((first.parse()?, second.parse()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_and_one_between_are_measured() {
        assert_eq!(some_of(&[1, 2, 4, 8, 16, 32, 64, 128]), [1, 32, 128]);
        assert_eq!(some_of(&[1, 16]), [1, 16]);
        assert_eq!(some_of(&[8]), [8]);
        assert!(some_of(&[]).is_empty());
    }

    #[test]
    fn one_is_a_process_and_two_are_processes() {
        assert_eq!(Company::Mps.name(1), "1 process under MPS");
        assert_eq!(Company::InTurns.name(2), "2 processes in turns");
    }

    #[test]
    fn a_replica_takes_two_numbers() {
        assert_eq!(numbers("8 77\n").unwrap(), (8, 77));
        assert!(numbers("8").is_err());
        assert!(numbers("8 x").is_err());
    }
}
