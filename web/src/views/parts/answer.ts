/** The answer of `tensorscope estimate --json`, as far as the page shows it. */

/** Seconds. */
export interface Interval {
  best: number;
  likely: number;
  worst: number;
}

export interface Estimate {
  model: { name: string; weight_bytes: number };
  machine: Machine;
  memory: Memory;
  kv: Kv;
  kv_types: KvType[];
  prompt: PassTime;
  token: PassTime;
  batch: Batches;
  versus?: Versus;
  draft?: Draft;
  attention?: AttentionBytes;
  shapes?: Fit[];
  train?: Training;
  /** When weights come from the disk for each token. */
  disk?: { tokens_per_second?: number | Interval | null } | null;
}

export interface Machine {
  name: string;
  kind: string;
  memory_bytes: { value: number };
  memory_bytes_per_second: { value: number };
  flops_per_second?: Record<string, { value: number }>;
}

export interface Memory {
  asked: string;
  devices: Device[];
  bytes: number;
  weight_bytes: number;
  context_bytes: number;
  compute_bytes: number;
  /** What has to fit in the budget: all of it, or what the fullest GPU has. */
  budgeted_bytes: number;
  budget_bytes: number;
  fits: boolean;
  ways: { change: string; bytes: number; costs: string }[];
}

export interface Device {
  name: string;
  weight_bytes: number;
  context_bytes: number;
  compute_bytes: number;
  budget_bytes?: number | null;
}

/** Of one sequence. */
export interface Kv {
  context_tokens: number;
  bytes_per_token: number;
  bytes_per_token_beyond_windows: number;
  cache_bytes: number;
  recurrent_bytes: number;
  window_layers: number;
}

export interface PassTime {
  stages: { work: { stage: string }; seconds: Interval; bound: string }[];
  seconds: Interval;
  flop_per_byte: number;
  ridge_flop_per_byte: number;
  bound: string;
  tokens_per_second: number;
}

export interface BatchPoint {
  batch: number;
  seconds: Interval;
  tokens_per_second: number;
  memory_bytes: number;
  fits: boolean;
  meets_latency?: boolean | null;
  bound: string;
}

export interface Batches {
  points: BatchPoint[];
  knee_batch: number | null;
  best: { batch: number; tokens_per_second: number } | null;
  max_batch_that_fits: number | null;
}

export interface Versus {
  first: VersusType;
  second: VersusType;
  weight_ratio: number;
  rows: { batch: number; first_seconds: number; second_seconds: number; ratio: number }[];
}

export interface VersusType {
  types: { weights: string | { all: { name: string } } };
  weight_bytes: number;
  turning_batch: number | null;
}

export interface Draft {
  draft_tokens: number;
  acceptance: number;
  tokens_per_pass: number;
  seconds_per_token: number;
  speed_up: number;
}

export interface KvType {
  type: string;
  bytes_per_token: number;
  bytes_per_sequence: number;
  max_sequences: number;
}

export interface AttentionBytes {
  tokens: number;
  sram_bytes: number;
  standard: { bytes: number };
  block_wise: { bytes: number };
  crossover_tokens: number | null;
}

export interface Fit {
  dimension: string;
  number: number;
  multiple_of: number;
  fits: boolean;
  padding_percent: number;
}

export interface Training {
  examined: number;
  fitting: number;
  best: {
    outcome: {
      layout: { tensor: number; pipeline: number; data: number; zero: string; recompute: string };
      memory: { bytes: number };
      bubble: number;
    };
    tokens_per_second: number;
  }[];
}
