/** What an estimate says about memory and time, as elements. */
import { figures, h, key, note, type Figure } from '../../dom';
import * as format from '../../format';
import type { App } from '../../view';
import type { Device, Draft, Estimate, Interval, Machine, Memory, PassTime, Versus } from './answer';
import { bars, type Bar } from './bars';
import { typeName } from './curves';
import { triedBy, type Option } from './question';

/** A budget this many times as large would leave nothing to see of what is taken. */
const TOO_WIDE = 20;

const STAGES: Record<string, string> = { cache: 'kv_cache', experts: 'expert' };
const BOUNDS: Record<string, string> = {
  memory: 'reading memory',
  compute: 'computing',
  kernels: 'kernels that reach neither memory’s speed nor the processor’s',
};

export interface WayActions {
  apply(options: Partial<Record<Option, string>>): void;
  copy(text: string): void;
}

export function memoryPanel(memory: Memory, app: App, actions: WayActions): HTMLElement[] {
  const { colours } = app;
  const parts = [
    { name: 'weights', colour: colours.component('attention'), of: (d: Device) => d.weight_bytes },
    { name: 'KV cache and state', colour: colours.component('router'), of: (d: Device) => d.context_bytes },
    { name: 'buffers', colour: colours.component('ffn'), of: (d: Device) => d.compute_bytes },
  ];
  const rows = memory.devices.map((device) => {
    const total = device.weight_bytes + device.context_bytes + device.compute_bytes;
    const budget = device.budget_bytes ?? null;
    const most = mostShown(total, budget);
    const bar: Bar = {
      name: device.name,
      label: takenText(total, budget),
      title: `${format.integer(total)} bytes`,
      parts: parts.map(({ name, colour, of }) => ({ name, colour, value: of(device) })),
    };
    const chart = bars([bar], {
      most,
      hover: (event, one, part) =>
        event
          ? app.tooltip.show(event.clientX, event.clientY, one.name, [
              [part.name, format.bytes(part.value)],
              ['exactly', `${format.integer(part.value)} bytes`],
            ])
          : app.tooltip.hide(),
    });
    if (budget !== null && budget <= most) chart.querySelector('.view-track')?.append(budgetMark(budget / most));
    return chart;
  });
  return [
    h('p', { class: `est-verdict ${memory.fits ? 'is-good' : 'is-bad'}`, role: 'status' }, verdict(memory)),
    ...rows,
    key(
      parts.map(({ name, colour, of }) => {
        const bytes = memory.devices.reduce((sum, device) => sum + of(device), 0);
        return { colour, name: `${name} ${format.bytes(bytes)}`, title: `${format.integer(bytes)} bytes` };
      }),
    ),
    ...waysOf(memory, actions),
  ];
}

/** What fills a bar: the budget, unless what is taken could not be seen beside it. */
export function mostShown(total: number, budget: number | null): number {
  if (budget === null || total * TOO_WIDE < budget) return total;
  return Math.max(total, budget);
}

/** Where the budget is not drawn, its share is said. */
export function takenText(total: number, budget: number | null): string {
  if (budget === null) return format.bytes(total);
  const share = mostShown(total, budget) < budget ? `, ${format.percent(total / budget)}` : '';
  return `${format.bytes(total)}${share} of ${format.bytes(budget)}`;
}

export function verdict({ fits, budgeted_bytes: bytes, budget_bytes: budget }: Memory): string {
  return fits
    ? `fits with ${format.bytes(budget - bytes)} to spare`
    : `does not fit: ${format.bytes(bytes - budget)} too much`;
}

function budgetMark(share: number): HTMLElement {
  const mark = h('span', { class: 'est-budget', title: 'the memory that there is' });
  mark.style.left = `${share * 100}%`;
  return mark;
}

function waysOf({ fits, ways }: Memory, actions: WayActions): HTMLElement[] {
  if (fits) return [];
  if (ways.length === 0) return [note('No change that was tried makes it fit.', 'aside')];
  return [
    h(
      'p',
      { class: 'view-definition' },
      'It fits with one of these; a click tries it, or puts other weights beside these.',
    ),
    h(
      'ul',
      { class: 'est-ways' },
      ...ways.map(({ change, bytes, costs }) => {
        const options = triedBy(change);
        return h(
          'li',
          {},
          options === null
            ? h('code', {}, change)
            : h('button', { type: 'button', class: 'est-way', onclick: () => actions.apply(options) }, change),
          h('span', {}, ` ${format.bytes(bytes)}: ${costs}`),
          h(
            'button',
            { type: 'button', class: 'quiet', title: `copy ${change}`, onclick: () => actions.copy(change) },
            'copy',
          ),
        );
      }),
    ),
  ];
}

