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
