/** Attention: bytes of Q, K, V, O and of the KV cache, by layer and head, and how the cache grows. */
import { figures, fill, h, key, panel, picker, segmented, toolbar, type Picker, type Segmented } from '../dom';
import * as format from '../format';
import type { State } from '../state';
import type { Summary } from '../generated/index';
import type { App, View } from '../view';
import { bars, type Bar } from './parts/bars';
import { csv } from '../csv';
import { Lines } from './parts/lines';
import { Matrix, type MatrixSpot } from './parts/matrix';
import { paced, pacedChart } from './parts/paced';
import { Panels, Slot } from './parts/panels';
import type { Attention as Answer } from './parts/results';
import { legend, type Scale } from './parts/scale';

/** In the order of the computation; others follow by name. */
const ORDER = ['q', 'k', 'v', 'o', 'cache_k', 'cache_v'];
const NAMES: Record<string, string> = { q: 'Q', k: 'K', v: 'V', o: 'O', cache_k: 'K cache', cache_v: 'V cache' };
const UNITS = [
  { value: 'bytes', text: 'bytes', title: 'read and written' },
  { value: 'share', text: 'share', title: 'of the layer’s attention bytes' },
] as const;

class Attention implements View {
  readonly id = 'attention';
  readonly title = 'Attention';
  readonly key = '6';
  readonly help: [string, string][] = [
    ['click a layer', 'filter by it'],
    ['h', 'heads of the next projection'],
  ];
  private app!: App;
  private panels!: Panels;
  private unit!: Segmented;
  private of!: Picker;
  private totals = h('div');
  private layers = h('div');
  private heads!: Matrix;
  private growth!: Lines;
  private headLegend = h('div');
  private remark = h('p', { class: 'view-definition' });
  private slots!: { totals: Slot; layers: Slot; heads: Slot; growth: Slot };
  private answer: Answer | null = null;
  /** The heads that are shown, by cell. */
  private shown: { layers: number[]; count: number; spots: Map<number, Answer['heads'][number]> } | null = null;

  mount(root: HTMLElement, app: App): void {
    this.app = app;
    this.unit = segmented('length', UNITS, (value) => app.setOpt('attention.unit', value));
    this.of = picker('of', 'whose heads are shown', (value) => app.setOpt('attention.of', value));
    this.panels = new Panels(root, app, toolbar(this.unit.element));
    this.heads = this.panels.keep(
      new Matrix({
        hover: (spot, event) => this.hoverHead(spot, event),
        click: (spot) => this.filterLayer(this.shown?.layers[spot.row] ?? null),
      }),
    );
    this.growth = this.panels.keep(new Lines({ height: 280, isStepped: true }));
    this.slots = {
      totals: new Slot(this.totals),
      layers: new Slot(this.layers, 'analysing the run…'),
      heads: new Slot(this.heads.element, 'analysing the run…'),
      growth: new Slot(this.growth.element, 'analysing the run…'),
    };
    fill(
      this.panels.element,
      panel(
        'Share of attention',
        'Under the filter bar: bytes of attention weights and of the KV cache, of all bytes read and written.',
        this.slots.totals.element,
      ),
      panel(
        'By layer',
        'Whole run, layers of the filter bar. Bytes read and written by the Q, K, V and O projections (other attention weights by their role) and by the KV cache.',
        this.slots.layers.element,
      ),
      panel(
        'By head',
        'Whole run. A head of Q, K, V is a block of rows, of O a block of columns, of the cache its equal part of each row. Where a head ends inside a quantisation block both neighbours are given that block.',
        h('div', { class: 'view-toolbar-inner' }, this.of.element, this.headLegend),
        this.slots.heads.element,
        this.remark,
      ),
      panel('Growth of the KV cache', '', this.growth.caption, this.slots.growth.element),
    );
  }

  async update(state: State): Promise<void> {
    this.unit.set(state.opt['attention.unit'] === 'share' ? 'share' : 'bytes');
    const answer = paced(this.app, 'attention', () => this.app.api.attention<Answer>());
    // The analysis may take seconds the first time: its panels say so, the shares do not wait.
    void this.slots.layers.fill(answer, (one) => this.showLayers(one));
    void this.slots.heads.fill(answer, (one) => this.showHeads(one));
    void this.slots.growth.fill(pacedChart(this.app, 'kv-growth'), (chart) => {
      if (!chart) return 'no evaluation touched a KV cache';
      this.growth.show(chart, this.app.colours);
      return null;
    });
    await this.slots.totals.fill(this.app.api.summary(state.filter, 'attention'), (summary) =>
      this.showTotals(summary),
    );
  }

  unmount(): void {
    this.panels.destroy();
  }

