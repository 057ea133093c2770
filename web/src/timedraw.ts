/** What stands around the plots of the timeline: tokens above, legends, names of layers. */
import { CanvasPen, drawLegend, fit, type Pen } from './canvas';
import { css, textOn, withAlpha, type Colours } from './colours';
import { batchesOf, isIn, type EvalIndex } from './evalindex';
import { layerRanges } from './filemap';
import * as format from './format';
import type { Plot } from './plot';
import { bandOf, isBand } from './tokenband';
import type { Tick } from './ticks';
import type { ExactAccess, NodeSpan, OffsetsHeader } from './generated/index';
import type { App } from './view';

export const TOKEN_BAND_PX = 18;

/** The tokens above the lanes: their texts, or, where these do not fit, their colours and some numbers. */
export function drawTokens(pen: Pen, plot: Plot, evals: EvalIndex, shareOf: (token: number) => number, app: App): void {
  const { colours, state } = app;
  const seen = batchesOf(evals.between(plot.x.low, plot.x.high));
  const right = plot.margin.left + plot.innerWidth;
  pen.text('token', 8, 16, { colour: colours.muted });
  if (isBand(seen.length, plot.innerWidth)) {
    const band = bandOf(seen, (time) => plot.px(time), [plot.margin.left, right]);
    for (const { x0, x1, token } of band.runs) {
      pen.rect(x0, 7, x1 - x0, TOKEN_BAND_PX - 4, withAlpha(colours.muted, 0.13));
      pen.rect(x0, 7 + TOKEN_BAND_PX - 4, x1 - x0, 4, css(colours.time, shareOf(token)));
    }
    const selected = seen.find((batch) => isIn(batch, state.eval));
    if (selected) {
      const x0 = Math.max(plot.margin.left, plot.px(selected.begin));
      pen.rect(x0, 7, Math.max(2, plot.px(selected.end) - x0), TOKEN_BAND_PX, colours.accent);
    }
    for (const { x, token } of band.numbers) {
      pen.line(x, 7, x, 7 + TOKEN_BAND_PX - 4, colours.line);
      pen.text(format.integer(token), x + 4, 15, { colour: colours.text });
    }
    return;
  }
  for (const name of seen) {
    const x0 = Math.max(plot.margin.left, plot.px(name.begin));
    const x1 = Math.min(right, plot.px(name.end));
    if (x1 <= x0) continue;
    const isSelected = isIn(name, state.eval);
    pen.rect(
      x0,
      7,
      Math.max(1, x1 - x0 - 1),
      TOKEN_BAND_PX - 2,
      isSelected ? withAlpha(colours.accent, 0.35) : withAlpha(colours.muted, 0.13),
    );
    pen.rect(x0, 7 + TOKEN_BAND_PX - 2, Math.max(1, x1 - x0 - 1), 2, css(colours.time, shareOf(name.first_token)));
    const text = evals.text(name);
    const room = x1 - x0 - 5;
    if (text !== null && room > 5) {
      const shown = fit(pen, format.tokenText(text), room);
      // One letter and dots tell nothing.
      if (shown.length > 2 || !shown.endsWith('…')) pen.text(shown, x0 + 3, 16, { colour: colours.text });
    }
  }
}

/** Faint lines where evaluations begin, when they are far enough apart. */
export function drawEvalLines(context: CanvasRenderingContext2D, plot: Plot, evals: EvalIndex, colours: Colours): void {
  const seen = evals.between(plot.x.low, plot.x.high);
  if (seen.length === 0 || plot.innerWidth / seen.length < 8) return;
  context.fillStyle = withAlpha(colours.line, 0.7);
  for (const name of seen) context.fillRect(Math.round(plot.px(name.begin)), plot.margin.top, 1, plot.innerHeight);
}

export interface SpanLook {
  /** Height of a lane. */
  lane: number;
  laneOf(span: NodeSpan): number;
  colourOf(span: NodeSpan): string;
  isSelected(span: NodeSpan): boolean;
  colours: Colours;
}

