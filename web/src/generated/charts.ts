// Written by a test of crates/render/src/charts.rs; change that.

/**
 * Lines over a common x.
 */
export type LineChart = { 
/**
 * Of letters and dashes.
 */
id: string, title: string, 
/**
 * What is shown and how to read it, in sentences.
 */
caption: string, x: Axis, y: Axis, lines: Array<Line>, };

/**
 * One axis.
 */
export type Axis = { 
/**
 * What it shows, without the unit.
 */
label: string, unit: Unit, min: number, max: number, };

/**
 * A line of a plot.
 */
export type Line = { name: string, 
/**
 * Whose colour and dash it has.
 */
category: Category, points: Array<[number, number]>, };

/**
 * A component, or a kind of memory.
 */
export type Category = string;

/**
 * What a number counts.
 */
export type Unit = "bytes" | "nanos" | "count" | "share" | "plain";

/**
 * What classes of nodes reached, below what memory and arithmetic allow.
 */
export type RooflineChart = { 
/**
 * What is shown and how to read it, in sentences; without the last full stop.
 */
caption: string, 
/**
 * Slopes: bytes a second.
 */
memory: Array<Roof>, 
/**
 * Flat: operations a second.
 */
compute: Array<Roof>, 
/**
 * Those that took longest first.
 */
points: Array<RooflinePoint>, };

/**
 * What so many threads can do.
 */
export type Roof = { 
/**
 * With its figure.
 */
name: string, threads: number, per_second: number, };

/**
 * A class of nodes in one phase, with about as many tokens at once.
 */
export type RooflinePoint = { name: string, phase: string, 
/**
 * Part of the model, whose colour it has.
 */
component: string, 
/**
 * Tokens at once, up to a power of two.
 */
batch: number, 
/**
 * The same exactly, in words.
 */
batch_text: string, threads: number, 
/**
 * Operations for each byte.
 */
intensity: number, flops_per_second: number, bytes_per_second: number, 
/**
 * `memory` or `compute`.
 */
bound: string, 
/**
 * Of what the bound would allow.
 */
share_of_ceiling: number, share_of_phase: number, nanos: number, };
