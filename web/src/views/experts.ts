/**
 * Mixture of experts: who is used how much, together with whom, by which
 * tokens, and what a cache of experts would save.
 */
import { fill, h, note, panel, picker, segmented, toolbar, type Picker, type Segmented } from '../dom';
import * as format from '../format';
import type { State } from '../state';
import type { Experts as Answer, Info } from '../generated/index';
import type { Preference } from './parts/results';
import type { App, View } from '../view';
import type { Cell } from '../csv';
import { csv } from '../csv';
import { Grid } from './parts/grid';
import { Lines } from './parts/lines';
import { Matrix, type MatrixSpot } from './parts/matrix';
import { paced, pacedChart } from './parts/paced';
import { Panels, Slot } from './parts/panels';
import type { Scope } from './parts/results';
import { GROWTHS, isGrowth, legend, type Scale } from './parts/scale';

type Layer = Answer['layers'][number];

const HEATS = [
  {
    value: 'temperature',
    text: 'temperature',
    title: 'share of the layer’s choices × number of experts: 1 is the average expert',
  },
  { value: 'tokens', text: 'tokens', title: 'tokens routed to the expert' },
  { value: 'weight', text: 'router weight', title: 'mean weight that the router gave the expert' },
] as const;
const TOGETHER = [
  { value: 'count', text: 'tokens', title: 'tokens that chose both experts' },
  { value: 'lift', text: 'lift', title: 'tokens that chose both, over what chance would give: 1 is chance' },
] as const;
class Experts implements View {
  readonly id = 'experts';
  readonly title = 'Experts';
  readonly key = '5';
  readonly help: [string, string][] = [
    ['click a cell', 'choose layer and expert'],
    ['↑ ↓', 'layer before, layer after'],
    ['enter', 'filter everything by the chosen expert'],
  ];
  private app!: App;
  private root!: HTMLElement;
  private isDense = false;
  private panels!: Panels;
  private controls!: {
    heat: Segmented;
    growth: Segmented;
    together: Segmented;
    pool: Segmented;
    scope: Segmented;
    layer: Picker;
  };
  private grid!: Matrix;
  private pairs!: Matrix;
  private prefers!: Grid;
  private hits!: Lines;
  private slots!: { grid: Slot; pairs: Slot; prefers: Slot; hits: Slot };
  private heatLegend = h('div');
  private pairLegend = h('div');
  private pairTitle = h('p', { class: 'view-definition' });
  private chosenButton!: HTMLButtonElement;
  private answer: Answer | null = null;
  private chosen: { layer: number; expert: number | null } = { layer: 0, expert: null };

  lacks(info: Info): string | null {
    if (info.experts > 0) return null;
    return `${info.model.name ?? 'This'} is a dense model: every token uses all weights, there are no experts to compare.`;
  }

