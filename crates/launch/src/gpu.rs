//! What the preload library is told about GPUs, and what it said about them.
//!
//! Which kernels run and when the card computes is always recorded. When each kernel ran only
//! CUPTI tells, NVIDIA's library for profilers: it is looked for here, and the preload library
//! gets its path.

use std::{path::Path, process::Command};

/// What the times of single kernels may cost (`record --gpu-times`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GpuTimes {
    /// They are not measured.
    Off,
    /// This share of the time: they are measured in some evaluations.
    Share(f64),
    /// In every evaluation, whatever it costs.
    All,
}

impl Default for GpuTimes {
    fn default() -> GpuTimes {
        GpuTimes::Share(0.01)
    }
}

/// `1%`, `0.5%`, `all` or `off`.
pub fn gpu_times(text: &str) -> Result<GpuTimes, String> {
    match text {
        "all" => return Ok(GpuTimes::All),
        "off" => return Ok(GpuTimes::Off),
        _ => {}
    }
    let percent = text
        .strip_suffix('%')
        .and_then(|number| number.trim().parse::<f64>().ok());
    match percent {
        Some(percent) if percent > 0.0 && percent <= 100.0 => Ok(GpuTimes::Share(percent / 100.0)),
        _ => Err("not a share of the time: try 1%, `all` or `off`".into()),
    }
}

/// Tells the preload library inside of `program`.
pub fn prepare(command: &mut Command, program: &Path, times: GpuTimes) {
    let (cupti, variable) = ("TENSORSCOPE_CUPTI", "TENSORSCOPE_GPU_TIMES");
    match times {
        GpuTimes::Off => command.env(variable, "off"),
        GpuTimes::All => command.env(variable, "all"),
        GpuTimes::Share(share) => command.env(variable, share.to_string()),
    };
    command.env_remove(cupti);
    // A machine without a card has no CUPTI to look for, and looking takes time.
    let Ok(installed) = cuda::devices::installed() else {
        return;
    };
    if times != GpuTimes::Off
        && let Some(found) = cuda::cupti::find(Some(installed.driver_version), Some(program)).usable
    {
        command.env(cupti, found.path);
    }
}

/// Says why the kernels of these cards, which `program` used, have no times, in the words of the
/// preload library.
pub fn say(cards: &[String], why: Option<&str>, program: &Path) {
    let (Some(card), Some(why)) = (cards.first(), why) else {
        return;
    };
    let what = "kernels are known, their times are not";
    if why != NO_CUPTI {
        eprintln!("tensorscope: {card}: {what}: {why}");
        return;
    }
    let driver = cuda::devices::installed().ok();
    let driver = driver.map(|found| found.driver_version);
    match cuda::cupti::find(driver, Some(program)).refused.first() {
        Some((path, refused)) => {
            eprintln!("tensorscope: {card}: {what}: {} {refused}", path.display());
        }
        None => eprintln!("tensorscope: {card}: {what}: {why}"),
    }
    eprintln!("  try: {}", cuda::cupti::fix(driver));
}

/// What the preload library says if it was given none.
const NO_CUPTI: &str = "no CUPTI was found";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_a_share_of_the_time_all_or_off() {
        assert_eq!(gpu_times("1%"), Ok(GpuTimes::Share(0.01)));
        assert_eq!(gpu_times("all"), Ok(GpuTimes::All));
        assert_eq!(gpu_times("off"), Ok(GpuTimes::Off));
        for wrong in ["", "1", "0%", "101%", "-1%", "x%", "none"] {
            assert!(gpu_times(wrong).is_err(), "{wrong}");
        }
    }
}
