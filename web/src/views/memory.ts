/**
 * Memory: what a budget of it would save, under which policy.
 *
 * The results are those of the analysis, at the budgets that it judged: the
 * slider stops there, and nothing is interpolated.
 */
import { figures, fill, h, panel, segmented, toolbar, type Segmented } from '../dom';
import * as format from '../format';
import type { LineChart } from '../generated/charts';
import type { State } from '../state';
import type { App, View } from '../view';
import { bars, type Bar } from './parts/bars';
import { csv, type Cell } from '../csv';
import { Lines } from './parts/lines';
import { outlook, reuseChart } from './parts/outlook';
import { paced, pacedChart } from './parts/paced';
import { places } from './parts/places';
import { Panels, Slot } from './parts/panels';
import {
  POLICIES,
  type Curves,
  type DeviceMemory,
  type Memory as Answer,
  type Policy,
  type Reuse,
  type Scope,
} from './parts/results';

const NO_SPEEDS =
  'The speeds of disk and memory are not known. Measure them with `tensorscope bench ceilings -m MODEL -o ceilings.json`, then open this page with `tensorscope view RUN --ceilings ceilings.json`.';
const NO_CACHES =
  'Caches and budgets are computed for runs in which only the processor computed: what a device reads of its own memory misses no cache of the host’s.';
const POLICY_NAMES: Record<Policy, string> = { lru: 'LRU', belady: 'Belady', pin_and_stream: 'pin and stream' };
class Memory implements View {
  readonly id = 'memory';
  readonly title = 'Memory';
  readonly key = '7';
  readonly help: [string, string][] = [
    ['← →', 'less, more memory'],
    ['click a curve', 'budget at that point'],
  ];
  private app!: App;
  private panels!: Panels;
  private controls!: { grain: Segmented; scope: Segmented; measure: Segmented };
  private slider!: HTMLInputElement;
  private budgetText = h('output', { class: 'view-budget' });
  private places = h('div', { class: 'view-pair' });
  private placed = h('div', { class: 'view-panels-inner', hidden: true }, this.places);
  private outlook = h('div');
  private policies = h('div');
  private reuse = h('div');
  private windows = h('div');
  private curves!: Lines;
  private disk!: Lines;
  private speed!: Lines;
  private growth!: Lines;
  private speedSlot!: Slot;
  private all!: Slot;
  private answer: Answer | null = null;
  private drawn = '';

  mount(root: HTMLElement, app: App): void {
    this.app = app;
    this.drawn = '';
    const opt = (name: string) => (value: string) => app.setOpt(`memory.${name}`, value);
    this.controls = {
      grain: segmented(
        'cache of',
        [
          { value: 'unit', text: 'units', title: 'a weight, or one expert’s slice of it' },
          { value: 'page', text: 'pages', title: 'pages of 4096 bytes of the model’s files' },
        ],
        opt('grain'),
      ),
      scope: segmented(
        'over',
        [
          {
            value: 'generate',
            text: 'generated tokens',
            title: 'evaluations that generate; the cache sees the prompt too',
          },
          { value: 'run', text: 'whole run', title: 'prompt and generated tokens' },
        ],
        opt('scope'),
      ),
      measure: segmented(
        'in',
        [
          { value: 'bytes', text: 'bytes', title: 'bytes missed over bytes read' },
          { value: 'accesses', text: 'accesses', title: 'misses over accesses' },
        ],
        opt('measure'),
      ),
    };
    this.slider = h('input', {
      type: 'range',
      min: 0,
      max: 0,
      step: 1,
      class: 'view-slider',
      'aria-label': 'memory for weights',
      oninput: () => this.setBudget(Number(this.slider.value)),
    });
    this.panels = new Panels(root, app);
    const lines = (height: number, onClick?: (x: number) => void): Lines =>
      this.panels.keep(new Lines({ height, onClick }));
    const choose = (x: number) => this.setBudget(this.nearest(x));
    this.curves = lines(270, choose);
    this.disk = lines(270, choose);
    this.speed = lines(270, choose);
    this.growth = lines(240);
    this.speedSlot = new Slot(this.speed.element);
    const content = h(
      'div',
      { class: 'view-panels-inner' },
      panel(
        'What if weights had this much memory?',
        'Per generated token, first uses included; the paler part of a bar is known only once the router has chosen. Hatched: does not fit, with more memory it would. Without a bar: does not apply to this model. Predicted speeds are ceilings: the disk at its sequential speed, no read-ahead.',
        h('div', { class: 'view-slider-row' }, this.slider, this.budgetText),
        this.outlook,
      ),
      h(
        'div',
        { class: 'view-pair' },
        panel('Disk reads', '', this.disk.caption, this.disk.element),
        panel('Predicted speed', '', this.speed.caption, this.speedSlot.element),
      ),
      panel(
        'Miss-ratio curves',
        '',
        this.curves.caption,
        toolbar(this.controls.grain.element, this.controls.scope.element, this.controls.measure.element),
        this.policies,
        this.curves.element,
      ),
      h(
        'div',
        { class: 'view-pair' },
        panel(
          'Reuse distance',
          'Distinct bytes of other items that were used since an item was last used. A cache smaller than that loses it under LRU. Follows the choices above.',
          this.reuse,
        ),
        panel(
          'Working set',
          'Below: in windows of evaluations that follow each other.',
          this.growth.caption,
          this.growth.element,
          this.windows,
        ),
      ),
    );
    this.all = new Slot(content, '');
    this.panels.element.append(this.placed, this.all.element);
  }

