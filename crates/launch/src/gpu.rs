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

/// What the preload library said in one process.
#[derive(Default)]
pub struct Said {
    /// Cards that it computed on.
    cards: Vec<String>,
    /// Why nothing of their kernels is known, or their names are not, or their times.
    no_driver: Option<String>,
    no_names: Option<String>,
    no_times: Option<String>,
}

impl Said {
    /// A line of its report, as far as it is about GPUs.
    pub fn take(&mut self, key: &str, value: &str) {
        match key {
            "card" => self.cards.push(value.to_owned()),
            "no_driver" => self.no_driver = Some(value.to_owned()),
            "no_kernel_names" => self.no_names = Some(value.to_owned()),
            "no_gpu_times" => self.no_times = Some(value.to_owned()),
            _ => {}
        }
    }

    /// Tells people, of a process of `program`.
    pub fn say(&self, program: &Path) {
        let Some(card) = self.cards.first() else {
            return;
        };
        if let Some(why) = &self.no_driver {
            eprintln!("tensorscope: {card}: neither kernels nor times are known: {why}");
        }
        if let Some(why) = &self.no_names {
            let needed = "a driver for CUDA 12.3 or newer tells them";
            eprintln!("tensorscope: {card}: kernels have no names: {why}; {needed}");
        }
        if let Some(why) = &self.no_times {
            say_why_untimed(card, why, program);
        }
    }
}

/// Why the kernels of this card have no times.
fn say_why_untimed(card: &str, why: &str, program: &Path) {
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
    fn lines_of_a_report_are_taken_by_their_key() {
        let mut said = Said::default();
        said.take("card", "CUDA0 (NVIDIA H200)");
        said.take("no_kernel_names", "no function cuKernelGetName");
        said.take("another", "thing");
        assert_eq!(said.cards, ["CUDA0 (NVIDIA H200)"]);
        assert_eq!(
            said.no_names.as_deref(),
            Some("no function cuKernelGetName")
        );
        assert_eq!(said.no_times, None);
    }

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