  mount(root: HTMLElement, app: App): void {
    this.app = app;
    this.root = root;
    this.answer = null;
    const lacks = this.lacks(app.info);
    this.isDense = lacks !== null;
    const opt = (name: string) => (value: string) => app.setOpt(`experts.${name}`, value);
    this.controls = {
      heat: segmented('colour', HEATS, opt('heat')),
      growth: segmented('scale', GROWTHS, opt('scale')),
      together: segmented('colour', TOGETHER, opt('pairs')),
      pool: segmented(
        'slots',
        [
          { value: 'per_layer', text: 'per layer', title: 'each layer has slots of its own' },
          { value: 'global', text: 'one pool', title: 'all layers share the slots' },
        ],
        opt('pool'),
      ),
      scope: segmented(
        'of',
        [
          {
            value: 'generate',
            text: 'generated tokens',
            title: 'uses by evaluations that generate; the cache sees the prompt too',
          },
          { value: 'run', text: 'whole run', title: 'all uses' },
        ],
        opt('scope'),
      ),
      layer: picker('layer', 'layer whose experts are shown below', opt('layer')),
    };
    if (lacks !== null) {
      this.panels = new Panels(root, app);
      fill(this.panels.element, note(lacks));
      return;
    }
    const bar = toolbar(this.controls.heat.element, this.controls.growth.element, this.heatLegend);
    this.panels = new Panels(root, app, bar);
    this.grid = this.panels.keep(
      new Matrix({ hover: (spot, event) => this.hoverGrid(spot, event), click: (spot) => this.choose(spot) }),
    );
    this.pairs = this.panels.keep(
      new Matrix({
        hover: (spot, event) => this.hoverPair(spot, event),
        click: (spot) => this.app.setOpt('experts.expert', String(spot.row)),
      }),
    );
    this.prefers = this.panels.keep(new Grid());
    this.hits = this.panels.keep(new Lines({ height: 300 }));
    this.slots = {
      grid: new Slot(this.grid.element),
      pairs: new Slot(this.pairs.element),
      prefers: new Slot(this.prefers.element, 'analysing the run…'),
      hits: new Slot(this.hits.element, 'simulating caches…'),
    };
    this.slots.prefers.element.classList.add('view-fills');
    this.chosenButton = h(
      'button',
      { type: 'button', class: 'view-primary', onclick: () => this.filterByChosen() },
      'filter',
    );
    fill(
      this.panels.element,
      panel(
        'Temperature',
        'Tokens that each layer’s router sent to each expert. Entropy: −Σ p ln p / ln n, 1 is even, 0 is always the same expert. Busiest / mean: choices of the busiest expert over the average.',
        this.slots.grid.element,
      ),
      h('div', { class: 'view-toolbar-inner' }, this.controls.layer.element, this.chosenButton),
      h(
        'div',
        { class: 'view-pair' },
        panel(
          'Chosen together',
          '',
          this.pairTitle,
          h('div', { class: 'view-toolbar-inner' }, this.controls.together.element, this.pairLegend),
          this.slots.pairs.element,
        ),
        panel(
          'Tokens that experts prefer',
          'Whole run. Lift: how often a token chose the expert of the times it came to the layer, over how often tokens choose it in general. Tokens that came fewer than 3 times are left out.',
          this.slots.prefers.element,
        ),
      ),
      panel(
        'Hit rate of an expert cache',
        'A slot holds one expert of one layer; one use per evaluation, layer and distinct expert.',
        this.hits.caption,
        h('div', { class: 'view-toolbar-inner' }, this.controls.pool.element, this.controls.scope.element),
        this.slots.hits.element,
      ),
    );
  }

  async update(state: State): Promise<void> {
    // Of a live run the first routing may be yet to come when the view opens.
    if (this.isDense && this.app.info.experts > 0) {
      fill(this.root);
      this.mount(this.root, this.app);
    }
    if (this.isDense) return;
    this.controls.heat.set(this.heat());
    this.controls.growth.set(this.growth());
    this.controls.together.set(state.opt['experts.pairs'] === 'lift' ? 'lift' : 'count');
    this.controls.pool.set(this.pool());
    this.controls.scope.set(this.scope());
    const layers = this.app.info.layers.filter((layer): layer is number => layer !== null);
    const wanted = Number(
      state.opt['experts.layer'] ?? state.filter.layer.find((layer) => layer !== null) ?? layers[0] ?? 0,
    );
    const expert = state.opt['experts.expert'];
    this.chosen = { layer: wanted, expert: expert === undefined ? null : Number(expert) };
    this.controls.layer.set(
      layers.map((layer) => ({ value: String(layer), text: `layer ${layer}` })),
      String(wanted),
    );
    this.chosenButton.textContent =
      this.chosen.expert === null
        ? `Filter all views by layer ${wanted}`
        : `Filter all views by layer ${wanted}, expert ${this.chosen.expert}`;
    // The analyses may take seconds the first time: their panels say so, the others do not wait.
    void this.slots.prefers.fill(
      paced(this.app, 'prefers', () => this.app.api.prefers()),
      (answer) => this.showPrefers(answer),
    );
    void this.slots.hits.fill(
      pacedChart(this.app, 'expert-cache', { pool: this.pool(), scope: this.scope() }),
      (chart) => {
        if (!chart) return 'no expert was used in this run';
        this.hits.show(chart, this.app.colours);
        return null;
      },
    );
    await this.slots.grid.fill(this.app.api.experts(state.filter), (answer) => this.showGrid(answer));
  }

  unmount(): void {
    this.panels.destroy();
  }

