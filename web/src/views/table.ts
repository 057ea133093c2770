/**
 * Tables: what passes the filter, by component, op, layer and tensor; and the
 * answer to any SQL query over the run's tables.
 */
import { ApiError } from '../api';
import { fill, h, note, segmented, toolbar, type Segmented } from '../dom';
import * as format from '../format';
import type { State } from '../state';
import type { Summary } from '../generated/index';
import type { TimedSqlAnswer } from '../generated/server';
import type { App, View } from '../view';
import type { Cell } from '../csv';
import { Grid, type Column } from './parts/grid';
import { QUERIES, TABLES } from './parts/queries';
import { snapshot } from './parts/snapshot';

const SOURCES = [
  {
    value: 'component',
    text: 'components',
    title: 'accesses that pass the filter, by component of the weight or kind of tensor',
  },
  { value: 'op', text: 'ops', title: 'by operation of ggml, with time' },
  { value: 'layer', text: 'layers', title: 'by layer of the node, with time' },
  { value: 'source', text: 'sources', title: 'where the weights of a fed run came from, and what was waited for them' },
  { value: 'tensor', text: 'tensors', title: 'every weight that was touched' },
  { value: 'sql', text: 'SQL', title: 'any query over the tables of the run; the filter bar does not apply' },
] as const;
type Source = (typeof SOURCES)[number]['value'];

const asBytes = (value: Cell) => format.bytes(Number(value));
const asNanos = (value: Cell) => format.nanos(Number(value));
const asCount = (value: Cell) => format.integer(Number(value));
const accesses: Column = {
  name: 'accesses',
  isNumber: true,
  show: asCount,
  title: 'reads and writes: one operand of one node, one row named by an index, or one expert’s slice',
};
const bytes: Column = {
  name: 'bytes',
  isNumber: true,
  hasBar: true,
  show: asBytes,
  title: 'distinct bytes of each access, added up',
};
const nodes: Column = { name: 'nodes', isNumber: true, show: asCount, title: 'executed nodes' };
const nanos: Column = {
  name: 'time',
  isNumber: true,
  hasBar: true,
  show: asNanos,
  title: 'sum over the nodes, each from the tick before it to its own',
};
const size: Column = { name: 'size', isNumber: true, show: asBytes, title: 'of the weight' };
const layerColumn: Column = {
  name: 'layer',
  isNumber: true,
  show: (value) => String(value),
  title: 'of the node; – belongs to no layer',
};

class Table implements View {
  readonly id = 'table';
  readonly title = 'Table';
  readonly key = '9';
  readonly help: [string, string][] = [
    ['click a heading', 'sort'],
    ['click a row', 'filter by it'],
    ['q', 'write SQL'],
    ['ctrl-enter', 'run the query'],
  ];
  private app!: App;
  private root!: HTMLElement;
  private control!: Segmented;
  private grid!: Grid;
  private box!: HTMLTextAreaElement;
  private editor!: HTMLElement;
  private message!: HTMLElement;
  private source: Source = 'component';
  private ran = '';
  /** Counts queries: of two that read the same, the newer one counts. */
  private turn = 0;

