/** Beside the map of the playback: a row per layer with its experts, and below the nodes around the current one. */
import { CanvasPen, fit } from './canvas';
import { css, withAlpha, type Colours } from './colours';
import * as format from './format';
import type { EvalInfo, EvalStep } from './generated/index';

const LABEL_PX = 58;

export interface GridOptions {
  layers: readonly (number | null)[];
  experts: number;
  colours: Colours;
  current: EvalInfo;
  /** Index of the current step. */
  step: number;
  /** Steps with how much they still glow, 0 to 1. */
  recent: readonly (readonly [EvalStep, number])[];
}

export function weightBytes(step: EvalStep): number {
  return step.ranges.reduce((sum, [, bytes]) => sum + bytes, 0);
}

export function drawLayerGrid(
  context: CanvasRenderingContext2D,
  width: number,
  height: number,
  options: GridOptions,
): void {
  const { layers, experts, colours, current } = options;
  context.fillStyle = colours.ground;
  context.fillRect(0, 0, width, height);
  const pen = new CanvasPen(context);
  const rowHeight = Math.min(40, height / Math.max(1, layers.length));
  const size = rowHeight - (rowHeight > 8 ? 3 : 1);
  const layerWidth = experts > 0 ? Math.max(60, (width - LABEL_PX) * 0.3) : width - LABEL_PX;
  const expertX = LABEL_PX + layerWidth + 10;
  const expertWidth = experts > 0 ? (width - expertX) / experts : 0;
  const glow = glows(options.recent);
  const progress = shares(current, options.step);
  const now = current.steps[options.step];

  layers.forEach((layer, i) => {
    const y = i * rowHeight;
    const isNow = now?.layer === layer;
    if (rowHeight >= 11 || i % Math.ceil(11 / rowHeight) === 0) {
      const text = layer === null ? 'no layer' : `layer ${layer}`;
      pen.text(text, LABEL_PX - 8, y + size / 2, { colour: isNow ? colours.text : colours.muted, align: 'right' });
    }
    const share = progress.get(layer) ?? 0;
    pen.rect(LABEL_PX, y, layerWidth, size, colours.panel);
    context.globalAlpha = 0.18 + 0.82 * (glow.layers.get(layer) ?? 0);
    pen.rect(LABEL_PX, y, layerWidth * share, size, css(colours.counts, isNow ? 0.75 : 0.55));
    context.globalAlpha = 1;
    if (isNow && now && size >= 12) {
      // On the side that has room for it: on the bar, or on what is left of it.
      const text = fit(pen, now.op, layerWidth * 0.5 - 8);
      if (share >= 0.5) pen.text(text, LABEL_PX + 6, y + size / 2, { colour: onGlow(colours) });
      else pen.text(text, LABEL_PX + layerWidth - 6, y + size / 2, { colour: colours.text, align: 'right' });
    }
    for (let e = 0; e < experts && layer !== null; e++) {
      const g = glow.experts.get(`${layer}/${e}`) ?? 0;
      const x = expertX + e * expertWidth;
      const w = Math.max(0.5, expertWidth - (expertWidth > 5 ? 2 : 0.5));
      pen.rect(x, y, w, size, expertWidth > 12 ? colours.panel : colours.grid);
      if (g > 0.01) {
        context.globalAlpha = Math.min(1, 0.2 + g);
        pen.rect(x, y, w, size, css(colours.counts, 0.35 + 0.65 * g));
        context.globalAlpha = 1;
      }
      if (expertWidth >= 22 && size >= 14) {
        pen.text(String(e), x + w / 2, y + size / 2, {
          colour: g > 0.35 ? onGlow(colours) : colours.muted,
          align: 'center',
        });
      }
    }
  });
  drawNodes(context, layers.length * rowHeight + 14, width, height, options);
}

/** The nodes before and after the current one, as far as there is room. */
function drawNodes(
  context: CanvasRenderingContext2D,
  top: number,
  width: number,
  height: number,
  options: GridOptions,
): void {
  const { colours, current } = options;
  const line = 17;
  const room = Math.floor((height - top - 4) / line);
  if (room < 3) return;
  const pen = new CanvasPen(context);
  const first = Math.max(0, Math.min(current.steps.length - room, options.step - Math.floor(room / 3)));
  pen.line(0, top - 6, width, top - 6, colours.grid);
  current.steps.slice(first, first + room).forEach((step, i) => {
    const index = first + i;
    const y = top + i * line + line / 2;
    const isNow = index === options.step;
    if (isNow) pen.rect(0, y - line / 2, width, line, withAlpha(colours.accent, 0.18));
    const colour = isNow ? colours.text : index < options.step ? colours.muted : withAlpha(colours.muted, 0.6);
    pen.rect(6, y - 4, 8, 8, colours.op(step.op));
    pen.text(fit(pen, step.op, width * 0.28), 22, y, { colour });
    pen.text(fit(pen, step.name, width * 0.34), 30 + width * 0.28, y, { colour });
    pen.text(weightBytes(step) > 0 ? format.bytes(weightBytes(step)) : '', width - 76, y, { colour, align: 'right' });
    pen.text(format.nanos(step.end - step.begin), width - 6, y, { colour, align: 'right' });
  });
}

function glows(recent: GridOptions['recent']): { layers: Map<number | null, number>; experts: Map<string, number> } {
  const layers = new Map<number | null, number>();
  const experts = new Map<string, number>();
  for (const [step, g] of recent) {
    layers.set(step.layer, Math.max(layers.get(step.layer) ?? 0, g));
    for (const expert of step.experts) {
      const key = `${step.layer}/${expert}`;
      experts.set(key, Math.max(experts.get(key) ?? 0, g));
    }
  }
  return { layers, experts };
}

/** How much of each layer has been computed, 0 to 1. */
function shares(current: EvalInfo, now: number): Map<number | null, number> {
  const all = new Map<number | null, number>();
  const done = new Map<number | null, number>();
  current.steps.forEach((step, i) => {
    all.set(step.layer, (all.get(step.layer) ?? 0) + 1);
    if (i <= now) done.set(step.layer, (done.get(step.layer) ?? 0) + 1);
  });
  return new Map([...all].map(([layer, steps]) => [layer, (done.get(layer) ?? 0) / steps]));
}

/** A colour that reads on a bright glow. */
function onGlow(colours: Colours): string {
  return colours.theme === 'dark' ? '#10131a' : '#ffffff';
}
