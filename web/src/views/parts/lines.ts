/** The lines of a chart of the server's by uPlot: hover reads exact values in the key below. */
import uPlot from 'uplot';
import { dashOf, withAlpha, type Colours } from '../../colours';
import { FONT } from '../../canvas';
import { h } from '../../dom';
import * as format from '../../format';
import type { Axis, LineChart } from '../../generated/charts';

export interface LinesOptions {
  height: number;
  /** Values hold until the next point. */
  isStepped?: boolean;
  onClick?: (x: number) => void;
  /** Doublings of x are equally far apart. */
  isDoubling?: boolean;
  /** Where the words of marks stand: where no line runs. */
  wordsAt?: 'top' | 'bottom';
}

/** A line across the chart, with a word beside it. */
export interface Mark {
  x: number;
  text: string;
  colour: string;
}

export interface Extras {
  /** Numbers of two lines, the upper one first, with the area between them filled and themselves thin. */
  band?: [number, number];
  marks?: readonly Mark[];
}

export class Lines {
  readonly element = h('div', { class: 'view-lines' });
  /** What is shown and how to read it, in the report's words. */
  readonly caption = h('p', { class: 'view-definition' });
  private chart: uPlot | null = null;
  private marked: number | null = null;
  private marks: readonly Mark[] = [];
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

  show(of: LineChart, colours: Colours, { band, marks = [] }: Extras = {}): void {
    this.chart?.destroy();
    this.accent = colours.accent;
    this.marks = marks;
    this.caption.textContent = of.caption;
    const { height, isStepped, isDoubling } = this.options;
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
      values: (_, ticks) => ticks.map((tick) => (tick === null ? '' : format.byUnit(one.unit, tick))),
      ...(one.unit === 'bytes' ? { incrs: POWERS } : {}),
    });
    const chart = new uPlot(
      {
        width: Math.max(200, this.element.clientWidth),
        height,
        padding: [8, 24, 0, 0],
        scales: {
          x: isDoubling ? { time: false, distr: 3, log: 2 } : { time: false },
          y: { range: [of.y.min, of.y.max] },
        },
        bands: band && [{ series: [band[0] + 1, band[1] + 1], fill: withAlpha(colours.accent, 0.16) }],
        axes: [
          // Every doubling is named.
          { ...axis(of.x), size: 26, ...(isDoubling ? { filter: (_: uPlot, ticks: number[]) => ticks } : {}) },
          { ...axis(of.y), size: 70 },
        ],
        series: [
          { label: of.x.label, value: text(of.x) },
          ...of.lines.map((line, at): uPlot.Series => {
            const colour = colours.component(line.category);
            const isEdge = band?.includes(at) ?? false;
            return {
              label: line.name,
              stroke: isEdge ? withAlpha(colour, 0.6) : colour,
              width: isEdge ? 1 : 2,
              dash: isEdge ? undefined : dashOf(line.category),
              paths: isStepped ? stepped : undefined,
              points: { show: xs.length <= 32 && !isEdge, size: 5, fill: colour },
              value: text(of.y),
            };
          }),
        ],
        cursor: { drag: { x: true, y: false }, points: { size: 8 } },
        hooks: { draw: [(drawn) => this.drawMarks(drawn)] },
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

  private drawMarks(chart: uPlot): void {
    const chosen = this.marked === null ? [] : [{ x: this.marked, text: '', colour: this.accent }];
    const { ctx, bbox } = chart;
    let line = 0;
    for (const { x: at, text, colour } of [...this.marks, ...chosen]) {
      const x = Math.round(chart.valToPos(at, 'x', true)) + 0.5;
      if (x < bbox.left || x > bbox.left + bbox.width + 1) continue;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = colour;
      ctx.lineWidth = 2 * devicePixelRatio;
      ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      if (text !== '') {
        ctx.font = `${11 * devicePixelRatio}px ${FONT.split('px ')[1] ?? 'sans-serif'}`;
        // One below the other, on the side that has room.
        const isRight = x + ctx.measureText(text).width + 12 * devicePixelRatio > bbox.left + bbox.width;
        ctx.textAlign = isRight ? 'right' : 'left';
        const isTop = this.options.wordsAt === 'top';
        ctx.textBaseline = isTop ? 'top' : 'bottom';
        const away = (4 + 14 * line++) * devicePixelRatio;
        const y = isTop ? bbox.top + away : bbox.top + bbox.height - away;
        ctx.fillText(text, x + (isRight ? -5 : 5) * devicePixelRatio, y);
      }
      ctx.restore();
    }
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
