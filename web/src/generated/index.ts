// Written by a test of crates/index/src/answers.rs; change that.

export type ComponentSum = { component: string, accesses: number, bytes: number, };

/**
 * What was read from the disk, and how often that is the model's size.
 */
export type Disk = { recorded: KernelInfo, 
/**
 * Of all tensors.
 */
total: DiskSums, 
/**
 * In the model's files, but in no tensor.
 */
unowned: DiskSums, 
/**
 * In no file of the model.
 */
elsewhere: DiskSums, 
/**
 * Ascending, none last.
 */
by_layer: Array<DiskLayer>, 
/**
 * In the order of the files.
 */
by_tensor: Array<DiskTensor>, sizes: Array<ReadSize>, 
/**
 * Of resident pages.
 */
samples: number, sampled: SampledAt | null, };

export type DiskLayer = { 
/**
 * Of the tensors' names.
 */
layer: number | null, size_bytes: number, read_bytes: number, major_faults: number, minor_faults: number, 
/**
 * By the sample.
 */
resident_bytes: number, };

export type DiskSums = { size_bytes: number, read_bytes: number, major_faults: number, minor_faults: number, 
/**
 * By the sample.
 */
resident_bytes: number, };

export type DiskTensor = { name: string, layer: number | null, component: string, size_bytes: number, read_bytes: number, major_faults: number, minor_faults: number, 
/**
 * By the sample.
 */
resident_bytes: number, };

export type EvalBrief = { eval: number, begin: number, end: number, first_token: number, tokens: number, phase: string, };

export type EvalInfo = { eval: number, phase: string, begin: number, end: number, tokens: Array<TokenInfo>, 
/**
 * Executed ones.
 */
steps: Array<EvalStep>, };

export type EvalStep = { step: number, op: string, name: string, layer: number | null, begin: number, end: number, 
/**
 * Reads of weights: offset in the map space, bytes from first to last,
 * expert or -1.
 */
ranges: Array<[number, number, number]>, experts: Array<number>, };

export type ExactAccess = { eval: number, step: number, 
/**
 * First token of the evaluation's batch.
 */
token: number | null, tensor: number, expert: number | null, op: string, layer: number | null, begin: number, end: number, 
/**
 * In the map space.
 */
offset: number, bytes: number, };

export type ExpertPair = { a: number, b: number, count: number, 
/**
 * How many times more often than if choices were independent.
 */
lift: number, };

export type ExpertUse = { expert: number, 
/**
 * Tokens routed to it.
 */
tokens: number, 
/**
 * Over the mean of its layer: 1 is an even choice.
 */
temperature: number, mean_weight: number | null, };

export type Experts = { layers: Array<LayerExperts>, };

export type FileInfo = { name: string, size_bytes: number, 
/**
 * Its first byte in the map space: all files end to end.
 */
begin: number, };

export type Flame = { name: string, value: number, children?: Array<Flame>, };

export type HeatmapHeader = { rows: Array<HeatmapRow>, columns: number, 
/**
 * Token number at each column's left edge, and the end: `columns + 1`.
 */
edges: Array<number>, unit: string, max: number, };

export type HeatmapRow = { label: string, layer: number | null, tensor: number | null, expert: number | null, 
/**
 * What neighbouring rows have in common: a layer, or a component.
 */
group: string, };

/**
 * Everything about a run that no filter changes.
 */
export type Info = { name: string, live: boolean, 
/**
 * Grows when a live run grows.
 */
version: number, model: ModelInfo, totals: RunTotals, phases: Array<PhaseTotals>, 
/**
 * Ascending; `None`, last, for steps that belong to no layer.
 */
layers: Array<number | null>, components: Array<string>, ops: Array<string>, 
/**
 * Most experts of a layer; 0 for a dense model.
 */
experts: number, 
/**
 * That computed; the processor, called `CPU`, is among them.
 */
devices: Array<string>, 
/**
 * Weights with a place in the files, ascending by `begin`.
 */
tensors: Array<TensorInfo>, 
/**
 * Sentences about lost, damaged and partial data.
 */
missing: Array<string>, kernel: KernelInfo, };

