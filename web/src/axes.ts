/** Lines, ticks and labels around a plot. */
import { FONT, type Pen } from './canvas';
import type { Colours } from './colours';
import type { Plot } from './plot';
import { axisTicks } from './ticks';

export function drawAxes(pen: Pen, plot: Plot, colours: Colours): void {
  const { muted, grid, line } = colours;
  const { left, top } = plot.margin;
  const right = left + plot.innerWidth;
  const bottom = top + plot.innerHeight;
  for (const tick of plot.x.options.isHidden
    ? []
    : axisTicks(plot.x.options, plot.x.low, plot.x.high, plot.innerWidth)) {
    const x = plot.px(tick.at);
    if (x < left - 0.5 || x > right + 0.5) continue;
    if (plot.x.options.hasGrid) pen.line(x, top, x, bottom, grid);
    pen.line(x, bottom, x, bottom + 4, line);
    if (!tick.text) continue;
    // The last text moves to the left rather than out of the plot.
    const half = pen.measure(tick.text) / 2;
    const centre = Math.min(x, plot.width - half - 2);
    pen.text(tick.text, centre, bottom + 7, { colour: muted, align: 'center', baseline: 'top', font: FONT });
  }
  for (const tick of plot.y.options.isHidden
    ? []
    : axisTicks(plot.y.options, plot.y.low, plot.y.high, plot.innerHeight, 36)) {
    const y = plot.py(tick.at);
    if (y < top - 0.5 || y > bottom + 0.5) continue;
    if (plot.y.options.hasGrid) pen.line(left, y, right, y, grid);
    if (!tick.isName) pen.line(left - 4, y, left, y, line);
    const gap = 7 + (plot.y.options.clearance ?? 0);
    if (tick.text)
      pen.text(tick.text, left - gap, y, { colour: muted, align: 'right', baseline: 'middle', font: FONT });
  }
  if (!plot.y.options.isHidden) pen.line(left, top, left, bottom, line);
  if (!plot.x.options.isHidden) pen.line(left, bottom, right, bottom, line);
  if (plot.x.options.label) {
    pen.text(plot.x.options.label, right, bottom + 21, { colour: muted, align: 'right', baseline: 'top', font: FONT });
  }
  if (plot.y.options.label) {
    pen.text(plot.y.options.label, 8, top - 13, { colour: muted, align: 'left', baseline: 'middle', font: FONT });
  }
}