  mount(root: HTMLElement, app: App): void {
    this.app = app;
    this.ran = '';
    this.control = segmented('rows', SOURCES, (value) => app.setOpt('table.rows', value));
    this.grid = new Grid((row) => this.pick(row), undefined);
    this.box = h('textarea', {
      class: 'view-sql',
      rows: 6,
      spellcheck: 'false',
      'aria-label': 'SQL query',
      placeholder: 'SELECT …',
      onkeydown: (event: KeyboardEvent) => {
        if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) this.submit();
      },
    });
    this.message = h('div', { class: 'view-sql-message', role: 'status' });
    const examples = QUERIES.map(([question, query]) =>
      h('button', { type: 'button', title: query, onclick: () => this.example(query) }, question),
    );
    const tables = TABLES.map(([name, of]) => h('code', { title: of }, name));
    this.editor = h(
      'div',
      { class: 'view-editor' },
      h('div', { class: 'view-examples', 'aria-label': 'example queries' }, ...examples),
      this.box,
      h(
        'div',
        { class: 'view-editor-bar' },
        h(
          'button',
          { type: 'button', class: 'view-primary', title: 'ctrl-enter', onclick: () => this.submit() },
          'Run query',
        ),
        h('span', { class: 'view-tables' }, 'tables: ', ...tables),
      ),
      this.message,
    );
    root.append(toolbar(this.control.element), this.editor, this.grid.element);
    this.root = root;
  }

  async update(state: State): Promise<void> {
    const wanted = state.opt['table.rows'];
    this.source = SOURCES.find((one) => one.value === wanted)?.value ?? 'component';
    this.control.set(this.source);
    this.editor.hidden = this.source !== 'sql';
    if (this.source === 'sql') return this.updateSql(state);
    this.ran = '';
    const summary = await this.app.api.summary(state.filter, 'table');
    if (wanted !== this.app.state.opt['table.rows']) return;
    const { columns, rows } = tableOf(this.source, summary);
    this.grid.show(columns, rows, rows.length === 0 ? 'no access passes this filter: press Esc to clear it' : '');
  }

  unmount(): void {
    this.grid.destroy();
  }

  onKey(event: KeyboardEvent): boolean {
    if (event.key !== 'q' || event.ctrlKey || event.metaKey || event.altKey) return false;
    this.app.setOpt('table.rows', 'sql');
    // The view follows in the next frame; what is hidden takes no focus, and the next key would go to the page.
    this.editor.hidden = false;
    this.box.focus();
    return true;
  }

  exportCsv(): string {
    return this.grid.toCsv();
  }

  exportCanvas(): HTMLCanvasElement {
    return snapshot(this.root, this.app.colours.ground);
  }

  private async updateSql(state: State): Promise<void> {
    const query = state.opt['table.sql'] ?? '';
    if (query === this.ran && query !== '') return;
    if (query === '') {
      this.ran = '';
      this.grid.show([], [], 'choose an example or write a query');
      return;
    }
    // A link brings its query along; while typing, the box is the user's.
    if (document.activeElement !== this.box || this.box.value === '') this.box.value = query;
    this.ran = query;
    const turn = ++this.turn;
    fill(this.message, note('running…', 'busy'));
    let result: TimedSqlAnswer;
    try {
      result = await this.app.api.sql(query);
    } catch (error) {
      if (this.ran !== query || this.turn !== turn) return;
      if (!(error instanceof ApiError)) throw error;
      this.grid.show([], [], '');
      fill(this.message, note(error.message, 'error'));
      return;
    }
    if (this.ran !== query || this.turn !== turn) return;
    const cut = result.is_cut ? `: these are the first, add a LIMIT or use \`tensorscope sql\`` : '';
    const rows = `${format.integer(result.rows.length)}${result.is_cut ? '+' : ''} rows`;
    fill(this.message, note(`${rows} in ${format.nanos(result.seconds * 1e9)}${cut}`, 'aside'));
    this.grid.show(
      result.columns.map((column) => columnOf(column)),
      result.rows,
      result.rows.length === 0 ? 'the query gave no rows' : '',
    );
  }

  private example(query: string): void {
    this.box.value = query;
    this.submit();
  }

  private submit(): void {
    const query = this.box.value.trim();
    if (query === '') return this.box.focus();
    // The same query again is run again: a live run may have grown.
    this.ran = '';
    if (this.app.state.opt['table.sql'] === query) void this.updateSql(this.app.state);
    else this.app.setOpt('table.sql', query);
  }

  private pick(row: readonly Cell[]): void {
    switch (this.source) {
      case 'component':
        return this.app.setFilter({ component: [String(row[0])] });
      case 'op':
        return this.app.setFilter({ op: [String(row[0])] });
      case 'layer':
        return this.app.setFilter({ layer: [row[0] === null ? null : Number(row[0])] });
      case 'tensor':
        return this.app.setFilter({ layer: [row[2] === null ? null : Number(row[2])], component: [String(row[1])] });
      default:
    }
  }
}

