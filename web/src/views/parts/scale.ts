/** From values to colours, and the legend that says how. */
import { scaled, unscaled, type Scale as Growth } from '../../canvas';
import type { Colours, Table } from '../../colours';
import { h } from '../../dom';
import { MIN_SHARE } from '../../generated/palette';

export const GROWTHS = [
  { value: 'linear', text: 'linear', title: 'colour grows with the value' },
  { value: 'sqrt', text: 'root', title: 'colour grows with the square root: shows small values better' },
  { value: 'log', text: 'log', title: 'colour grows with the logarithm, over four decades below the largest value' },
] as const;

export interface Scale {
  growth: Growth;
  /** The last colour; the first is 0, or -most on a diverging scale. */
  most: number;
  table: Table;
  isDiverging?: boolean;
}

export function isGrowth(text: string | undefined): text is Growth {
  return text === 'linear' || text === 'sqrt' || text === 'log';
}

/** What was read at all must differ from what was not. */
const MIN_COLOUR = Math.round(MIN_SHARE * 255);

/** 0xAABBGGRR of a value; transparent for NaN, about which nothing is known. */
export function shade(scale: Scale, value: number): number {
  if (value !== value) return 0;
  if (scale.isDiverging) {
    const size = scaled(Math.abs(value), scale.most, scale.growth) * 127;
    return scale.table[Math.round(value < 0 ? 128 - size : 128 + size)] as number;
  }
  if (value <= 0) return scale.table[0] as number;
  return scale.table[Math.max(MIN_COLOUR, (scaled(value, scale.most, scale.growth) * 255) | 0)] as number;
}

/** A strip of the scale's colours; ends and middle are named. */
export function legend(scale: Scale, title: string, format: (value: number) => string): HTMLElement {
  const canvas = h('canvas', { class: 'view-legend-strip', width: 256, height: 1, 'aria-hidden': 'true' });
  const pen = canvas.getContext('2d') as CanvasRenderingContext2D;
  const image = pen.createImageData(256, 1);
  new Uint32Array(image.data.buffer).set(scale.table);
  pen.putImageData(image, 0, 0);
  const middle = format(unscaled(0.5, scale.most, scale.growth));
  const ends = scale.isDiverging
    ? [`−${format(scale.most)}`, '0', `+${format(scale.most)}`]
    : ['0', middle, format(scale.most)];
  const names = h('div', { class: 'view-legend-ends' }, ...ends.map((end) => h('span', {}, end)));
  return h(
    'div',
    { class: 'view-legend' },
    h('span', { class: 'control-label' }, title),
    h('div', { class: 'view-legend-scale' }, canvas, names),
  );
}

/** The map for a metric: viridis for time, the sequential one for everything else. */
export function tableFor(metric: string, colours: Colours): Table {
  return metric === 'nanos' ? colours.time : colours.counts;
}
