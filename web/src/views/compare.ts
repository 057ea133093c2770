/** Two runs side by side and as a difference: bytes and time per token, and token by token. */
import { withAlpha } from '../colours';
import { figures, fill, h, note, panel, picker, segmented, toolbar, type Picker, type Segmented } from '../dom';
import * as format from '../format';
import type { State } from '../state';
import type { Raster } from '../api';
import type { HeatmapHeader } from '../generated/index';
import type { App, View } from '../view';
import { bars } from './parts/bars';
import { csv, type Cell } from '../csv';
import { Matrix, type MatrixSpot } from './parts/matrix';
import { movedBars, showValue, signed, type Measure } from './parts/moved';
import { Panels, Slot } from './parts/panels';
import type { Comparison, Moved } from './parts/results';
import { legend, type Scale } from './parts/scale';

type Phase = Comparison['phases'][number];

const TABLES = [
  ['by_component', 'By component', 'component', 'Of weights; other tensors by their kind.'],
  ['by_op', 'By op', 'op', 'Operations of ggml.'],
  ['by_layer', 'By layer', 'layer', 'Where both runs are of the same model.'],
  ['by_source', 'By source of weights', 'source', 'Where fed weights came from; the time is what was waited for them.'],
  ['by_kind', 'By kind', 'kind', 'Weights, KV cache, inputs, activations. Time is not known by kind.'],
] as const;
/** Columns of the difference of heatmaps. */
const MAX_COLUMNS = 256;

interface Difference {
  rows: string[];
  columns: number;
  edges: number[];
  a: Float32Array;
  b: Float32Array;
  change: Float32Array;
}

class Compare implements View {
  readonly id = 'compare';
  readonly title = 'Compare';
  readonly key = '0';
  readonly help: [string, string][] = [
    ['b', 'bytes or time'],
    ['d', 'side by side, or the difference'],
    ['x', 'exchange the runs'],
  ];
  private app!: App;
  private panels!: Panels;
  private controls!: { a: Picker; b: Picker; measure: Segmented; mode: Segmented; phase: Segmented };
  private phaseHost = h('div');
  private totals = h('div');
  private tables = h('div', { class: 'view-pair view-pair-wrap' });
  private overlap = h('div');
  private overlapPanel!: HTMLElement;
  private matrix!: Matrix;
  private matrixLegend = h('div');
  private slots!: { tables: Slot; matrix: Slot };
  private answer: Comparison | null = null;
  private difference: Difference | null = null;
  private phases = '';

  mount(root: HTMLElement, app: App): void {
    this.app = app;
    this.answer = null;
    this.phases = '';
    const opt = (name: string) => (value: string) => app.setOpt(`compare.${name}`, value);
    this.controls = {
      a: picker('A', 'the run to compare with', opt('a')),
      b: picker('B', 'the run that is compared', opt('b')),
      measure: segmented(
        'per token',
        [
          { value: 'bytes', text: 'bytes', title: 'read and written, over tokens of the phase' },
          { value: 'nanos', text: 'time', title: 'of the nodes, over tokens of the phase' },
        ],
        opt('measure'),
      ),
      mode: segmented(
        'show',
        [
          { value: 'difference', text: 'difference', title: 'B less A' },
          { value: 'both', text: 'side by side', title: 'A above B' },
        ],
        opt('mode'),
      ),
      phase: segmented('phase', [], opt('phase')),
    };
    if (app.runs.length < 2) {
      this.panels = new Panels(root, app);
      fill(
        this.panels.element,
        note('This page shows one run. To compare two, open both: `tensorscope view RUN1 RUN2`.'),
      );
      return;
    }
    const bar = toolbar(
      this.controls.a.element,
      this.controls.b.element,
      this.phaseHost,
      this.controls.measure.element,
      this.controls.mode.element,
    );
    this.panels = new Panels(root, app, bar);
    this.matrix = this.panels.keep(new Matrix({ hover: (spot, event) => this.hover(spot, event) }));
    this.slots = {
      tables: new Slot(
        h(
          'div',
          { class: 'view-panels-inner' },
          panel(
            'Per token',
            'Bytes read and written, and time of the nodes, over the tokens of the phase. Whole runs: the filter bar does not apply.',
            this.totals,
          ),
          this.tables,
        ),
        'comparing the runs…',
      ),
      matrix: new Slot(this.matrix.element),
    };
    this.overlapPanel = panel(
      'Experts',
      'Per layer: the hot set of a run is its most chosen experts, as many as a token uses. Served: choices of B that fall on A’s hot set, of what B’s own hot set would serve.',
      this.overlap,
    );
    this.overlapPanel.hidden = true;
    fill(
      this.panels.element,
      this.slots.tables.element,
      panel(
        'Token by token',
        'B less A, by layer, tokens of equal number; columns of several tokens show their mean. Follows the filter bar, without its tokens.',
        this.matrixLegend,
        this.slots.matrix.element,
      ),
      this.overlapPanel,
    );
  }

