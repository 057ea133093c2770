//! A command is a list of steps: each has a name, a reason to exist in its
//! title, and advice for when it fails.
//!
//! Steps run in order and the first failure ends the run, because later steps
//! build on earlier ones. The last line says which steps passed and how long
//! each took.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::house::House;

/// What went wrong, in one line; the program that failed has said the rest.
pub type Outcome = Result<(), String>;

type Action = Box<dyn Fn(&House) -> Outcome>;

pub struct Step {
    name: &'static str,
    title: &'static str,
    advice: &'static str,
    action: Action,
}

impl Step {
    pub fn new(
        name: &'static str,
        title: &'static str,
        advice: &'static str,
        action: impl Fn(&House) -> Outcome + 'static,
    ) -> Self {
        Self {
            name,
            title,
            advice,
            action: Box::new(action),
        }
    }
}

/// Runs the steps of `command`; true when all of them passed.
pub fn run_all(house: &House, command: &str, steps: &[Step]) -> bool {
    let start = Instant::now();
    let mut passed: Vec<String> = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        say(&format!(
            "\n==> [{}/{}] {}: {}",
            index + 1,
            steps.len(),
            step.name,
            step.title
        ));
        let step_start = Instant::now();
        let outcome = (step.action)(house);
        let took = seconds(step_start.elapsed());
        if let Err(reason) = outcome {
            if !passed.is_empty() {
                eprintln!("\nxtask: passed before: {}", passed.join(", "));
            }
            eprintln!("xtask: FAILED: step \"{}\": {reason}", step.name);
            eprintln!("  what to do: {}", step.advice);
            return false;
        }
        say(&format!("    {} took {took}", step.name));
        passed.push(format!("{} {took}", step.name));
    }
    say(&format!(
        "\nxtask: {command} passed in {}: {}",
        seconds(start.elapsed()),
        passed.join(", ")
    ));
    true
}

/// Prints a line; a reader that has gone away (`| head`) is no failure of ours.
pub fn say(line: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{line}");
    let _ = stdout.flush();
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn first_failure_ends_the_run() {
        let ran = Rc::new(Cell::new(0));
        let step = |outcome: Outcome| {
            let ran = Rc::clone(&ran);
            Step::new("step", "a step", "nothing", move |_| {
                ran.set(ran.get() + 1);
                outcome.clone()
            })
        };
        let house = House::new();
        assert!(run_all(&house, "test", &[step(Ok(())), step(Ok(()))]));
        assert_eq!(ran.replace(0), 2);
        let steps = [step(Ok(())), step(Err("no".into())), step(Ok(()))];
        assert!(!run_all(&house, "test", &steps));
        assert_eq!(ran.get(), 2);
    }
}
