/** Example queries: those of the documentation (crates/store/src/views.rs), and the tables they can use. */

export const QUERIES: readonly [question: string, query: string][] = [
  [
    'the ten hottest weights',
    `SELECT tensor_name, accesses, bytes
FROM hot_tensors
ORDER BY bytes DESC, tensor_name
LIMIT 10`,
  ],
  [
    'where the bytes of generated tokens go',
    `SELECT component, accesses, bytes
FROM bytes_by_component
WHERE phase = 'generate'
ORDER BY bytes DESC`,
  ],
  [
    'bytes by component, from single accesses',
    `SELECT component, COUNT(*) AS accesses, SUM(bytes) AS bytes
FROM accesses
WHERE kind = 'weight'
GROUP BY component
ORDER BY bytes DESC`,
  ],
  [
    'bytes of each evaluation, from single accesses',
    `SELECT eval, COUNT(*) AS accesses, SUM(bytes) AS bytes
FROM accesses
GROUP BY eval
ORDER BY eval`,
  ],
  [
    'the weights that one token reads, in order, with their place in the file',
    `SELECT step, tensor_name, expert, file_offset, bytes
FROM accesses
WHERE eval = 1 AND kind = 'weight'
ORDER BY step, file_offset`,
  ],
  [
    'the experts of one layer, by bytes read',
    `SELECT expert, COUNT(*) AS accesses, SUM(bytes) AS bytes
FROM accesses
WHERE layer = 0 AND expert IS NOT NULL
GROUP BY expert
ORDER BY bytes DESC, expert`,
  ],
  [
    'the slowest nodes',
    `SELECT name, op, COUNT(*) AS executions, SUM(duration_nanos) AS nanos
FROM nodes
GROUP BY name, op
ORDER BY nanos DESC, name
LIMIT 10`,
  ],
  [
    "bandwidth of the weights' reads, by op",
    `SELECT n.op, SUM(w.bytes) AS bytes, SUM(n.duration_nanos) AS nanos
FROM nodes n JOIN (
  SELECT eval, step, SUM(bytes) AS bytes
  FROM accesses
  WHERE kind = 'weight' AND eval BETWEEN 1 AND 100
  GROUP BY eval, step
) w ON n.eval = w.eval AND n.step = w.step
GROUP BY n.op
ORDER BY bytes DESC`,
  ],
];

export const TABLES: readonly [name: string, row: string][] = [
  ['run', 'The run: always one row.'],
  ['tensors', 'A root tensor: a weight, a KV cache, an input or an activation.'],
  ['evals', 'One evaluation of a graph: a batch of the prompt, or a generated token.'],
  ['tokens', 'One token of a batch.'],
  ['nodes', 'One executed node of a graph.'],
  [
    'accesses',
    'One read or write of bytes of a tensor by a node. Times are in `nodes` (join on `eval, step`), addresses in `tensors`.',
  ],
  ['routing', 'One token sent to one expert.'],
  ['traffic', "`accesses`, added up over the run: small, whatever the run's length. The views are made from it."],
  ['hot_tensors', 'How much each weight is used; `bytes_per_byte` is bytes read per byte of its size.'],
  ['bytes_by_component', 'Weights read, by phase and component.'],
  ['bytes_by_kind', 'Weights, KV cache, inputs and activations: bytes read and written, by phase.'],
  ['bytes_by_layer', 'Bytes by phase, layer and kind; layer is null for what belongs to none.'],
  ['bytes_by_op', 'Bytes by phase, op and direction.'],
  ['time_by_op', 'Executed nodes and their time, by op.'],
  ['expert_use', 'How many tokens each expert of each layer got, and its mean router weight.'],
  [
    'tokens_per_second',
    'Speed by phase. The time of evaluations only: what the program does between them is left out.',
  ],
  ['bytes_per_token', "Each evaluation's bytes, shared by the tokens of its batch: `kv_bytes` shows the cache grow."],
];