  async update(state: State): Promise<void> {
    const { runs } = this.app;
    if (runs.length < 2) return;
    const [a, b] = this.pair(state);
    const options = runs.map((run) => ({
      value: String(run.run),
      text: !run.model || run.name === run.model ? run.name : `${run.name} (${run.model})`,
    }));
    this.controls.a.set(options, String(a));
    this.controls.b.set(options, String(b));
    this.controls.measure.set(this.measure());
    this.controls.mode.set(this.mode());
    void this.slots.matrix.fill(this.rasters(a, b), (both) => this.showMatrix(both));
    await this.slots.tables.fill(this.app.api.compare<Comparison>(a, b), (answer) => this.showTables(answer));
  }

  unmount(): void {
    this.panels.destroy();
  }

  onKey(event: KeyboardEvent): boolean {
    if (event.ctrlKey || event.metaKey || event.altKey || this.app.runs.length < 2) return false;
    const [a, b] = this.pair(this.app.state);
    switch (event.key) {
      case 'b':
        this.app.setOpt('compare.measure', this.measure() === 'bytes' ? 'nanos' : 'bytes');
        return true;
      case 'd':
        this.app.setOpt('compare.mode', this.mode() === 'both' ? 'difference' : 'both');
        return true;
      case 'x':
        this.app.setState({ opt: { ...this.app.state.opt, 'compare.a': String(b), 'compare.b': String(a) } });
        return true;
      default:
        return false;
    }
  }

  exportCsv(): string {
    const rows: Cell[][] = [];
    for (const phase of this.answer?.phases ?? []) {
      const lists: [string, Moved[]][] = [
        ['total', [phase.total]],
        ...TABLES.map(([name]): [string, Moved[]] => [name, phase[name] ?? []]),
      ];
      for (const [name, list] of lists) {
        for (const one of list)
          rows.push([
            phase.phase,
            name,
            one.name,
            one.a_bytes_per_token,
            one.b_bytes_per_token,
            one.bytes_change,
            one.bytes_ratio,
            one.a_nanos_per_token,
            one.b_nanos_per_token,
            one.nanos_change,
            one.nanos_ratio,
          ]);
      }
    }
    return csv(
      [
        'phase',
        'by',
        'name',
        'a_bytes_per_token',
        'b_bytes_per_token',
        'bytes_change',
        'bytes_ratio',
        'a_nanos_per_token',
        'b_nanos_per_token',
        'nanos_change',
        'nanos_ratio',
      ],
      rows,
    );
  }

  exportCanvas(): HTMLCanvasElement {
    return this.panels.picture();
  }

  /** The runs of the link; else the one that is open and another. */
  private pair(state: State): [number, number] {
    const numbers = this.app.runs.map((run) => run.run);
    const of = (name: string) => numbers.find((run) => String(run) === state.opt[`compare.${name}`]);
    const a =
      of('a') ??
      numbers.find((run) => run !== of('b') && run === state.run) ??
      numbers.find((run) => run !== of('b')) ??
      0;
    const b = of('b') ?? numbers.find((run) => run !== a) ?? 0;
    return [a, b];
  }

