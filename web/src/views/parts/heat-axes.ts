/** What stands around a heatmap: names of its rows, numbers and texts of its tokens. */
import { fit, type Pen } from '../../canvas';
import { withAlpha, type Colours } from '../../colours';
import * as format from '../../format';
import type { Plot } from '../../plot';
import type { Tick } from '../../ticks';
import type { HeatmapRow } from '../../generated/index';
import { shortName, tokenName, type Rows } from './heat-options';
import type { TokenTexts } from './token-texts';

/** Tokens this wide are named by their text, rows this high by their name. */
const TEXT_PIXELS = 11;
const NAME_PIXELS = 11;

/** Lines between layers, where rows are grouped by them; where each row is a layer, only before those of none. */
export function drawSeparators(
  context: CanvasRenderingContext2D,
  on: Plot,
  rows: readonly HeatmapRow[],
  colours: Colours,
  kind: Rows,
): void {
  const pixels = on.innerHeight / on.y.span;
  if (pixels < 2) return;
  const height = kind === 'layer' ? 3 : 1;
  context.fillStyle = withAlpha(colours.ground, pixels >= 6 ? 0.9 : 0.5);
  const first = Math.max(1, Math.floor(on.y.low));
  const end = Math.min(rows.length, Math.ceil(on.y.high));
  for (let at = first; at < end; at++) {
    const [layer, before] = [rows[at]?.layer, rows[at - 1]?.layer];
    if (layer === before || (kind === 'layer' && layer !== null && before !== null)) continue;
    context.fillRect(on.margin.left, on.py(at) - height / 2, on.innerWidth, height);
  }
}

/** Names of the rows; of their layers where there are too many. */
export function rowTicks(rows: readonly HeatmapRow[], kind: Rows, low: number, high: number, pixels: number): Tick[] {
  const perRow = pixels / (high - low);
  const [first, end] = [Math.max(0, Math.floor(low)), Math.min(rows.length, Math.ceil(high))];
  const ticks: Tick[] = [];
  const fits = perRow >= NAME_PIXELS;
  const isOneLayer = rows[first]?.layer === rows[end - 1]?.layer;
  if (fits || kind === 'layer' || isOneLayer) {
    const every = Math.max(1, Math.ceil(12 / perRow));
    for (let at = first; at < end; at += 1) {
      if (fits || at % every === 0) ticks.push({ at: at + 0.5, text: shortName(rows[at]), isName: true });
    }
    return ticks;
  }
  // Too many rows to name: name their layers, as many as fit.
  let begin = first;
  let free = -Infinity;
  for (let at = first + 1; at <= end; at++) {
    if (at < end && rows[at]?.layer === rows[begin]?.layer) continue;
    const middle = (begin + at) / 2;
    if ((middle - free) * perRow >= 12) {
      ticks.push({ at: middle, text: format.layer(rows[begin]?.layer ?? null), isName: true });
      free = middle;
    }
    begin = at;
  }
  return ticks;
}

/** Numbers of the tokens, and their texts once they are wide enough. */
export function drawTokenAxis(pen: Pen, on: Plot, tokens: number, texts: TokenTexts, colours: Colours): void {
  const { muted, text, line } = colours;
  const bottom = on.margin.top + on.innerHeight;
  const perToken = on.innerWidth / on.x.span;
  const [first, end] = [Math.max(0, Math.floor(on.x.low)), Math.min(tokens, Math.ceil(on.x.high))];
  const centre = (token: number) => on.px(token + 0.5);
  const inside = (x: number) => x >= on.margin.left && x <= on.margin.left + on.innerWidth;
  const every =
    [1, 2, 5, 10, 20, 50]
      .flatMap((n) => [n, n * 100, n * 10_000])
      .sort((a, b) => a - b)
      .find((step) => step * perToken >= 44) ?? 1e6;
  for (let token = Math.ceil(first / every) * every; token < end; token += every) {
    const x = centre(token);
    if (!inside(x) || x + 18 > on.width) continue;
    pen.line(x, bottom, x, bottom + 4, line);
    pen.text(format.integer(token), x, bottom + 6, { colour: muted, align: 'center', baseline: 'top' });
  }
  if (perToken >= TEXT_PIXELS) {
    for (let token = first; token < end; token++) {
      const x = centre(token);
      if (!inside(x)) continue;
      const of = texts.get(token);
      if (of)
        pen.text(fit(pen, tokenName(of), 62), x, bottom + 24, {
          colour: of.phase === 'prompt' ? muted : text,
          align: 'right',
          baseline: 'middle',
          turned: true,
        });
    }
  } else {
    pen.text('token number · zoom in to read the tokens', on.margin.left, bottom + 26, {
      colour: muted,
      align: 'left',
      baseline: 'top',
    });
  }
  pen.text('token →', on.margin.left + on.innerWidth, on.height - 6, {
    colour: muted,
    align: 'right',
    baseline: 'bottom',
  });
}