  async update(state: State): Promise<void> {
    this.controls.grain.set(this.grain());
    this.controls.scope.set(this.scope());
    this.controls.measure.set(this.measure());
    const { app } = this;
    const choices = { grain: this.grain(), scope: this.scope(), measure: this.measure() };
    const asked = Promise.all([
      paced(app, 'memory', () => app.api.memory<Answer | DeviceMemory>()),
      pacedChart(app, 'miss-ratio', choices),
      pacedChart(app, 'disk-bytes'),
      pacedChart(app, 'predicted-speed'),
      pacedChart(app, 'working-set'),
    ]);
    await this.all.fill(asked, ([answer, ...charts]) => {
      const { devices } = answer;
      this.placed.hidden = devices === null;
      fill(this.places, ...(devices === null ? [] : places(devices, app)));
      this.answer = null;
      if (answer.opportunities === null) return NO_CACHES;
      if (answer.opportunities.budgets.length === 0)
        return 'this run read no weights: there is nothing to keep in memory';
      this.answer = answer;
      this.draw(state, charts);
      return null;
    });
  }

  unmount(): void {
    this.panels.destroy();
  }

  onKey(event: KeyboardEvent): boolean {
    const step =
      event.key === 'ArrowRight' || event.key === '+' ? 1 : event.key === 'ArrowLeft' || event.key === '-' ? -1 : 0;
    if (step === 0 || event.ctrlKey || event.metaKey || event.altKey || !this.answer) return false;
    this.setBudget(Math.max(0, Math.min(this.answer.opportunities.budgets.length - 1, this.budgetAt() + step)));
    return true;
  }

  exportCsv(): string {
    const rows: Cell[][] = [];
    for (const curves of this.answer ? [this.answer.curves, this.answer.page_curves] : []) {
      for (const point of curves.points) {
        for (const policy of POLICIES) {
          for (const scope of ['run', 'generate'] as const) {
            const [missed, total] = [point[policy][scope], curves.total[scope]];
            rows.push([
              curves.granularity,
              scope,
              policy,
              point.budget_bytes,
              missed.accesses,
              missed.bytes,
              missed.bytes / (total.bytes || 1),
            ]);
          }
        }
      }
    }
    for (const budget of this.answer?.opportunities.budgets ?? []) {
      for (const one of budget.strategies)
        rows.push([
          'strategy',
          'generate',
          one.strategy,
          budget.budget_bytes,
          null,
          one.disk_bytes_per_token,
          null,
          one.tokens_per_second,
        ]);
    }
    return csv(
      [
        'granularity',
        'scope',
        'policy',
        'budget_bytes',
        'missed_accesses',
        'missed_bytes_or_disk_bytes_per_token',
        'miss_ratio_of_bytes',
        'tokens_per_second',
      ],
      rows,
    );
  }

  exportCanvas(): HTMLCanvasElement {
    return this.panels.picture();
  }

  private grain(): 'unit' | 'page' {
    return this.app.state.opt['memory.grain'] === 'page' ? 'page' : 'unit';
  }
  private scope(): Scope {
    return this.app.state.opt['memory.scope'] === 'run' ? 'run' : 'generate';
  }
  private measure(): 'bytes' | 'accesses' {
    return this.app.state.opt['memory.measure'] === 'accesses' ? 'accesses' : 'bytes';
  }

  private setBudget(at: number): void {
    const bytes = this.answer?.opportunities.budgets[at]?.budget_bytes;
    if (bytes !== undefined) this.app.setOpt('memory.budget', String(bytes), { replace: true });
  }