  private measure(): Measure {
    return this.app.state.opt['compare.measure'] === 'nanos' ? 'nanos' : 'bytes';
  }

  private mode(): 'difference' | 'both' {
    return this.app.state.opt['compare.mode'] === 'both' ? 'both' : 'difference';
  }

  private showTables(answer: Comparison): string | null {
    this.answer = answer;
    if (answer.phases.length === 0) return 'the runs have no phase in common: there is nothing to compare per token';
    const names = answer.phases.map((phase) => phase.phase);
    const wanted = this.app.state.opt['compare.phase'] ?? this.app.state.filter.phase ?? 'generate';
    const phase = (answer.phases.find((one) => one.phase === wanted) ?? answer.phases[0]) as Phase;
    if (names.join() !== this.phases) {
      this.phases = names.join();
      this.controls.phase = segmented(
        'phase',
        names.map((value) => ({ value, text: value })),
        (value) => this.app.setOpt('compare.phase', value),
      );
      fill(this.phaseHost, this.controls.phase.element);
    }
    this.controls.phase.set(phase.phase);
    this.showTotals(phase);
    fill(
      this.tables,
      ...TABLES.map(([name, title, noun, definition]) => {
        const list = phase[name];
        // Most runs are not fed.
        if (name === 'by_source' && !list) return null;
        if (name === 'by_kind' && this.measure() === 'nanos') return null;
        return panel(
          title,
          definition,
          list
            ? movedBars(list, noun, { measure: this.measure(), mode: this.mode() }, this.app)
            : note(`the runs are of models with different layers: they cannot be compared by ${noun}`),
        );
      }),
    );
    this.overlapPanel.hidden = answer.experts.length === 0;
    fill(
      this.overlap,
      bars(
        answer.experts.map((one) => ({
          name: `layer ${one.layer}`,
          label: `${format.percent(one.share_served)} of ${format.percent(one.best_share)} · overlap ${one.jaccard.toFixed(2)}`,
          parts: [
            { name: 'served', value: one.share_served, colour: this.app.colours.category(0) },
            {
              name: 'missed',
              value: Math.max(0, one.best_share - one.share_served),
              colour: withAlpha(this.app.colours.category(0), 0.3),
            },
          ],
        })),
        { most: 1, isDense: answer.experts.length > 16 },
      ),
    );
    return null;
  }

  private showTotals(phase: Phase): void {
    const { total } = phase;
    const ratio = (value: number | null) => (value === null ? '–' : `${value.toFixed(value < 10 ? 2 : 1)}×`);
    const [bytes, nanos] = [format.bytes, format.nanos];
    fill(
      this.totals,
      figures(
        {
          value: `${bytes(total.a_bytes_per_token)} → ${bytes(total.b_bytes_per_token)}`,
          name: 'bytes per token, A → B',
          title: `${format.integer(total.a_bytes_per_token)} → ${format.integer(total.b_bytes_per_token)}`,
        },
        { value: ratio(total.bytes_ratio), name: 'bytes, B over A' },
        {
          value: `${nanos(total.a_nanos_per_token)} → ${nanos(total.b_nanos_per_token)}`,
          name: 'time per token, A → B',
          title: `${format.integer(total.a_nanos_per_token)} → ${format.integer(total.b_nanos_per_token)} ns`,
        },
        { value: ratio(total.nanos_ratio), name: 'time, B over A' },
        {
          value: `${format.integer(phase.a_tokens)} · ${format.integer(phase.b_tokens)}`,
          name: `tokens of ${phase.phase}, A · B`,
        },
      ),
    );
  }

