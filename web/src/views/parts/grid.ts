/**
 * A table that sorts by a click on a heading and filters while one types. Only
 * the rows in sight are elements, so ten thousand rows scroll like ten.
 */
import { fill, h } from '../../dom';
import { csv, type Cell } from '../../csv';

export interface Column {
  name: string;
  title?: string;
  /** How a value is shown; the exact value is its tooltip and goes into CSV. */
  show?: (value: Cell) => string;
  /** Numbers stand on the right and begin with the largest when sorted. */
  isNumber?: boolean;
  /** A bar behind the number: its share of the column's largest. */
  hasBar?: boolean;
}

const ROW_PIXELS = 26;
const SPARE_ROWS = 8;

export class Grid {
  readonly element: HTMLElement;
  private readonly body: HTMLElement;
  private readonly head: HTMLElement;
  private readonly scroller: HTMLElement;
  private readonly spaceAbove: HTMLElement;
  private readonly spaceBelow: HTMLElement;
  private readonly count: HTMLElement;
  private readonly filterBox: HTMLInputElement;
  private columns: readonly Column[] = [];
  private rows: readonly (readonly Cell[])[] = [];
  private shown: number[] = [];
  private largest: number[] = [];
  private sorted: { column: number; descending: boolean } | null = null;
  private sentence = '';
  private frame = 0;
  private readonly watcher: ResizeObserver;

  constructor(
    private readonly onPick?: (row: readonly Cell[]) => void,
    private readonly pickTitle?: string,
  ) {
    this.filterBox = h('input', {
      type: 'search',
      class: 'view-grid-filter',
      placeholder: 'filter rows: text, or bytes > 1000',
      'aria-label': 'filter rows',
      title: 'keeps rows that hold this text; “column > number” (also <, >=, <=, =) compares a column',
      oninput: () => this.arrange(),
    });
    this.count = h('span', { class: 'view-grid-count' });
    this.head = h('div', { class: 'view-grid-head', role: 'row' });
    this.spaceAbove = h('div');
    this.spaceBelow = h('div');
    this.body = h('div', { role: 'rowgroup' });
    this.scroller = h(
      'div',
      { class: 'view-grid-scroll', tabindex: '0', role: 'table', onscroll: () => this.later() },
      this.head,
      this.spaceAbove,
      this.body,
      this.spaceBelow,
    );
    this.element = h(
      'div',
      { class: 'view-grid' },
      h('div', { class: 'view-grid-bar' }, this.filterBox, this.count),
      this.scroller,
    );
    this.watcher = new ResizeObserver(() => this.later());
    this.watcher.observe(this.scroller);
  }

  /** Shows other rows. Sorting and filter stay when the columns are the same. */
  show(columns: readonly Column[], rows: readonly (readonly Cell[])[], empty = ''): void {
    const isSame =
      columns.length === this.columns.length && columns.every((column, at) => column.name === this.columns[at]?.name);
    if (!isSame) this.sorted = null;
    this.columns = columns;
    this.sentence = empty;
    this.rows = rows;
    this.largest = columns.map((_, at) => rows.reduce((most, row) => Math.max(most, Number(row[at]) || 0), 0));
    this.element.style.setProperty(
      '--view-columns',
      columns.map((column) => (column.isNumber ? 'minmax(8em, 1fr)' : 'minmax(10em, 2fr)')).join(' '),
    );
    this.arrange();
  }

  toCsv(): string {
    return csv(
      this.columns.map((column) => column.name),
      this.shown.map((at) => this.rows[at] ?? []),
    );
  }

  destroy(): void {
    this.watcher.disconnect();
    cancelAnimationFrame(this.frame);
  }

  private arrange(): void {
    const keeps = rowFilter(this.filterBox.value, this.columns);
    this.shown = [];
    this.rows.forEach((row, at) => keeps(row) && this.shown.push(at));
    const sorted = this.sorted;
    if (sorted) {
      const sign = sorted.descending ? -1 : 1;
      this.shown.sort((a, b) => sign * order(this.rows[a]?.[sorted.column], this.rows[b]?.[sorted.column]) || a - b);
    }
    const all = this.rows.length.toLocaleString('en');
    this.filterBox.hidden = this.rows.length === 0;
    this.scroller.hidden = this.columns.length === 0;
    this.count.textContent =
      this.rows.length === 0
        ? this.sentence
        : this.shown.length === this.rows.length
          ? `${all} rows`
          : `${this.shown.length.toLocaleString('en')} of ${all} rows`;
    fill(this.head, ...this.columns.map((column, at) => this.heading(column, at)));
    this.draw();
  }