function tableOf(source: Exclude<Source, 'sql'>, summary: Summary): { columns: Column[]; rows: Cell[][] } {
  const all = summary.totals.bytes || 1;
  const share: Column = {
    name: 'share of bytes',
    isNumber: true,
    show: (value) => format.percent(Number(value)),
    title: 'of the bytes of all accesses that pass the filter',
  };
  switch (source) {
    case 'component':
      return {
        columns: [{ name: 'component', title: 'of weights; other tensors by their kind' }, accesses, bytes, share],
        rows: [...summary.by_component]
          .sort((a, b) => b.bytes - a.bytes)
          .map((row) => [row.component, row.accesses, row.bytes, row.bytes / all]),
      };
    case 'op':
      return {
        columns: [{ name: 'op', title: 'as ggml names it; A+B when fused' }, nodes, nanos, accesses, bytes, share],
        rows: [...summary.by_op]
          .sort((a, b) => b.nanos - a.nanos)
          .map((row) => [row.op, row.nodes, row.nanos, row.accesses, row.bytes, row.bytes / all]),
      };
    case 'layer':
      return {
        columns: [layerColumn, nodes, nanos, accesses, bytes, share],
        rows: summary.by_layer.map((row) => [
          row.layer,
          row.nodes,
          row.nanos,
          row.accesses,
          row.bytes,
          row.bytes / all,
        ]),
      };
    case 'source':
      return {
        columns: [
          { name: 'phase', title: 'of the evaluation; the prompt comes first' },
          { name: 'weights came from', title: 'nothing here if nobody fed them: see `tensorscope run --record`' },
          accesses,
          bytes,
          share,
          {
            name: 'waited',
            isNumber: true,
            hasBar: true,
            show: asNanos,
            title: 'what the computation waited for them',
          },
        ],
        rows: summary.by_source.map((row) => [
          row.phase,
          row.source.replace('_', ' '),
          row.accesses,
          row.bytes,
          row.bytes / all,
          row.waited_nanos,
        ]),
      };
    case 'tensor':
      return {
        columns: [
          { name: 'tensor' },
          { name: 'component' },
          layerColumn,
          size,
          accesses,
          bytes,
          {
            name: 'bytes / size',
            isNumber: true,
            show: (value) => format.count(Math.round(Number(value) * 100) / 100),
            title: 'how often each byte was used, on average',
          },
        ],
        rows: [...summary.by_tensor]
          .sort((a, b) => b.bytes - a.bytes)
          .map((row) => [
            row.name,
            row.component,
            row.layer,
            row.size_bytes,
            row.accesses,
            row.bytes,
            row.bytes / (row.size_bytes || 1),
          ]),
      };
  }
}

/** Columns of a query: numbers right, and in units where the name says which. */
function columnOf(column: { name: string; type: string }): Column {
  const isNumber = /int|float|double|decimal|number/i.test(column.type);
  const isBytes = isNumber && /bytes$/i.test(column.name);
  const isNanos = isNumber && /nanos$/i.test(column.name);
  return {
    name: column.name,
    title: `${column.name}: ${column.type}; click to sort`,
    isNumber,
    hasBar: isBytes || isNanos,
    show: isNumber
      ? (value) =>
          isBytes || isNanos || typeof value !== 'number'
            ? exactCell(value)
            : Number.isInteger(value)
              ? String(value)
              : String(Number(value.toPrecision(6)))
      : undefined,
  };
}

function exactCell(value: Cell): string {
  return typeof value === 'number' && Number.isInteger(value) ? format.integer(value) : String(value);
}

export function table(): View {
  return new Table();
}
