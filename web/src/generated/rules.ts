// Written by a test of crates/rules/src/lib.rs; change that.

/**
 * A rule that holds for a subject.
 */
export type Cause = { id: string, title: string, about: string, 
/**
 * The subject's name.
 */
subject: string, parent: string | null, 
/**
 * Of the subject's time, from 0 to 1.
 */
share: number, 
/**
 * Nothing is wrong: this is what the hardware can do.
 */
healthy: boolean, why: string, action: string | null, apply: string | null, 
/**
 * More speed, in per cent, at least and at most; all three or none.
 */
gain_percent: number | null, gain_percent_low: number | null, gain_percent_high: number | null, refute: string | null, reference: string | null, evidence: Array<Evidence>, };

/**
 * A number that speaks for a cause.
 */
export type Evidence = { name: string, value: Value, unit: Unit, 
/**
 * The value as people read it.
 */
text: string, source: string | null, };

/**
 * A rule that may hold: what would decide it was not measured.
 */
export type NotEvaluated = { rule: string, title: string, subject: string, 
/**
 * Names of metrics that are absent, of another type than is needed, or zero below a
 * division.
 */
missing: Array<string>, };

/**
 * What a rule is asked about.
 */
export type Subject = { 
/**
 * Which rules apply: `phase`, `kernel`, `calls`, `counters`, `schedule`, `lines`, `trace`.
 */
kind: string, 
/**
 * Of a phase `generate`, of a kernel its name, …
 */
name: string, metrics: Metrics, };

/**
 * By name: words in lower case, joined by dots and underscores (`stack.disk`, `threads`).
 */
export type Metrics = { [key in string]: Metric };

/**
 * A value, and the query or the place that shows it.
 */
export type Metric = { value: Value, unit: Unit, 
/**
 * SQL on the tables of a run, or a place in an imported file ("report.csv:12").
 */
source: string | null, };

/**
 * A measured or configured value.
 */
export type Value = number | string | boolean;

/**
 * How a number is shown to people.
 */
export type Unit = "count" | "share" | "bytes" | "nanos" | "bytes_per_second" | "flops_per_second" | "times";
