//! The environment variables by which the launcher speaks to the library.

use std::{path::PathBuf, sync::OnceLock};

use crate::cuda::GpuTimes;

/// The run's log folder, absolute. Not set: the library does nothing.
pub const RUN: &str = "TENSORSCOPE_LOG";
/// The file that says how the model is fed.
pub const FEED: &str = "TENSORSCOPE_FEED";
/// `1`: weights are kept in the order of the file.
pub const NO_REPACK: &str = "TENSORSCOPE_NO_REPACK";
/// `1`: what recording costs is measured (`tensorscope bench overhead`).
pub const MEASURE: &str = "TENSORSCOPE_MEASURE";
/// `1`: the pages that each evaluation touches are noted (`tensorscope audit`).
pub const AUDIT: &str = "TENSORSCOPE_AUDIT";
/// CUPTI's library, if the launcher found one.
pub const CUPTI: &str = "TENSORSCOPE_CUPTI";
/// What the times of a GPU's kernels may cost: a share of the time, `all` or `off`.
pub const GPU_TIMES: &str = "TENSORSCOPE_GPU_TIMES";

pub struct Settings {
    pub log_directory: PathBuf,
    pub hides_extra_buffer_types: bool,
    pub measures: bool,
    pub audits: bool,
    pub cupti: Option<PathBuf>,
    pub gpu_times: GpuTimes,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// The settings of a process that is to be fed.
pub fn feed() -> Option<PathBuf> {
    std::env::var_os(FEED).map(PathBuf::from)
}

/// Reads the environment, once, before the program starts.
pub fn read() -> Option<&'static Settings> {
    let log_directory = PathBuf::from(std::env::var_os(RUN)?);
    let is_on = |name| std::env::var_os(name).is_some_and(|value| value == "1");
    Some(SETTINGS.get_or_init(|| Settings {
        log_directory,
        hides_extra_buffer_types: is_on(NO_REPACK),
        measures: is_on(MEASURE),
        audits: is_on(AUDIT),
        cupti: std::env::var_os(CUPTI).map(PathBuf::from),
        gpu_times: GpuTimes::read(),
    }))
}

/// `None` in a process that is not to be recorded.
pub fn get() -> Option<&'static Settings> {
    SETTINGS.get()
}