/**
 * What was recorded of the kernel.
 */
export type KernelInfo = { faults: boolean, io: boolean, residency: boolean, };

/**
 * A lane, with what the window has of it.
 */
export type Lane = { kind: LaneKind, device: string, evals: number, 
/**
 * Those that the device timed, and those whose kernels were timed.
 */
timed_evals: number, measured_evals: number, 
/**
 * Of those whose kernels were timed: from the first to the last of an evaluation, and the
 * part of that in which none ran.
 */
span_nanos: number, gap_nanos: number, copies: number, bytes: number, };

/**
 * When the call was made and returned; how long the bytes took is not known.
 */
export type LaneCopy = { lane: number, 
/**
 * That follows it.
 */
eval: number | null, tensor: string, component: string, bytes: number, begin: number, end: number, 
/**
 * The call did not wait for the copy.
 */
is_async: boolean, };

export type LaneEval = { lane: number, eval: number, phase: string, token: number | null, begin: number, end: number, times: LaneTimes, 
/**
 * That were timed; begin of the first, end of the last, and how long none ran between.
 */
kernels: number, kernels_begin: number | null, kernels_end: number | null, gap_nanos: number | null, };

export type LaneKind = "processor" | "device" | "to_device" | "from_device" | "between_devices";

export type LaneSpans = { evals: Array<LaneEval>, 
/**
 * Nodes of the processor, kernels of devices.
 */
work: Array<LaneWork>, copies: Array<LaneCopy>, };

/**
 * What is known of the times inside an evaluation.
 */
export type LaneTimes = "nodes" | "kernels" | "evaluation" | "call";

export type LaneWork = { lane: number, eval: number, 
/**
 * Of a kernel that no node launched none.
 */
step: number | null, kernel: string | null, op: string | null, name: string | null, begin: number, end: number, };

/**
 * Who computed when, and what was copied; one by one, or as a grid.
 */
export type LanesHeader = { t0: number, t1: number, 
/**
 * Cells of a row of the grid. A lane has four rows: what ran, gaps between kernels,
 * evaluations whose nodes nobody timed, evaluations of which only the call is known.
 */
w: number, lanes: Array<Lane>, 
/**
 * When there are few; there is no grid then.
 */
spans: LaneSpans | null, };

export type LayerExperts = { layer: number, experts: Array<ExpertUse>, 
/**
 * Of the choices: 1 is even, 0 is always the same expert.
 */
normalised_entropy: number, max_over_mean: number, 
/**
 * Pairs that tokens used together, most often first.
 */
pairs: Array<ExpertPair>, };

export type LayerSum = { layer: number | null, nodes: number, nanos: number, accesses: number, bytes: number, };

/**
 * Who owns a byte of the map space. All `None` but `offset` outside of tensors.
 */
export type Located = { offset: number, file: string | null, tensor: number | null, name: string | null, layer: number | null, component: string | null, role: string | null, expert: number | null, 
/**
 * `q3`, or `q3-4` where a block holds elements of several heads.
 */
head: string | null, begin: number | null, size_bytes: number | null, offset_in_tensor: number | null, type: string | null, };

export type MapHeader = { cell_bytes: number, total_bytes: number, max: number, metric: string, 
/**
 * Metrics that this crate knows; pages in memory now are the server's.
 */
available: Array<string>, 
/**
 * Which sample it shows.
 */
sampled?: SampledAt, };

/**
 * Major faults, or bytes read, by cell.
 */
export type MarksHeader = { of: 'faults' | 'reads', t0: number, t1: number, o0: number, o1: number, w: number, h: number, max: number, 
/**
 * Faults, or parts of reads that lie in one tensor, that the window meets.
 */
events: number, 
/**
 * Faults, or bytes, of those: also what lies beside the window.
 */
amount: number, };