/** One pass: how long, how certain, what bounds it, and its stages. */
export function passPanel(pass: PassTime, name: string, app: App): HTMLElement[] {
  const { seconds } = pass;
  const all: Figure[] = [
    { value: time(seconds.likely), name, title: `${seconds.likely} s` },
    { value: `${time(seconds.best)} – ${time(seconds.worst)}`, name: 'at best and at worst' },
    { value: format.count(pass.tokens_per_second), name: 'tokens/s' },
  ];
  const total = pass.stages.reduce((sum, stage) => sum + stage.seconds.likely, 0) || 1;
  const stages = pass.stages.filter((stage) => stage.seconds.likely > 0);
  const parts = stages.map(({ work, seconds: took, bound }) => ({
    name: `${work.stage}, bound by ${BOUNDS[bound] ?? bound}`,
    value: took.likely / total,
    colour: app.colours.component(STAGES[work.stage] ?? work.stage),
  }));
  return [
    figures(...all),
    bars([{ name: 'stages', label: time(total), parts }], {
      most: 1,
      hover: (event, _, part) =>
        event
          ? app.tooltip.show(event.clientX, event.clientY, part.name, [
              ['of the pass', format.percent(part.value)],
              ['likely', time(part.value * total)],
            ])
          : app.tooltip.hide(),
    }),
    key(
      stages.map(({ work, seconds: took }) => ({
        name: `${work.stage} ${format.percent(took.likely / total)}`,
        colour: app.colours.component(STAGES[work.stage] ?? work.stage),
        title: time(took.likely),
      })),
    ),
    note(boundSentence(pass), 'aside'),
  ];
}

export function boundSentence({ bound, flop_per_byte: has, ridge_flop_per_byte: turns }: PassTime): string {
  const by = BOUNDS[bound] ?? bound;
  return `Bound by ${by}: ${format.count(has)} FLOP a byte, and the machine turns at ${format.count(turns)}.`;
}

export function machineText(machine: Machine): string {
  const peak = Object.entries(machine.flops_per_second ?? {}).map(
    ([type, { value }]) => `${format.count(Number((value / 1e12).toPrecision(3)))} TFLOP/s ${type}`,
  );
  const speed = `${format.count(Number((machine.memory_bytes_per_second.value / 1e9).toPrecision(4)))} GB/s`;
  return `${machine.name}: ${format.bytes(machine.memory_bytes.value)} of memory at ${speed}, ${peak.join(', ')}.`;
}

/** What stands below the speeds of a model that does not fit. */
export function diskSentence({ memory, disk }: Estimate): string | null {
  const speed = disk?.tokens_per_second;
  const likely = typeof speed === 'number' ? speed : speed?.likely;
  if (likely !== undefined) return `With weights from the disk: ${format.count(likely)} tokens/s.`;
  return memory.fits
    ? null
    : 'These speeds are for a model that is in memory; `tensorscope plan` says what the disk gives.';
}

export function draftPanel(draft: Draft): HTMLElement[] {
  return [
    figures(
      { value: `${draft.speed_up.toFixed(2)}×`, name: 'as fast, where drafting costs nothing' },
      { value: draft.tokens_per_pass.toFixed(2), name: 'tokens a pass' },
      { value: time(draft.seconds_per_token), name: 'a token' },
    ),
    note(`Drafts of ${draft.draft_tokens} tokens, of which ${format.percent(draft.acceptance)} are accepted.`, 'aside'),
  ];
}

export function versusPanel(versus: Versus): HTMLElement[] {
  const [first, second] = [typeName(versus, 'first'), typeName(versus, 'second')];
  const cell = (text: string) => h('td', {}, text);
  const turning = (which: 'first' | 'second') => {
    const batch = versus[which].turning_batch;
    return `${typeName(versus, which)}: ${batch === null ? 'reads longer than it computes at every batch' : `computes longer than it reads from ${batch} sequences on`}`;
  };
  return [
    figures(
      { value: format.bytes(versus.first.weight_bytes), name: `of weights ${first}` },
      { value: format.bytes(versus.second.weight_bytes), name: `of weights in ${second}` },
    ),
    h(
      'table',
      { class: 'est-table' },
      h(
        'thead',
        {},
        h('tr', {}, ...['sequences', first, second, 'times as fast'].map((text) => h('th', { scope: 'col' }, text))),
      ),
      h(
        'tbody',
        {},
        ...versus.rows.map((row) =>
          h(
            'tr',
            {},
            cell(format.integer(row.batch)),
            cell(time(row.first_seconds)),
            cell(time(row.second_seconds)),
            cell(`${row.ratio.toFixed(2)}×`),
          ),
        ),
      ),
    ),
    note(`${turning('first')}; ${turning('second')}.`, 'aside'),
  ];
}

/** Of seconds. */
export function time(seconds: number): string {
  return format.nanos(seconds * 1e9);
}

export function interval({ best, worst }: Interval): string {
  return `${time(best)} – ${time(worst)}`;
}
