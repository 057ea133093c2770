//! Runs that still grow: the index takes in what was recorded, about once a
//! second, until the recording ends.
//!
//! The page learns of it by asking `info?since=VERSION`.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};

use crate::viewer::{Host, HostedRun};

const EVERY: Duration = Duration::from_secs(1);

/// Starts a task for each run that grows.
pub(crate) fn follow(host: &Host) {
    for run in &host.runs {
        if let (_, true) = run.version() {
            tokio::spawn(refresh_until_ended(run.clone()));
        }
    }
}

async fn refresh_until_ended(run: Arc<HostedRun>) {
    let mut ticks = interval(EVERY);
    // After a slow refresh the readers get a whole second.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let run = run.clone();
        let refreshed = tokio::task::spawn_blocking(move || run.refresh()).await;
        if !matches!(refreshed, Ok(ControlFlow::Continue(()))) {
            return;
        }
    }
}