  private nearest(bytes: number): number {
    const budgets = this.answer?.opportunities.budgets ?? [];
    let best = 0;
    budgets.forEach((budget, at) => {
      if (Math.abs(budget.budget_bytes - bytes) < Math.abs((budgets[best]?.budget_bytes ?? 0) - bytes)) best = at;
    });
    return best;
  }

  /** The budget of the link; else half of what the run used. */
  private budgetAt(): number {
    const wanted = this.app.state.opt['memory.budget'];
    return this.nearest(
      wanted !== undefined && /^\d+$/.test(wanted)
        ? Number(wanted)
        : (this.answer?.opportunities.footprint_bytes ?? 0) / 2,
    );
  }

  private draw(state: State, [curves, disk, speed, growth]: (LineChart | null)[]): void {
    const { answer, app } = this;
    if (!answer) return;
    const at = this.budgetAt();
    const bytes = answer.opportunities.budgets[at]?.budget_bytes ?? 0;
    this.slider.max = String(answer.opportunities.budgets.length - 1);
    this.slider.value = String(at);
    this.budgetText.textContent = `${format.bytes(bytes)} · ${format.percent(bytes / (answer.opportunities.footprint_bytes || 1))} of the weights in use`;
    // The slider moves often: charts that do not depend on it keep their place and only move their mark.
    const question = [
      state.run,
      app.info.version,
      app.colours.theme,
      this.grain(),
      this.scope(),
      this.measure(),
    ].join();
    if (question !== this.drawn) {
      this.drawn = question;
      if (curves) this.curves.show(curves, app.colours);
      if (disk) this.disk.show(disk, app.colours);
      if (growth) this.growth.show(growth, app.colours);
      void this.speedSlot.fill(Promise.resolve(speed), (one) => {
        if (!one) return NO_SPEEDS;
        this.speed.show(one, app.colours);
        return null;
      });
      fill(this.reuse, ...reuseChart(this.reuseOf(answer), this.measure(), app));
      this.drawWindows(answer);
    }
    for (const chart of [this.curves, this.disk, this.speed]) chart.mark(bytes);
    fill(this.outlook, ...outlook(answer, at, app));
    this.drawPolicies(answer, bytes);
  }

  private curvesOf(answer: Answer): Curves {
    return this.grain() === 'page' ? answer.page_curves : answer.curves;
  }

  private reuseOf(answer: Answer): Reuse {
    if (this.grain() === 'page') return this.scope() === 'run' ? answer.page_reuse : answer.page_reuse_generate;
    return this.scope() === 'run' ? answer.reuse : answer.reuse_generate;
  }

  private drawPolicies(answer: Answer, budget: number): void {
    const curves = this.curvesOf(answer);
    const points = curves.points.filter((point) => point.budget_bytes <= budget * 1.0001);
    const point = points[points.length - 1] ?? curves.points[0];
    if (!point) return;
    const [scope, measure] = [this.scope(), this.measure()];
    const total = curves.total[scope][measure] || 1;
    const tokens = scope === 'generate' ? answer.opportunities.generated_tokens : this.app.info.totals.tokens;
    fill(
      this.policies,
      figures(
        ...POLICIES.map((policy) => {
          const missed = point[policy][scope][measure];
          const perToken = missed / (tokens || 1);
          return {
            value: measure === 'bytes' ? format.bytes(perToken) : format.count(perToken),
            name: `missed per token, ${POLICY_NAMES[policy]} (${format.percent(missed / total)})`,
            title: `${format.integer(missed)} of ${format.integer(total)} ${measure} missed with ${format.integer(point.budget_bytes)} bytes, over ${format.integer(tokens)} tokens`,
          };
        }),
        {
          value:
            measure === 'bytes' ? format.bytes(curves.cold[scope].bytes) : format.count(curves.cold[scope].accesses),
          name: 'first uses: missed by every policy',
          title: 'in total, not per token',
        },
      ),
    );
  }

  private drawWindows(answer: Answer): void {
    const { windows } = answer.working_set;
    const rows = windows
      .filter((window) => window.complete > 0)
      .map((window): Bar => ({
        name: window.evaluations === 1 ? '1 evaluation' : `${format.integer(window.evaluations)} evaluations`,
        label: `${format.bytes(window.mean_bytes)} (${format.bytes(window.min_bytes)} – ${format.bytes(window.max_bytes)})`,
        parts: [{ name: 'mean', value: window.mean_bytes, colour: this.app.colours.category(0) }],
      }));
    fill(this.windows, bars(rows, { most: answer.distinct_bytes }));
  }
}

export function memory(): View {
  return new Memory();
}
