//! What the lanes of the timeline show: processor, devices, copies.

use serde::Serialize;

/// Who computed when, and what was copied; one by one, or as a grid.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct LanesHeader {
    pub t0: u64,
    pub t1: u64,
    /// Cells of a row of the grid. A lane has four rows: what ran, gaps between kernels,
    /// evaluations whose nodes nobody timed, evaluations of which only the call is known.
    pub w: u32,
    pub lanes: Vec<Lane>,
    /// When there are few; there is no grid then.
    pub spans: Option<LaneSpans>,
}

/// A lane, with what the window has of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Lane {
    pub kind: LaneKind,
    pub device: String,
    pub evals: u64,
    /// Those that the device timed, and those whose kernels were timed.
    pub timed_evals: u64,
    pub measured_evals: u64,
    /// Of those whose kernels were timed: from the first to the last of an evaluation, and the
    /// part of that in which none ran.
    pub span_nanos: u64,
    pub gap_nanos: u64,
    pub copies: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum LaneKind {
    Processor,
    Device,
    /// Copies, by the calls that asked for them.
    ToDevice,
    FromDevice,
    BetweenDevices,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct LaneSpans {
    pub evals: Vec<LaneEval>,
    /// Nodes of the processor, kernels of devices.
    pub work: Vec<LaneWork>,
    pub copies: Vec<LaneCopy>,
}

/// What is known of the times inside an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum LaneTimes {
    /// Of the processor's.
    Nodes,
    Kernels,
    /// When the device began and ended it.
    Evaluation,
    /// When the call was made that asked for it: not when the device computed.
    Call,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct LaneEval {
    pub lane: u32,
    pub eval: u64,
    pub phase: &'static str,
    pub token: Option<u64>,
    pub begin: u64,
    pub end: u64,
    pub times: LaneTimes,
    /// That were timed; begin of the first, end of the last, and how long none ran between.
    pub kernels: u32,
    pub kernels_begin: Option<u64>,
    pub kernels_end: Option<u64>,
    pub gap_nanos: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct LaneWork {
    pub lane: u32,
    pub eval: u64,
    /// Of a kernel that no node launched none.
    pub step: Option<u32>,
    pub kernel: Option<String>,
    pub op: Option<String>,
    pub name: Option<String>,
    pub begin: u64,
    pub end: u64,
}

/// When the call was made and returned; how long the bytes took is not known.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct LaneCopy {
    pub lane: u32,
    /// That follows it.
    pub eval: Option<u64>,
    pub tensor: String,
    pub component: &'static str,
    pub bytes: u64,
    pub begin: u64,
    pub end: u64,
    /// The call did not wait for the copy.
    pub is_async: bool,
}