  /** Both runs' tokens × layers, over the tokens that both have. */
  private async rasters(a: number, b: number): Promise<Raster<HeatmapHeader>[] | string> {
    const tokens = await Promise.all(
      [a, b].map(
        async (run) => (run === this.app.state.run ? this.app.info : await this.app.api.info(run)).totals.tokens,
      ),
    );
    const common = Math.min(...tokens);
    if (common === 0) return 'one of the runs has no tokens: there is nothing to compare token by token';
    const query = {
      rows: 'layer',
      metric: this.measure(),
      from: 0,
      to: common - 1,
      columns: Math.min(common, MAX_COLUMNS),
    };
    const filter = { ...this.app.state.filter, tokens: null };
    return Promise.all(
      [a, b].map((run, at) => this.app.api.raster<HeatmapHeader>(`api/${run}/heatmap`, query, `compare-${at}`, filter)),
    );
  }

  private showMatrix(both: Raster<HeatmapHeader>[] | string): string | null {
    fill(this.matrixLegend);
    this.difference = null;
    if (typeof both === 'string') return both;
    const [a, b] = both;
    if (!a || !b) return null;
    const labels = [...new Map([...a.header.rows, ...b.header.rows].map((row) => [row.layer, row])).keys()].sort(
      (x, y) => (x ?? Infinity) - (y ?? Infinity),
    );
    const columns = Math.min(a.header.columns, b.header.columns);
    if (columns === 0 || labels.length === 0) return 'no access passes this filter: press Esc to clear it';
    const spread = (raster: Raster<HeatmapHeader>): Float32Array => {
      const out = new Float32Array(labels.length * columns);
      raster.header.rows.forEach((row, at) => {
        const place = labels.indexOf(row.layer);
        for (let column = 0; column < columns; column++)
          out[place * columns + column] = raster.values[at * raster.header.columns + column] ?? 0;
      });
      return out;
    };
    const [va, vb] = [spread(a), spread(b)];
    const change = vb.map((value, at) => value - (va[at] ?? 0));
    const most = change.reduce((all, value) => Math.max(all, Math.abs(value)), 0);
    if (most === 0)
      return `no difference: every token and layer has the same ${this.measure() === 'bytes' ? 'bytes' : 'time'} in both runs`;
    const rows = labels.map((layer) => (layer === null ? 'none' : String(layer)));
    this.difference = { rows, columns, edges: a.header.edges, a: va, b: vb, change };
    // Times differ by decades: the root keeps small differences in sight.
    const scale: Scale = {
      growth: this.measure() === 'nanos' ? 'sqrt' : 'linear',
      most,
      table: this.app.colours.difference,
      isDiverging: true,
    };
    fill(
      this.matrixLegend,
      legend(scale, `${this.measure() === 'bytes' ? 'bytes' : 'time'} per token, B − A`, (value) =>
        showValue(this.measure(), value),
      ),
    );
    this.matrix.show(
      {
        rows,
        columns: [...Array(columns).keys()].map((at) => format.integer(a.header.edges[at] ?? at)),
        rowTitle: 'layer',
        columnTitle: 'token',
        values: change,
        scale,
        format: () => '',
      },
      this.app.colours,
      'difference by token and layer',
    );
    return null;
  }

  private hover(spot: MatrixSpot | null, event: PointerEvent): void {
    const { difference: of } = this;
    if (!spot || spot.column === null || !of) return this.app.tooltip.hide();
    const at = spot.row * of.columns + spot.column;
    const [first, end] = [of.edges[spot.column] ?? 0, of.edges[spot.column + 1] ?? 0];
    const layer = of.rows[spot.row] === 'none' ? 'no layer' : `layer ${of.rows[spot.row]}`;
    this.app.tooltip.show(
      event.clientX,
      event.clientY,
      `${layer}, ${end - first > 1 ? `tokens ${first}–${end - 1} (mean)` : `token ${first}`}`,
      [
        ['A', showValue(this.measure(), of.a[at] ?? 0)],
        ['B', showValue(this.measure(), of.b[at] ?? 0)],
        ['B − A', signed(this.measure(), of.change[at] ?? 0)],
      ],
    );
  }
}

export function compare(): View {
  return new Compare();
}
