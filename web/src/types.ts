/** What the server answers; see "HTTP API" in crates/server. Times are nanoseconds since the run's first evaluation. */

export interface RunName {
  run: number;
  name: string;
  model: string;
  live: boolean;
}

export interface Tensor {
  /** Number in the tables; null for a tensor that the run never defined. */
  tensor: number | null;
  name: string;
  layer: number | null;
  component: string;
  role: string;
  type: string;
  /** Offset in the map space: all files of the model end to end. */
  begin: number;
  size_bytes: number;
  experts: number;
}

export interface RunInfo {
  name: string;
  live: boolean;
  version: number;
  model: {
    name: string | null;
    architecture: string | null;
    size_bytes: number;
    layers: number;
    experts: number;
    experts_used: number;
    files: { name: string; size_bytes: number; begin: number }[];
  };
  totals: {
    evals: number;
    tokens: number;
    nodes: number;
    accesses: number;
    bytes: number;
    duration_nanos: number;
  };
  phases: { phase: string; evals: number; tokens: number; nanos: number }[];
  layers: (number | null)[];
  components: string[];
  ops: string[];
  experts: number;
  tensors: Tensor[];
  missing: string[];
  /** Which logs of the kernel the run has. */
  kernel: KernelLogs;
}

export interface KernelLogs {
  faults: boolean;
  io: boolean;
  residency: boolean;
}

/** What `info?since=` answers when nothing is newer. */
export interface Unchanged {
  version: number;
  live: boolean;
}

export interface Token {
  token: number;
  eval: number;
  phase: string;
  id: number;
  text: string | null;
  position: number | null;
  sequence: number | null;
  begin: number;
  end: number;
}

export interface Summary {
  totals: {
    evals: number;
    tokens: number;
    nodes: number;
    accesses: number;
    bytes: number;
    read_bytes: number;
    written_bytes: number;
    nanos: number;
  };
  by_component: { component: string; accesses: number; bytes: number }[];
  by_op: { op: string; nodes: number; nanos: number; accesses: number; bytes: number }[];
  by_layer: { layer: number | null; nodes: number; nanos: number; accesses: number; bytes: number }[];
  by_tensor: {
    tensor: number;
    name: string;
    component: string;
    layer: number | null;
    size_bytes: number;
    accesses: number;
    bytes: number;
  }[];
}

/** A raster response: `values` row by row. */
export interface Raster<H> {
  header: H;
  values: Float32Array;
}

export interface HeatmapRow {
  label: string;
  layer: number | null;
  tensor: number | null;
  expert: number | null;
  /** What neighbouring rows have in common: a layer, or a component. */
  group: string;
}

export interface HeatmapHeader {
  rows: HeatmapRow[];
  columns: number;
  /** Token number at each column's left edge; columns + 1 of them. */
  edges: number[];
  unit: string;
  max: number;
}

export interface ExactAccess {
  eval: number;
  step: number;
  /** First token of the evaluation's batch. */
  token: number | null;
  tensor: number;
  expert: number | null;
  op: string;
  layer: number | null;
  begin: number;
  end: number;
  offset: number;
  bytes: number;
}

export interface OffsetsHeader {
  t0: number;
  t1: number;
  o0: number;
  o1: number;
  w: number;
  h: number;
  max: number;
  accesses: number;
  /** Each access, when there are few. */
  exact: ExactAccess[] | null;
}

export interface Span {
  eval: number;
  step: number;
  layer: number | null;
  op: string;
  name: string;
  component: string;
  begin: number;
  end: number;
  /** Read and written. */
  bytes: number;
  token: number | null;
}

export type NodesHeader =
  | { kind: 'spans'; t0: number; t1: number; lanes: (number | null)[]; spans: Span[] }
  | {
      kind: 'raster';
      t0: number;
      t1: number;
      w: number;
      lanes: (number | null)[];
      /** Per cell the op that took most of its time, as an index into RunInfo.ops; -1 where nothing ran. */
      ops: number[];
      nodes: number;
    };

export interface MapHeader {
  cell_bytes: number;
  total_bytes: number;
  max: number;
  metric: string;
  available: string[];
  /** The sample of resident pages that is shown. */
  sampled?: Sampled;
}

export interface Sampled {
  nanos: number;
  token: number;
  resident_bytes: number;
}

/** Major faults, or bytes read from the disk, by cell of the offset plot. */
export interface MarksHeader {
  of: 'faults' | 'reads';
  t0: number;
  t1: number;
  o0: number;
  o1: number;
  w: number;
  h: number;
  max: number;
  /** Faults, or reads of one tensor, that the window meets… */
  events: number;
  /** …and how many, or how many bytes, that makes. */
  amount: number;
}

export interface DiskSums {
  size_bytes: number;
  read_bytes: number;
  major_faults: number;
  minor_faults: number;
  resident_bytes: number;
}

export interface Disk {
  recorded: KernelLogs;
  total: DiskSums;
  /** In the model's files, but in no tensor. */
  unowned: DiskSums;
  /** In no file of the model. */
  elsewhere: DiskSums;
  by_layer: ({ layer: number | null } & DiskSums)[];
  by_tensor: ({ name: string; layer: number | null; component: string } & DiskSums)[];
  sizes: { from_bytes: number; requests: number; bytes: number }[];
  samples: number;
  sampled: Sampled | null;
}

/** Who owns a byte; all null but `offset` outside of tensors. */
export interface Place {
  offset: number;
  file: string | null;
  tensor: number | null;
  name: string | null;
  layer: number | null;
  component: string | null;
  role: string | null;
  expert: number | null;
  /** `q3`, or `q3-4` where a block holds elements of several heads. */
  head: string | null;
  begin: number | null;
  size_bytes: number | null;
  offset_in_tensor: number | null;
  type: string | null;
}

export interface EvalName {
  eval: number;
  begin: number;
  end: number;
  first_token: number;
  tokens: number;
  phase: string;
}

export interface EvalStep {
  step: number;
  op: string;
  name: string;
  layer: number | null;
  begin: number;
  end: number;
  /** [offset in the map space, bytes, expert or -1] of the weights read. */
  ranges: [number, number, number][];
  experts: number[];
}

export interface EvalDetail {
  eval: number;
  phase: string;
  begin: number;
  end: number;
  tokens: Token[];
  steps: EvalStep[];
}

export interface FlameNode {
  name: string;
  value: number;
  children?: FlameNode[];
}

export interface Experts {
  layers: {
    layer: number;
    experts: { expert: number; tokens: number; mean_weight: number | null }[];
    entropy: number;
    max_over_mean: number;
    pairs: { a: number; b: number; count: number; lift: number }[];
  }[];
}

export interface Preference {
  layer: number;
  expert: number;
  prefers: { token_id: number; text: string; choices: number; occurrences: number; lift: number }[];
}

export interface SqlResult {
  columns: { name: string; type: string }[];
  rows: (string | number | boolean | null)[][];
  is_cut: boolean;
  seconds: number;
}
