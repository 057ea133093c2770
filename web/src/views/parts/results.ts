/** JSON of the analyses, as `report --json` and `compare --json` give it; docs/analysis.md defines every number. */

export interface Count {
  accesses: number;
  bytes: number;
}
/** The whole run, and the evaluations that generate. */
export interface Scoped<T> {
  run: T;
  generate: T;
}
export type Scope = keyof Scoped<unknown>;

export const POLICIES = ['lru', 'belady', 'pin_and_stream'] as const;
export type Policy = (typeof POLICIES)[number];

export interface Curves {
  granularity: string;
  total: Scoped<Count>;
  cold: Scoped<Count>;
  footprint_bytes: number;
  points: ({ budget_bytes: number } & Record<Policy, Scoped<Count>>)[];
}

export interface Reuse {
  cold: Count;
  reused: Count;
  buckets: { from_bytes: number; to_bytes: number; accesses: number; bytes: number }[];
  quantiles: { share: number; distance_bytes: number }[];
}

export interface Strategy {
  strategy: string;
  disk_bytes_per_token: number | null;
  routed_bytes_per_token: number;
  nanos_per_token: number | null;
  tokens_per_second: number | null;
  speedup: number | null;
  verdict: { help: string; reason: string };
}

export interface Opportunities {
  generated_tokens: number;
  footprint_bytes: number;
  expert_bytes: number;
  used_bytes_per_token: number;
  machine: { disk_bytes_per_second: number; memory_bytes_per_second: number | null } | null;
  budgets: { budget_bytes: number; least_disk_bytes_per_token: number; strategies: Strategy[]; best: string | null }[];
}

export interface WorkingSet {
  windows: { evaluations: number; complete: number; mean_bytes: number; min_bytes: number; max_bytes: number }[];
  distinct_bytes: number;
}

export interface Memory {
  curves: Curves;
  page_curves: Curves;
  reuse: Reuse;
  reuse_generate: Reuse;
  page_reuse: Reuse;
  page_reuse_generate: Reuse;
  opportunities: Opportunities;
  working_set: WorkingSet;
  distinct_bytes: number;
  /** Only the processor computed. */
  devices: null;
}

/** Of a run with devices nothing is known of caches and budgets. */
export interface DeviceMemory {
  opportunities: null;
  devices: Devices | null;
}

export interface MemoryRow {
  kind: string;
  component: string;
  tensors: number;
  bytes: number;
}

export interface Devices {
  devices: {
    device: string;
    description: string;
    memory_bytes: number | null;
    memory: MemoryRow[];
    copies: { phase: string; tensor: string; kind: string; way: string; calls: number; bytes: number }[];
  }[];
  host_memory: (MemoryRow & { buffer_type: string })[];
  passes: { phase: string; passes: number; tokens: number }[];
}

export interface Attention {
  projections: { of: string; read_bytes: number; written_bytes: number }[];
  heads: { layer: number; of: string; head: number; read_bytes: number; written_bytes: number }[];
  unassigned_bytes: number;
}

export interface Preference {
  layer: number;
  expert: number;
  prefers: { token_id: number; text: string; choices: number; occurrences: number; lift: number }[];
}

export interface Moved {
  name: string;
  a_bytes_per_token: number;
  b_bytes_per_token: number;
  bytes_change: number;
  bytes_ratio: number | null;
  a_nanos_per_token: number;
  b_nanos_per_token: number;
  nanos_change: number;
  nanos_ratio: number | null;
}

export interface Comparison {
  phases: {
    phase: string;
    a_tokens: number;
    b_tokens: number;
    total: Moved;
    by_kind: Moved[];
    by_component: Moved[];
    by_op: Moved[];
    by_layer: Moved[] | null;
    /** Absent if nobody fed the weights. */
    by_source?: Moved[];
  }[];
  experts: { layer: number; hot_set: number; jaccard: number; share_served: number; best_share: number }[];
}