export type ModelInfo = { name: string | null, architecture: string | null, size_bytes: number, layers: number, experts: number, experts_used: number, files: Array<FileInfo>, };

export type NodeSpan = { eval: number, step: number, layer: number | null, op: string, name: string, 
/**
 * Of the weight that it reads; the kind of what it works on otherwise.
 */
component: string, begin: number, end: number, 
/**
 * Read and written.
 */
bytes: number, 
/**
 * First token of the evaluation's batch.
 */
token: number | null, };

/**
 * Nodes one by one, or a grid of lanes.
 */
export type NodesHeader = { "kind": "spans", t0: number, t1: number, lanes: Array<number | null>, spans: Array<NodeSpan>, } | { "kind": "raster", t0: number, t1: number, w: number, 
/**
 * The layer of each row.
 */
lanes: Array<number | null>, 
/**
 * Per cell the op that took most of its time, as an index into
 * [`Info::ops`]; -1 where nothing ran.
 */
ops: Array<number>, nodes: number, 
/**
 * As in [`OffsetsHeader`].
 */
even: boolean, };

export type OffsetsHeader = { t0: number, t1: number, o0: number, o1: number, w: number, h: number, max: number, 
/**
 * Reads of weights in the window.
 */
accesses: number, 
/**
 * Each evaluation is spread evenly over its time: it is too narrow to show more.
 */
even: boolean, 
/**
 * Each of them, when there are few.
 */
exact: Array<ExactAccess> | null, };

export type OpSum = { op: string, nodes: number, nanos: number, accesses: number, bytes: number, };

export type PhaseTotals = { phase: string, evals: number, tokens: number, 
/**
 * Sum over its evaluations.
 */
nanos: number, };

/**
 * Requests of at least these bytes, and less than twice as many.
 */
export type ReadSize = { from_bytes: number, requests: number, bytes: number, };

export type RunTotals = { evals: number, tokens: number, nodes: number, accesses: number, bytes: number, 
/**
 * From the first begin to the last end.
 */
duration_nanos: number, };

/**
 * A sample of resident pages.
 */
export type SampledAt = { nanos: number, token: number, 
/**
 * Of all files.
 */
resident_bytes: number, };

/**
 * Weights that came from one place, in evaluations of one phase.
 */
export type SourceSum = { phase: string, 
/**
 * `pinned`, `loaded`, `streamed`, `cache_hit`, `cache_miss` or `page_cache`.
 */
source: string, accesses: number, bytes: number, 
/**
 * What the computation waited for them.
 */
waited_nanos: number, };

export type Summary = { totals: SummaryTotals, by_component: Array<ComponentSum>, by_op: Array<OpSum>, by_layer: Array<LayerSum>, 
/**
 * All weights touched.
 */
by_tensor: Array<TensorSum>, 
/**
 * Where weights came from in these evaluations, whatever else the filter says; empty if
 * nobody fed them.
 */
by_source: Array<SourceSum>, };

export type SummaryTotals = { evals: number, 
/**
 * Of the batches of these evaluations.
 */
tokens: number, nodes: number, accesses: number, bytes: number, read_bytes: number, written_bytes: number, nanos: number, };

export type TensorInfo = { 
/**
 * Its number in the tables; `None` for a tensor of the model that the run
 * never defined.
 */
tensor: number | null, name: string, layer: number | null, component: string, role: string, type: string, 
/**
 * In the map space.
 */
begin: number, size_bytes: number, 
/**
 * Experts whose slices it holds; 0 if none.
 */
experts: number, };

export type TensorSum = { tensor: number, name: string, component: string, 
/**
 * Of the tensor's name.
 */
layer: number | null, size_bytes: number, accesses: number, bytes: number, };

export type TokenInfo = { token: number, eval: number, phase: string, 
/**
 * In the vocabulary.
 */
id: number, text: string | null, position: number | null, sequence: number | null, begin: number, end: number, };