  onKey(event: KeyboardEvent): boolean {
    if (event.key !== 'h' || event.ctrlKey || event.metaKey || event.altKey || !this.answer) return false;
    const kinds = ['all', ...kindsOf(this.answer)];
    const at = kinds.indexOf(this.app.state.opt['attention.of'] ?? 'all');
    this.app.setOpt('attention.of', kinds[(at + 1) % kinds.length] ?? null);
    return true;
  }

  exportCsv(): string {
    const rows = (this.answer?.heads ?? [])
      .filter((head) => this.keeps(head.layer))
      .map((head) => [head.layer, head.of, head.head, head.read_bytes, head.written_bytes]);
    return csv(['layer', 'of', 'head', 'read_bytes', 'written_bytes'], rows);
  }

  exportCanvas(): HTMLCanvasElement {
    return this.panels.picture();
  }

  private keeps(layer: number): boolean {
    const { layer: wanted } = this.app.state.filter;
    return wanted.length === 0 || wanted.includes(layer);
  }

  private filterLayer(layer: number | null): void {
    this.app.setFilter({ layer: [layer] });
  }

  private showTotals(summary: Summary): string | null {
    const all = summary.totals.bytes;
    if (all === 0) return 'no access passes this filter: press Esc to clear it';
    const of = (component: string) => summary.by_component.find((row) => row.component === component)?.bytes ?? 0;
    const [weights, cache] = [of('attention'), of('kv_cache')];
    const tokens = summary.totals.tokens || 1;
    const { colours } = this.app;
    fill(
      this.totals,
      figures(
        {
          value: format.percent((weights + cache) / all),
          name: 'of all bytes are attention',
          title: `${format.integer(weights + cache)} of ${format.integer(all)} bytes`,
        },
        {
          value: format.bytes(weights / tokens),
          name: 'attention weights per token',
          title: `${format.integer(weights)} bytes in ${format.integer(tokens)} tokens`,
        },
        {
          value: format.bytes(cache / tokens),
          name: 'KV cache per token',
          title: `${format.integer(cache)} bytes in ${format.integer(tokens)} tokens`,
        },
      ),
      key([
        { colour: colours.component('attention'), name: `attention weights ${format.percent(weights / all)}` },
        { colour: colours.component('kv_cache'), name: `KV cache ${format.percent(cache / all)}` },
        { colour: colours.line, name: `everything else ${format.percent((all - weights - cache) / all)}` },
      ]),
      bars(
        [
          {
            name: 'all bytes',
            label: format.bytes(all),
            parts: [
              { name: 'attention weights', value: weights, colour: colours.component('attention') },
              { name: 'KV cache', value: cache, colour: colours.component('kv_cache') },
              { name: 'everything else', value: all - weights - cache, colour: colours.line },
            ],
          },
        ],
        {
          hover: (event, _, part) =>
            this.tip(event, part.name, [
              ['bytes', format.bytes(part.value)],
              ['exactly', `${format.integer(part.value)} bytes`],
              ['of all', format.percent(part.value / all)],
            ]),
        },
      ),
    );
    return null;
  }

  private showLayers(answer: Answer): string | null {
    this.answer = answer;
    const kinds = kindsOf(answer);
    const layers = [...new Set(answer.heads.map((head) => head.layer))]
      .filter((layer) => this.keeps(layer))
      .sort((a, b) => a - b);
    if (layers.length === 0)
      return answer.heads.length === 0
        ? 'this run has no attention weights that divide into heads'
        : 'no layer of the filter has attention';
    const sums = new Map<string, number>();
    for (const head of answer.heads) {
      const at = `${head.layer}/${head.of}`;
      sums.set(at, (sums.get(at) ?? 0) + head.read_bytes + head.written_bytes);
    }
    const isShare = this.app.state.opt['attention.unit'] === 'share';
    const rows = layers.map((layer): Bar => {
      const values = kinds.map((kind) => sums.get(`${layer}/${kind}`) ?? 0);
      const all = values.reduce((sum, value) => sum + value, 0);
      return {
        name: `layer ${layer}`,
        label: format.bytes(all),
        onClick: () => this.filterLayer(layer),
        parts: kinds.map((kind, at) => ({
          name: kind,
          value: (values[at] ?? 0) / (isShare ? all || 1 : 1),
          colour: this.colour(kind),
        })),
      };
    });
    const total = answer.projections.reduce((sum, one) => sum + one.read_bytes + one.written_bytes, 0);
    fill(
      this.layers,
      key(
        kinds.map((kind) => {
          const one = answer.projections.find((projection) => projection.of === kind);
          const bytes = (one?.read_bytes ?? 0) + (one?.written_bytes ?? 0);
          return {
            colour: this.colour(kind),
            name: `${NAMES[kind] ?? kind}  ${format.bytes(bytes)}  ${format.percent(bytes / (total || 1))}`,
            title: `read ${format.integer(one?.read_bytes ?? 0)}, written ${format.integer(one?.written_bytes ?? 0)} bytes in the whole run`,
          };
        }),
      ),
      bars(rows, {
        most: isShare ? 1 : undefined,
        isDense: layers.length > 16,
        hover: (event, bar, part) => {
          const bytes = sums.get(`${bar.name.replace('layer ', '')}/${part.name}`) ?? 0;
          this.tip(event, `${bar.name}, ${NAMES[part.name] ?? part.name}`, [
            ['bytes', format.bytes(bytes)],
            ['exactly', `${format.integer(bytes)} bytes`],
          ]);
        },
      }),
    );
    return null;
  }

