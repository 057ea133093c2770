/** The lines of a chart of the server's by uPlot: hover reads exact values in the key below. */
import uPlot from 'uplot';
import { dashOf, type Colours } from '../../colours';
import { FONT } from '../../canvas';
import { h } from '../../dom';
import * as format from '../../format';
import type { Axis, LineChart } from '../../generated/charts';

export interface LinesOptions {
  height: number;
  /** Values hold until the next point. */
  isStepped?: boolean;
  onClick?: (x: number) => void;
}

export class Lines {
  readonly element = h('div', { class: 'view-lines' });
  /** What is shown and how to read it, in the report's words. */
  readonly caption = h('p', { class: 'view-definition' });
  private chart: uPlot | null = null;
  private marked: number | null = null;
  private accent = '';
  private readonly watcher: ResizeObserver;

  constructor(private readonly options: LinesOptions) {
    this.watcher = new ResizeObserver(() => {
      const width = this.element.clientWidth;
      if (this.chart && width > 50 && width !== this.chart.width)
        this.chart.setSize({ width, height: this.options.height });
    });
    this.watcher.observe(this.element);
  }

  show(of: LineChart, colours: Colours): void {
    this.chart?.destroy();
    this.accent = colours.accent;
    this.caption.textContent = of.caption;
    const { height, isStepped } = this.options;
    const stepped = uPlot.paths.stepped?.({ align: 1 });
    const { xs, rows } = aligned(of);
    const text = (axis: Axis) => (_: uPlot, value: number | null | undefined) =>
      value === null || value === undefined ? '' : format.byUnit(axis.unit, value);
    const axis = (one: Axis): uPlot.Axis => ({
      stroke: colours.muted,
      font: FONT,
      label: one.label,
      labelFont: FONT,
      labelSize: 16,
      labelGap: 0,
      grid: { stroke: colours.grid, width: 1 },
      ticks: { stroke: colours.line, width: 1, size: 4 },
      values: (_, ticks) => ticks.map((tick) => format.byUnit(one.unit, tick)),
      ...(one.unit === 'bytes' ? { incrs: POWERS } : {}),
    });
    const chart = new uPlot(
      {
        width: Math.max(200, this.element.clientWidth),
        height,
        padding: [8, 24, 0, 0],
        scales: { x: { time: false }, y: { range: [of.y.min, of.y.max] } },
        axes: [
          { ...axis(of.x), size: 26 },
          { ...axis(of.y), size: 70 },
        ],
        series: [
          { label: of.x.label, value: text(of.x) },
          ...of.lines.map((line): uPlot.Series => {
            const colour = colours.component(line.category);
            return {
              label: line.name,
              stroke: colour,
              width: 2,
              dash: dashOf(line.category),
              paths: isStepped ? stepped : undefined,
              points: { show: xs.length <= 32, size: 5, fill: colour },
              value: text(of.y),
            };
          }),
        ],
        cursor: { drag: { x: true, y: false }, points: { size: 8 } },
        hooks: { draw: [(drawn) => this.drawMark(drawn)] },
      },
      [xs, ...rows] as uPlot.AlignedData,
      this.element,
    );
    this.chart = chart;
    const click = this.options.onClick;
    if (click) {
      let downAt = 0;
      chart.over.addEventListener('pointerdown', (event) => (downAt = event.clientX));
      chart.over.addEventListener('click', (event) => {
        if (Math.abs(event.clientX - downAt) < 4) click(chart.posToVal(event.offsetX, 'x'));
      });
    }
  }

  /** A line at this x. */
  mark(x: number | null): void {
    this.marked = x;
    this.chart?.redraw(false);
  }

  destroy(): void {
    this.watcher.disconnect();
    this.chart?.destroy();
    this.chart = null;
  }

  private drawMark(chart: uPlot): void {
    if (this.marked === null) return;
    const x = Math.round(chart.valToPos(this.marked, 'x', true)) + 0.5;
    const { ctx, bbox } = chart;
    if (x < bbox.left || x > bbox.left + bbox.width) return;
    ctx.save();
    ctx.strokeStyle = this.accent;
    ctx.lineWidth = 2 * devicePixelRatio;
    ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  }
}

const POWERS = [...Array(50).keys()].map((power) => 2 ** power);

/** All x of all lines once, and each line's values there; null where it has none. */
export function aligned(of: LineChart): { xs: number[]; rows: (number | null)[][] } {
  const xs = [...new Set(of.lines.flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b);
  const rows = of.lines.map((line) => {
    const known = new Map(line.points);
    return xs.map((x) => known.get(x) ?? null);
  });
  return { xs, rows };
}