  onKey(event: KeyboardEvent): boolean {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.answer) return false;
    const layers = this.answer.layers;
    const at = layers.findIndex((layer) => layer.layer === this.chosen.layer);
    const step = event.key === 'ArrowDown' ? 1 : event.key === 'ArrowUp' ? -1 : 0;
    if (step !== 0) {
      const next = layers[Math.max(0, Math.min(layers.length - 1, at + step))];
      if (next) this.app.setOpt('experts.layer', String(next.layer), { replace: true });
      return true;
    }
    if (event.key !== 'Enter') return false;
    this.filterByChosen();
    return true;
  }

  exportCsv(): string {
    const rows = (this.answer?.layers ?? []).flatMap((layer) =>
      layer.experts.map((expert): Cell[] => [
        layer.layer,
        expert.expert,
        expert.tokens,
        expert.temperature,
        expert.mean_weight,
        layer.normalised_entropy,
        layer.max_over_mean,
      ]),
    );
    return csv(
      ['layer', 'expert', 'tokens', 'temperature', 'mean_weight', 'layer_normalised_entropy', 'layer_max_over_mean'],
      rows,
    );
  }

  exportCanvas(): HTMLCanvasElement {
    return this.panels.picture();
  }

  private heat(): 'temperature' | 'tokens' | 'weight' {
    const value = this.app.state.opt['experts.heat'];
    return value === 'tokens' || value === 'weight' ? value : 'temperature';
  }

  private growth(): Scale['growth'] {
    const value = this.app.state.opt['experts.scale'];
    return isGrowth(value) ? value : 'linear';
  }

  private pool(): 'global' | 'per_layer' {
    return this.app.state.opt['experts.pool'] === 'global' ? 'global' : 'per_layer';
  }

  private scope(): Scope {
    return this.app.state.opt['experts.scope'] === 'run' ? 'run' : 'generate';
  }

  private choose(spot: MatrixSpot): void {
    const layer = this.answer?.layers[spot.row];
    if (!layer) return;
    const opt: Record<string, string> = { ...this.app.state.opt, 'experts.layer': String(layer.layer) };
    if (spot.column === null) delete opt['experts.expert'];
    else opt['experts.expert'] = String(spot.column);
    this.app.setState({ opt });
  }

  private filterByChosen(): void {
    const { layer, expert } = this.chosen;
    this.app.setFilter({ layer: [layer], expert: expert === null ? [] : [expert] });
  }

  private showGrid(answer: Answer): string | null {
    this.answer = answer;
    const { layers } = answer;
    const total = layers.reduce((all, layer) => all + layer.experts.reduce((sum, expert) => sum + expert.tokens, 0), 0);
    fill(this.heatLegend);
    if (layers.length === 0 || total === 0) {
      this.slots.pairs.say(note('no token was routed under this filter'));
      return 'no token was routed under this filter: press Esc to clear it';
    }
    const count = Math.max(
      ...layers.map((layer) => layer.experts.reduce((most, expert) => Math.max(most, expert.expert + 1), 0)),
    );
    const values = new Float32Array(layers.length * count).fill(Number.NaN);
    const heat = this.heat();
    layers.forEach((layer, row) => {
      for (const expert of layer.experts) {
        const value =
          heat === 'tokens' ? expert.tokens : heat === 'weight' ? (expert.mean_weight ?? 0) : expert.temperature;
        values[row * count + expert.expert] = value;
      }
    });
    const most = values.reduce((all, value) => (value > all ? value : all), 0);
    const scale: Scale = { growth: this.growth(), most, table: this.app.colours.counts };
    const show = heat === 'tokens' ? format.count : (value: number) => value.toFixed(2);
    fill(this.heatLegend, legend(scale, HEATS.find((one) => one.value === heat)?.text ?? '', show));
    const row = layers.findIndex((layer) => layer.layer === this.chosen.layer);
    this.grid.show(
      {
        rows: layers.map((layer) => String(layer.layer)),
        columns: [...Array(count).keys()].map(String),
        rowTitle: 'layer',
        columnTitle: 'expert',
        values,
        scale,
        format: show,
        selected: { row: row < 0 ? null : row, column: this.chosen.expert },
        sides: [
          {
            title: 'entropy',
            values: layers.map((layer) => layer.normalised_entropy),
            most: 1,
            colour: this.app.colours.category(0),
            format: (value) => value.toFixed(2),
          },
          {
            title: 'busiest / mean',
            values: layers.map((layer) => layer.max_over_mean),
            most: Math.max(1, ...layers.map((layer) => layer.max_over_mean)),
            colour: this.app.colours.category(1),
            format: (value) => value.toFixed(2),
          },
        ],
      },
      this.app.colours,
      'temperature of experts by layer',
    );
    const layer = layers[Math.max(0, row)];
    if (layer) void this.slots.pairs.fill(Promise.resolve(layer), (one) => this.showPairs(one, count));
    return null;
  }

  private showPairs(layer: Layer, count: number): string | null {
    this.pairTitle.textContent = `Experts of layer ${layer.layer} that were chosen for the same token. Lift: tokens over choices(a) · choices(b) / tokens; 1 is chance.`;
    fill(this.pairLegend);
    if (layer.pairs.length === 0)
      return `no two experts of layer ${layer.layer} were chosen together under this filter`;
    const isLift = this.app.state.opt['experts.pairs'] === 'lift';
    const values = new Float32Array(count * count);
    for (let at = 0; at < count; at++) values[at * count + at] = Number.NaN;
    for (const pair of layer.pairs) {
      const value = isLift ? pair.lift : pair.count;
      values[pair.a * count + pair.b] = value;
      values[pair.b * count + pair.a] = value;
    }
    const most = values.reduce((all, value) => (value > all ? value : all), 0);
    const scale: Scale = { growth: isLift ? 'linear' : this.growth(), most, table: this.app.colours.counts };
    const show = isLift ? (value: number) => value.toFixed(2) : format.count;
    fill(this.pairLegend, legend(scale, isLift ? 'lift' : 'tokens', show));
    const names = [...Array(count).keys()].map(String);
    this.pairs.show(
      {
        rows: names,
        columns: names,
        rowTitle: 'expert',
        columnTitle: 'expert',
        values,
        scale,
        format: show,
        isSquare: true,
        selected: { row: this.chosen.expert, column: null },
      },
      this.app.colours,
      `experts of layer ${layer.layer} chosen together`,
    );
    return null;
  }

  private showPrefers(answer: readonly Preference[]): string | null {
    const { layer, expert } = this.chosen;
    const own = answer.filter((one) => one.layer === layer && (expert === null || one.expert === expert));
    const rows = own.flatMap((one) =>
      one.prefers.map((token): Cell[] => [
        one.expert,
        format.tokenText(token.text ?? `#${token.token_id}`),
        token.choices,
        token.occurrences,
        token.lift,
      ]),
    );
    if (rows.length === 0)
      return `no token came to layer ${layer} three times or more${expert === null ? '' : ` and chose expert ${expert}`}`;
    this.prefers.show(
      [
        { name: 'expert', isNumber: true },
        { name: 'token', title: 'its text; · is a space, ↵ a new line' },
        { name: 'choices', isNumber: true, title: 'times this token chose the expert' },
        { name: 'of', isNumber: true, title: 'times this token came to the layer' },
        {
          name: 'lift',
          isNumber: true,
          hasBar: true,
          show: (value) => Number(value).toFixed(2),
          title: 'over how often tokens choose this expert in general',
        },
      ],
      rows,
    );
    return null;
  }

  private hoverGrid(spot: MatrixSpot | null, event: PointerEvent): void {
    const layer = spot && this.answer?.layers[spot.row];
    if (!spot || !layer) return this.app.tooltip.hide();
    if (spot.column === null) {
      return this.app.tooltip.show(event.clientX, event.clientY, `layer ${layer.layer}`, [
        ['normalised entropy', layer.normalised_entropy.toFixed(4)],
        ['busiest / mean', layer.max_over_mean.toFixed(3)],
      ]);
    }
    const expert = layer.experts.find((one) => one.expert === spot.column);
    const tokens = expert?.tokens ?? 0;
    const all = layer.experts.reduce((sum, one) => sum + one.tokens, 0);
    this.app.tooltip.show(event.clientX, event.clientY, `layer ${layer.layer}, expert ${spot.column}`, [
      ['tokens', format.integer(tokens)],
      ['share of choices', format.percent(tokens / (all || 1))],
      ['temperature', (expert?.temperature ?? 0).toFixed(3)],
      [
        'mean router weight',
        expert?.mean_weight === null || expert === undefined ? '–' : expert.mean_weight.toFixed(4),
      ],
    ]);
  }

  private hoverPair(spot: MatrixSpot | null, event: PointerEvent): void {
    const layer = this.answer?.layers.find((one) => one.layer === this.chosen.layer) ?? this.answer?.layers[0];
    if (!spot || !layer || spot.column === null || spot.row === spot.column) return this.app.tooltip.hide();
    const [a, b] = [Math.min(spot.row, spot.column), Math.max(spot.row, spot.column)];
    const pair = layer.pairs.find((one) => (one.a === a && one.b === b) || (one.a === b && one.b === a));
    this.app.tooltip.show(event.clientX, event.clientY, `layer ${layer.layer}: experts ${a} and ${b}`, [
      ['tokens', format.integer(pair?.count ?? 0)],
      ['lift', pair ? pair.lift.toFixed(3) : '–'],
    ]);
  }
}

export function experts(): View {
  return new Experts();
}
