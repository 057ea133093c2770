/** Horizontal bars, stacked or around zero, as elements: they wrap, select and read aloud like text. */
import { h } from '../../dom';

export interface Part {
  name: string;
  value: number;
  colour: string;
}

export interface Bar {
  name: string;
  parts: readonly Part[];
  /** What stands at the right of the bar. */
  label: string;
  /** What the label means, where it needs more words. */
  title?: string;
  /** There is no amount, not even nothing: too short of memory for one, or none at all. */
  none?: 'short' | 'off';
  onClick?: () => void;
}

export type Hover = (event: PointerEvent | null, bar: Bar, part: Part) => void;

/** Bars from zero; the longest fills the width unless `most` says what does. */
export function bars(
  of: readonly Bar[],
  options: { most?: number; hover?: Hover; isDense?: boolean } = {},
): HTMLElement {
  const sum = (bar: Bar) => bar.parts.reduce((all, part) => all + Math.max(0, part.value), 0);
  const most = options.most ?? of.reduce((all, bar) => Math.max(all, sum(bar)), 0);
  const rows = of.flatMap((bar) => [
    name(bar),
    h(
      'span',
      { class: bar.none ? `view-track view-track-${bar.none}` : 'view-track' },
      ...bar.parts
        .filter((part) => part.value > 0)
        .map((part) => {
          const box = segment(part.colour, (100 * part.value) / (most || 1));
          hoverable(box, bar, part, options.hover);
          return box;
        }),
    ),
    h('span', { class: 'view-bar-label', title: bar.title ?? null }, bar.label),
  ]);
  return h('div', { class: options.isDense ? 'view-bars view-dense' : 'view-bars' }, ...rows);
}

export interface Change {
  name: string;
  a: number;
  b: number;
  label: string;
  onClick?: () => void;
}

/** Bars around zero: left is less, right is more. */
export function changes(
  of: readonly Change[],
  colours: { less: string; more: string },
  hover?: (event: PointerEvent | null, change: Change) => void,
): HTMLElement {
  const most = of.reduce((all, one) => Math.max(all, Math.abs(one.b - one.a)), 0) || 1;
  const rows = of.flatMap((one) => {
    const change = one.b - one.a;
    const width = (50 * Math.abs(change)) / most;
    const box = segment(change < 0 ? colours.less : colours.more, width);
    box.style.marginLeft = change < 0 ? `${50 - width}%` : '50%';
    const track = h('span', { class: 'view-track view-track-zero' }, box);
    if (hover) {
      track.addEventListener('pointermove', (event) => hover(event, one));
      track.addEventListener('pointerleave', () => hover(null, one));
    }
    return [name(one), track, h('span', { class: 'view-bar-label' }, one.label)];
  });
  return h('div', { class: 'view-bars' }, ...rows);
}

function name(bar: { name: string; onClick?: () => void }): HTMLElement {
  const click = bar.onClick;
  return click
    ? h('button', { type: 'button', class: 'view-bar-name', title: `filter by ${bar.name}`, onclick: click }, bar.name)
    : h('span', { class: 'view-bar-name', title: bar.name }, bar.name);
}

function segment(colour: string, percent: number): HTMLElement {
  const box = h('span', { class: 'view-part' });
  box.style.width = `${percent}%`;
  box.style.background = colour;
  return box;
}

function hoverable(box: HTMLElement, bar: Bar, part: Part, hover?: Hover): void {
  if (!hover) return;
  box.addEventListener('pointermove', (event) => hover(event, bar, part));
  box.addEventListener('pointerleave', () => hover(null, bar, part));
}
