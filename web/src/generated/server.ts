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