  private heading(column: Column, at: number): HTMLElement {
    const direction = this.sorted?.column === at ? (this.sorted.descending ? 'descending' : 'ascending') : 'none';
    const sort = (): void => {
      const first = column.isNumber === true;
      this.sorted =
        direction === 'none'
          ? { column: at, descending: first }
          : { column: at, descending: direction === 'ascending' };
      this.arrange();
    };
    const button = h(
      'button',
      { type: 'button', title: column.title ?? `sort by ${column.name}`, onclick: sort },
      column.name,
      direction === 'none' ? '' : direction === 'descending' ? ' ↓' : ' ↑',
    );
    return h(
      'div',
      { role: 'columnheader', 'aria-sort': direction, class: column.isNumber ? 'view-number' : null },
      button,
    );
  }

  private later(): void {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  private draw(): void {
    const height = this.scroller.clientHeight || 600;
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / ROW_PIXELS) - SPARE_ROWS);
    const last = Math.min(this.shown.length, first + Math.ceil(height / ROW_PIXELS) + 2 * SPARE_ROWS);
    this.spaceAbove.style.height = `${first * ROW_PIXELS}px`;
    this.spaceBelow.style.height = `${(this.shown.length - last) * ROW_PIXELS}px`;
    fill(this.body, ...this.shown.slice(first, last).map((at) => this.row(this.rows[at] ?? [])));
  }

  private row(values: readonly Cell[]): HTMLElement {
    const pick = this.onPick;
    const cells = this.columns.map((column, at) => {
      const value = values[at];
      const isMissing = value === null || value === undefined;
      const text = isMissing ? '–' : (column.show?.(value) ?? String(value));
      const cell = h(
        'div',
        { role: 'cell', class: column.isNumber ? 'view-number' : null, title: isMissing ? 'no value' : exact(value) },
        h('span', {}, text),
      );
      if (column.hasBar) {
        const bar = h('i', { class: 'view-cell-bar' });
        bar.style.width = `${(100 * (Number(value) || 0)) / (this.largest[at] || 1)}%`;
        cell.prepend(bar);
      }
      return cell;
    });
    return h(
      'div',
      {
        role: 'row',
        class: pick ? 'view-row view-row-pick' : 'view-row',
        title: this.pickTitle,
        onclick: pick && (() => pick(values)),
      },
      ...cells,
    );
  }
}

function exact(value: Cell): string {
  return typeof value === 'number' ? value.toLocaleString('en', { maximumFractionDigits: 9 }) : String(value);
}

function order(a: Cell, b: Cell): number {
  const [noA, noB] = [a === null || a === undefined, b === null || b === undefined];
  if (noA || noB) return Number(noB) - Number(noA);
  if (typeof a === 'number' && typeof b === 'number') return a - b;
  return String(a).localeCompare(String(b), 'en', { numeric: true });
}

/** `bytes > 1000` compares a column, anything else is searched for in the row. */
function rowFilter(text: string, columns: readonly Column[]): (row: readonly Cell[]) => boolean {
  const wanted = text.trim().toLowerCase();
  if (wanted === '') return () => true;
  const [, name, operator, operand] = /^(.+?)\s*(>=|<=|>|<|=)\s*(\S+)$/.exec(wanted) ?? [];
  const at = columns.findIndex((column) => column.name.toLowerCase() === name);
  if (at >= 0 && operand !== undefined) {
    const limit = Number(operand);
    const compare: Record<string, (value: number) => boolean> = {
      '>': (value) => value > limit,
      '<': (value) => value < limit,
      '>=': (value) => value >= limit,
      '<=': (value) => value <= limit,
    };
    const test = operator === undefined ? undefined : compare[operator];
    if (test) return (row) => row[at] !== null && row[at] !== undefined && test(Number(row[at]));
    return (row) => String(row[at] ?? '').toLowerCase() === operand;
  }
  return (row) =>
    row.some((value) =>
      String(value ?? '')
        .toLowerCase()
        .includes(wanted),
    );
}
