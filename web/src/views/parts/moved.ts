/** Bars of a comparison of two runs, per token. */
import { css } from '../../colours';
import { h, key, note } from '../../dom';
import * as format from '../../format';
import type { App } from '../../view';
import { bars, changes } from './bars';
import type { Moved } from './results';

export type Measure = 'bytes' | 'nanos';

/** One table of a comparison as bars: what moved, or both runs one above the other. */
export function movedBars(
  list: readonly Moved[],
  noun: string,
  how: { measure: Measure; mode: 'difference' | 'both' },
  app: App,
): HTMLElement {
  const { colours } = app;
  const { measure, mode } = how;
  const of = (one: Moved, run: 'a' | 'b') => one[`${run}_${measure}_per_token`];
  const name = (one: Moved) =>
    noun !== 'layer' ? one.name : /^\d+$/.test(one.name) ? `layer ${one.name}` : 'no layer';
  const tip = (event: PointerEvent | null, one: Moved): void => {
    if (!event) return app.tooltip.hide();
    const [a, b] = [of(one, 'a'), of(one, 'b')];
    const exact = (value: number) =>
      measure === 'bytes'
        ? `${showValue(measure, value)} (${format.integer(value)})`
        : `${showValue(measure, value)} (${format.exactNanos(value)})`;
    app.tooltip.show(event.clientX, event.clientY, name(one), [
      ['A per token', exact(a)],
      ['B per token', exact(b)],
      ['B − A', signed(measure, b - a)],
      ['B / A', a === 0 ? '–' : `${(b / a).toFixed(3)}×`],
    ]);
  };
  const kept = list.filter((one) => of(one, 'a') !== 0 || of(one, 'b') !== 0);
  if (kept.length === 0) return note('neither run has any');
  if (mode === 'difference') {
    const byChange = [...kept].sort((x, y) =>
      noun === 'layer' ? order(x, y) : Math.abs(of(y, 'b') - of(y, 'a')) - Math.abs(of(x, 'b') - of(x, 'a')),
    );
    const ends = { less: css(colours.difference, 0.16), more: css(colours.difference, 0.86) };
    const moved = byChange.filter((one) => of(one, 'a') !== of(one, 'b'));
    if (moved.length === 0) return note(`no difference: all ${format.integer(kept.length)} are equal in both runs`);
    const rows = moved.map((one) => ({
      name: name(one),
      a: of(one, 'a'),
      b: of(one, 'b'),
      label: signed(measure, of(one, 'b') - of(one, 'a')),
      one,
    }));
    return h(
      'div',
      {},
      key([
        { colour: ends.less, name: 'B less than A' },
        { colour: ends.more, name: 'B more than A' },
      ]),
      changes(rows, ends, (event, change) => tip(event, (change as (typeof rows)[number]).one)),
      moved.length < kept.length &&
        note(`${format.integer(kept.length - moved.length)} more without a difference`, 'aside'),
    );
  }
  const bySize = [...kept].sort((x, y) =>
    noun === 'layer' ? order(x, y) : Math.max(of(y, 'a'), of(y, 'b')) - Math.max(of(x, 'a'), of(x, 'b')),
  );
  const two = bySize.flatMap((one) =>
    (['a', 'b'] as const).map((run) => ({
      name: run === 'a' ? name(one) : '',
      label: showValue(measure, of(one, run)),
      parts: [{ name: run.toUpperCase(), value: of(one, run), colour: colours.category(run === 'a' ? 0 : 1) }],
      one,
    })),
  );
  const chart = bars(two, { isDense: true, hover: (event, bar) => tip(event, (bar as (typeof two)[number]).one) });
  chart.classList.add('view-twos');
  return h(
    'div',
    {},
    key([
      { colour: colours.category(0), name: 'A' },
      { colour: colours.category(1), name: 'B' },
    ]),
    chart,
  );
}

export function showValue(measure: Measure, value: number): string {
  return measure === 'bytes' ? format.bytes(value) : format.nanos(value);
}

export function signed(measure: Measure, value: number): string {
  return value === 0 ? '±0' : `${value < 0 ? '−' : '+'}${showValue(measure, Math.abs(value))}`;
}

/** Layers in the model's order; what belongs to none comes last. */
function order(x: Moved, y: Moved): number {
  const number = (one: Moved) => (/^\d+$/.test(one.name) ? Number(one.name) : Infinity);
  return number(x) - number(y) || 0;
}
