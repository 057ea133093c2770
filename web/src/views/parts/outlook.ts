/** Parts of the memory view: the outlook at one budget, and the distances of reuse. */
import { withAlpha } from '../../colours';
import { figures, h } from '../../dom';
import * as format from '../../format';
import type { App } from '../../view';
import { bars, type Bar } from './bars';
import type { Memory, Reuse, Strategy } from './results';

const STRATEGY_NAMES: Record<string, [name: string, title: string]> = {
  page_cache: ['page cache', 'LRU over pages of the file: llama.cpp today; reads stop computing'],
  stream: ['stream', 'everything is read in the order of its use, each time; reads overlap computing'],
  pin: [
    'pin only',
    'the most used weights per byte stay, the others are left to the page cache; reads of these stop computing',
  ],
  pin_and_stream: ['pin and stream', 'the most used weights per byte stay, the others are read in order'],
  expert_cache: [
    'expert cache',
    'what every token needs stays, experts are kept by LRU; they are read once the router has chosen',
  ],
};

/** Why a strategy has no bar: two different things, and what would change them. */
const NO_BAR: Record<string, Required<Pick<Bar, 'label' | 'title' | 'none'>>> = {
  does_not_fit: { label: 'does not fit', title: 'with more memory it would', none: 'short' },
  does_not_apply: { label: 'does not apply', title: 'whatever the memory', none: 'off' },
};

/** What stands at the end of a strategy's bar. */
export function labelOf(one: Strategy): Pick<Bar, 'label' | 'title' | 'none'> {
  if (one.disk_bytes_per_token === null) {
    const { label, title, none } = NO_BAR[one.verdict.help] ?? { label: 'not needed', title: '', none: 'off' as const };
    return { label, none, title: [one.verdict.reason, title].filter(Boolean).join('; ') };
  }
  const speed = one.tokens_per_second === null ? '' : ` · ${format.count(one.tokens_per_second)} tokens/s`;
  return { label: `${format.bytes(one.disk_bytes_per_token)} / token${speed}` };
}

export function strategyName(strategy: string): string {
  return STRATEGY_NAMES[strategy]?.[0] ?? strategy;
}

/** What each strategy would read per token with one budget, and whether it helps. */
export function outlook(answer: Memory, at: number, app: App): HTMLElement[] {
  const budget = answer.opportunities.budgets[at];
  if (!budget) return [];
  const { machine, generated_tokens: tokens, used_bytes_per_token: used } = answer.opportunities;
  const rows = budget.strategies.map((one): Bar & { one: Strategy } => ({
    one,
    name: strategyName(one.strategy),
    ...labelOf(one),
    parts: [
      {
        name: one.strategy === 'page_cache' ? 'by page faults' : 'known in advance',
        value: (one.disk_bytes_per_token ?? 0) - one.routed_bytes_per_token,
        colour: app.colours.way(one.strategy),
      },
      {
        name: 'after the router',
        value: one.routed_bytes_per_token,
        colour: withAlpha(app.colours.way(one.strategy), 0.55),
      },
    ],
  }));
  const chart = bars(
    [
      ...rows,
      {
        name: 'least possible',
        label: `${format.bytes(budget.least_disk_bytes_per_token)} / token`,
        parts: [
          { name: 'Belady over pages', value: budget.least_disk_bytes_per_token, colour: app.colours.way('belady') },
        ],
      },
    ],
    {
      most: Math.max(used, ...budget.strategies.map((one) => one.disk_bytes_per_token ?? 0)),
      hover: (event, bar, part) => {
        if (!event) return app.tooltip.hide();
        app.tooltip.show(event.clientX, event.clientY, bar.name, [
          [part.name, `${format.bytes(part.value)} per token`],
          ['exactly', `${format.integer(part.value)} bytes`],
        ]);
      },
    },
  );
  const verdicts = rows.map(({ one }) =>
    h(
      'li',
      { class: one.strategy === budget.best ? 'view-best' : null, title: STRATEGY_NAMES[one.strategy]?.[1] },
      h('b', {}, strategyName(one.strategy)),
      ` ${one.verdict.reason}${one.speedup === null || one.verdict.help === 'baseline' ? '' : ` (${one.speedup.toFixed(2)}× the page cache)`}`,
      one.strategy === budget.best ? ' – best' : '',
    ),
  );
  return [
    chart,
    h('ul', { class: 'view-verdicts' }, ...verdicts),
    figures(
      { value: format.bytes(used), name: 'weights that a token uses', title: `${format.integer(used)} bytes` },
      {
        value: format.bytes(answer.opportunities.footprint_bytes),
        name: 'weights in use by the run',
        title: `${format.integer(answer.opportunities.footprint_bytes)} bytes`,
      },
      { value: format.integer(tokens), name: 'generated tokens' },
      ...(machine
        ? [
            { value: `${format.bytes(machine.disk_bytes_per_second)}/s`, name: 'disk' },
            ...(machine.memory_bytes_per_second === null
              ? []
              : [{ value: `${format.bytes(machine.memory_bytes_per_second)}/s`, name: 'memory' }]),
          ]
        : []),
    ),
  ];
}

/** How far apart uses of the same bytes are. */
export function reuseChart(reuse: Reuse, measure: 'bytes' | 'accesses', app: App): HTMLElement[] {
  const total = reuse.cold[measure] + reuse.reused[measure] || 1;
  const show = (value: number) =>
    `${measure === 'bytes' ? format.bytes(value) : format.count(value)}  ${format.percent(value / total)}`;
  const { colours } = app;
  const rows: Bar[] = [
    {
      name: 'first use',
      label: show(reuse.cold[measure]),
      parts: [{ name: 'first use', value: reuse.cold[measure], colour: colours.muted }],
    },
    ...reuse.buckets.map((bucket): Bar => ({
      name: bucket.to_bytes <= 1 ? '0 B' : `${format.bytes(bucket.from_bytes)} – ${format.bytes(bucket.to_bytes)}`,
      label: show(bucket[measure]),
      parts: [{ name: 'reused', value: bucket[measure], colour: colours.category(0) }],
    })),
  ];
  const median = reuse.quantiles.find((quantile) => quantile.share >= 0.5);
  return [
    bars(rows, {
      hover: (event, bar, part) =>
        event
          ? app.tooltip.show(event.clientX, event.clientY, bar.name, [
              [measure, format.integer(part.value)],
              ['of all', format.percent(part.value / total)],
            ])
          : app.tooltip.hide(),
    }),
    figures(
      ...reuse.quantiles
        .filter((quantile) => [0.1, 0.5, 0.9, 0.99].includes(quantile.share))
        .map((quantile) => ({
          value: format.bytes(quantile.distance_bytes),
          name: quantile === median ? 'median distance' : `${Math.round(quantile.share * 100)} % of reuses within`,
          title: `${format.integer(quantile.distance_bytes)} bytes`,
        })),
    ),
  ];
}
