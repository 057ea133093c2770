// Written by a test of crates/diagnose/src/lib.rs; change that.
import type { Cause, NotEvaluated, Subject } from './rules';

/**
 * Everything that `diagnose --json` prints about a run, or about other tools' files.
 */
export type Diagnosis = { 
/**
 * Empty without a run.
 */
phases: Array<PhaseStack>, 
/**
 * The one that costs most time first.
 */
causes: Array<Ranked>, 
/**
 * Rules that hold and name nothing that is wrong: what the hardware can do.
 */
healthy: Array<Ranked>, 
/**
 * Rules that could not be evaluated, and the inputs that they miss.
 */
not_evaluated: Array<NotEvaluated>, 
/**
 * What was not recorded or measured, and how to.
 */
missing: Array<string>, 
/**
 * What the rules were asked about.
 */
subjects: Array<Subject>, };

/**
 * A cause with its place in the whole.
 */
export type Ranked = { phase: string, time_share: number, } & Cause;

/**
 * Where the time of one phase went.
 */
export type PhaseStack = { 
/**
 * `prompt` or `generate`.
 */
name: string, evaluations: number, tokens: number, 
/**
 * Of one token on average, from the beginning of an evaluation to that of the next.
 */
token_nanos: number, tokens_per_second: number, 
/**
 * Of all tokens.
 */
nanos: number, 
/**
 * What is known; shares add up to 1.
 */
stack: Array<Part>, 
/**
 * By falling share; of samples, so only where threads were watched.
 */
system_calls?: Array<CallShare>, 
/**
 * In a sentence: the wall, or headroom.
 */
verdict: string, };

/**
 * A part of a phase's time.
 */
export type Part = { name: string, 
/**
 * For people.
 */
title: string, share: number, 
/**
 * Of one token.
 */
nanos: number, };

/**
 * System calls of one kind.
 */
export type CallShare = { 
/**
 * One of `imports::calls::Category`, for people.
 */
category: string, 
/**
 * Of the time that threads had, running in such a call.
 */
share: number, 
/**
 * Names of these calls, the one with most time first.
 */
calls: Array<string>, };