  private showHeads(answer: Answer): string | null {
    this.answer = answer;
    const kinds = kindsOf(answer);
    const wanted = this.app.state.opt['attention.of'] ?? 'all';
    const of = kinds.includes(wanted) ? wanted : 'all';
    this.of.set(
      [{ value: 'all', text: 'all of them' }, ...kinds.map((kind) => ({ value: kind, text: NAMES[kind] ?? kind }))],
      of,
    );
    this.remark.textContent =
      answer.unassigned_bytes > 0
        ? `${format.bytes(answer.unassigned_bytes)} of attention do not divide into heads.`
        : '';
    const shownKinds = kinds.filter((kind) => of === 'all' || kind === of);
    const heads = answer.heads.filter((head) => shownKinds.includes(head.of) && this.keeps(head.layer));
    fill(this.headLegend);
    if (heads.length === 0) return 'nothing divides into heads here';
    const layers = [...new Set(heads.map((head) => head.layer))].sort((a, b) => a - b);
    // Q may have more heads than K and V: each kind has columns of its own.
    const groups = shownKinds
      .map((kind) => ({
        kind,
        name: NAMES[kind] ?? kind,
        columns: heads.reduce((most, head) => (head.of === kind ? Math.max(most, head.head + 1) : most), 0),
      }))
      .filter((group) => group.columns > 0);
    const begins = new Map<string, number>();
    let count = 0;
    for (const group of groups) {
      begins.set(group.kind, count);
      count += group.columns;
    }
    const values = new Float32Array(layers.length * count).fill(Number.NaN);
    const spots = new Map<number, Answer['heads'][number]>();
    const rowOf = new Map(layers.map((layer, at) => [layer, at]));
    for (const head of heads) {
      const at = (rowOf.get(head.layer) ?? 0) * count + (begins.get(head.of) ?? 0) + head.head;
      values[at] = head.read_bytes + head.written_bytes;
      spots.set(at, head);
    }
    this.shown = { layers, count, spots };
    const most = values.reduce((all, value) => (value > all ? value : all), 0);
    const scale: Scale = { growth: 'linear', most, table: this.app.colours.counts };
    fill(this.headLegend, legend(scale, 'bytes', format.bytes));
    const columns = groups.flatMap((group) => [...Array(group.columns).keys()].map(String));
    this.heads.show(
      {
        rows: layers.map(String),
        columns,
        groups,
        rowTitle: 'layer',
        columnTitle: 'head',
        values,
        scale,
        format: (value) => format.bytes(value).replace(' ', '').replace('iB', ''),
      },
      this.app.colours,
      'bytes by layer and head',
    );
    return null;
  }

  private hoverHead(spot: MatrixSpot | null, event: PointerEvent): void {
    const { shown } = this;
    if (!spot || spot.column === null || !shown) return this.app.tooltip.hide();
    const head = shown.spots.get(spot.row * shown.count + spot.column);
    if (!head) return this.app.tooltip.hide();
    this.app.tooltip.show(
      event.clientX,
      event.clientY,
      `layer ${head.layer}, ${NAMES[head.of] ?? head.of}, head ${head.head}`,
      [
        ['read', `${format.bytes(head.read_bytes)} (${format.integer(head.read_bytes)})`],
        ['written', `${format.bytes(head.written_bytes)} (${format.integer(head.written_bytes)})`],
      ],
    );
  }

  private tip(event: PointerEvent | null, title: string, lines: [string, string][]): void {
    if (event) this.app.tooltip.show(event.clientX, event.clientY, title, lines);
    else this.app.tooltip.hide();
  }

  private colour(kind: string): string {
    const at = ORDER.indexOf(kind);
    return this.app.colours.category(at < 0 ? 7 : ([0, 1, 2, 3, 4, 5][at] ?? 7));
  }
}

function kindsOf(answer: Answer): string[] {
  const kinds = [...new Set([...answer.projections.map((one) => one.of), ...answer.heads.map((head) => head.of)])];
  const place = (kind: string) => (ORDER.includes(kind) ? ORDER.indexOf(kind) : ORDER.length);
  return kinds.sort((a, b) => place(a) - place(b) || (a < b ? -1 : 1));
}

export function attention(): View {
  return new Attention();
}