/** Nodes one by one, with their names where they fit. */
export function drawSpans(
  context: CanvasRenderingContext2D,
  plot: Plot,
  spans: readonly NodeSpan[],
  { lane, laneOf, colourOf, isSelected, colours }: SpanLook,
): void {
  const pen = new CanvasPen(context);
  const gap = lane > 6 ? 2 : 0;
  const right = plot.margin.left + plot.innerWidth;
  for (const span of spans) {
    const x0 = plot.px(span.begin);
    const x1 = plot.px(span.end);
    if (x1 < plot.margin.left || x0 > right) continue;
    const y = plot.py(laneOf(span)) + gap / 2;
    const width = Math.max(1, x1 - x0 - (x1 - x0 > 4 ? 0.75 : 0));
    const colour = colourOf(span);
    context.fillStyle = colour;
    context.fillRect(x0, y, width, lane - gap);
    if (isSelected(span)) {
      context.strokeStyle = colours.text;
      context.lineWidth = 2;
      context.strokeRect(x0 - 1, y - 1, Math.max(3, width + 2), lane - gap + 2);
    }
    const from = Math.max(x0, plot.margin.left);
    const room = Math.min(x1, right) - from - 8;
    if (room > 20 && lane >= 12) {
      // Whole words or nothing: a cut name reads as another one.
      const text = [`${span.op} ${span.name}`, span.name, span.op].find((t) => pen.measure(t) <= room);
      if (text) pen.text(text, from + 4, y + (lane - gap) / 2, { colour: textOn(colour) });
    }
  }
}

export interface AccessLook {
  colourOf(access: ExactAccess): string;
  isSelected(access: ExactAccess): boolean;
  colours: Colours;
}

/** Reads of weights one by one. */
export function drawAccesses(
  context: CanvasRenderingContext2D,
  plot: Plot,
  accesses: readonly ExactAccess[],
  { colourOf, isSelected, colours }: AccessLook,
): void {
  for (const access of accesses) {
    const x0 = plot.px(access.begin);
    const y0 = plot.py(access.offset);
    const width = Math.max(1.5, plot.px(access.end) - x0);
    const height = Math.max(1.5, plot.py(access.offset + access.bytes) - y0);
    context.fillStyle = colourOf(access);
    context.fillRect(x0, y0, width, height);
    if (isSelected(access)) {
      context.strokeStyle = colours.text;
      context.lineWidth = 2;
      context.strokeRect(x0 - 1, y0 - 1, width + 2, height + 2);
    }
  }
}

/** What the colours mean, and names of the layers beside the plot. */
export function drawOffsetLegend(
  pen: Pen,
  plot: Plot,
  reads: OffsetsHeader | null,
  by: 'token' | 'bytes',
  app: App,
): void {
  const { colours, info } = app;
  if (!reads) return;
  const right = plot.margin.left + plot.innerWidth;
  if (by === 'token') {
    drawLegend(pen, right, 12, {
      title: 'token',
      table: colours.time,
      colour: colours.muted,
      low: '0',
      high: format.integer(Math.max(0, info.totals.tokens - 1)),
    });
  } else if (!reads.exact) {
    drawLegend(pen, right, 12, {
      title: 'bytes read per cell',
      table: colours.counts,
      colour: colours.muted,
      low: '0',
      high: format.bytes(reads.max),
    });
  }
  // Names of layers beside the plot, where there is room.
  let free = 0;
  for (const range of layerRanges(info.tensors)) {
    const y0 = Math.max(plot.margin.top, plot.py(range.begin));
    const y1 = Math.min(plot.margin.top + plot.innerHeight, plot.py(range.end));
    if (range.layer === null || y1 - y0 < 13 || y0 < free) continue;
    pen.text(`L${range.layer}`, right + 6, y0 + 8, { colour: colours.muted });
    free = y0 + 13;
  }
}

/** Names of the lanes, as many as fit. */
export function laneTicks(layers: readonly (number | null)[], pixels: number): Tick[] {
  const every = Math.max(1, Math.ceil((13 * layers.length) / Math.max(1, pixels)));
  return layers
    .map((layer, i) => ({ at: i + 0.5, text: layer === null ? 'no layer' : String(layer), isName: true }))
    .filter((tick, i) => i % every === 0 || tick.text === 'no layer');
}
