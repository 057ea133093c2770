// Written by a test of crates/server/src/answers.rs; change that.

/**
 * One of the runs that are shown.
 */
export type RunName = { run: number, name: string, model: string | null, live: boolean, };

/**
 * What `info?since=` answers when nothing is newer.
 */
export type Unchanged = { version: number, live: boolean, };

/**
 * The rows that a query gave.
 */
export type SqlAnswer = { columns: Array<SqlColumn>, 
/**
 * One value for each column.
 */
rows: (string | number | boolean | null)[][], 
/**
 * Whether there were more rows.
 */
is_cut: boolean, };

export type SqlColumn = { name: string, type: string, };

/**
 * As the page gets it.
 */
export type TimedSqlAnswer = { seconds: number, columns: Array<SqlColumn>, 
/**
 * One value for each column.
 */
rows: (string | number | boolean | null)[][], 
/**
 * Whether there were more rows.
 */
is_cut: boolean, };

/**
 * What a model is, as far as questions about it need it.
 */
export type ModelFacts = { name: string, 
/**
 * As the user gave it.
 */
path: string, architecture: string, 
/**
 * Of all its files.
 */
size_bytes: number, tensor_bytes: number, parameters: number, 
/**
 * Those that one token uses.
 */
active_parameters: number, bits_per_parameter: number, 
/**
 * Tokens that it was trained for.
 */
max_context: number | null, layers: number, embedding_length: number, vocabulary: number | null, experts: number, experts_used: number, 
/**
 * Of the table that `estimate --list-machines` prints.
 */
machines: Array<MachineName>, };

export type MachineName = { name: string, 
/**
 * `gpu`, `apple` or `cpu`.
 */
kind: string, memory_bytes: number, };

/**
 * Where every tensor of a model lies.
 */
export type ModelStructure = { files: Array<ModelFile>, 
/**
 * Ascending by `begin`.
 */
tensors: Array<ModelTensor>, };

export type ModelFile = { name: string, size_bytes: number, 
/**
 * Its first byte when all files are put one behind the other.
 */
begin: number, };

export type ModelTensor = { name: string, type: string, 
/**
 * Elements along each dimension, fastest first.
 */
shape: Array<number>, layer: number | null, component: string, role: string, 
/**
 * Its place in `files`, and its first byte there.
 */
file: number, file_offset: number, 
/**
 * Its first byte when all files are put one behind the other.
 */
begin: number, size_bytes: number, 
/**
 * Experts whose slices it holds; 0 if none.
 */
experts: number, };
