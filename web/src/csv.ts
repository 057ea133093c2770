/** Tables as CSV (RFC 4180): what `exportCsv` of the views returns. */

export type Cell = string | number | bigint | boolean | null | undefined;

/** Rows that end early are filled up: every line has as many fields as the heading. */
export function csv(header: readonly string[], rows: Iterable<readonly Cell[]>): string {
  const lines = [header.map(field).join(',')];
  for (const row of rows) {
    const missing = Math.max(0, header.length - row.length);
    lines.push([...row, ...Array<Cell>(missing).fill(null)].map(field).join(','));
  }
  return lines.join('\r\n') + '\r\n';
}

function field(value: Cell): string {
  if (value === null || value === undefined) return '';
  let text = String(value);
  // A spreadsheet would run a text of a hostile model that begins like a formula.
  if (typeof value === 'string' && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
