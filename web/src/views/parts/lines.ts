/** Lines over a common x by uPlot: hover reads exact values in the key below. */
import uPlot from 'uplot';
import type { Colours } from '../../colours';
import { FONT } from '../../canvas';
import { h } from '../../dom';

export type LineUnit = 'bytes' | 'count' | 'share';

export interface Line {
  name: string;
  colour: string;
  values: readonly (number | null)[];
  dash?: number[];
  isStepped?: boolean;
  fill?: string;
  hasPoints?: boolean;
}

export interface LinesOptions {
  height: number;
  x: { name: string; unit: LineUnit; format: (value: number) => string };
  y: { name: string; unit: LineUnit; format: (value: number) => string; most?: number };
  onClick?: (x: number) => void;
}

export class Lines {
  readonly element = h('div', { class: 'vb-lines' });
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

  show(xs: readonly number[], lines: readonly Line[], colours: Colours): void {
    this.chart?.destroy();
    this.accent = colours.accent;
    const { x, y, height } = this.options;
    const stepped = uPlot.paths.stepped?.({ align: 1 });
    const axis = (of: typeof x): uPlot.Axis => ({
      stroke: colours.muted,
      font: FONT,
      label: of.name,
      labelFont: FONT,
      labelSize: 16,
      labelGap: 0,
      grid: { stroke: colours.grid, width: 1 },
      ticks: { stroke: colours.line, width: 1, size: 4 },
      values: (_, ticks) => ticks.map((tick) => of.format(tick)),
      ...(of.unit === 'bytes' ? { incrs: POWERS } : {}),
    });
    const chart = new uPlot(
      {
        width: Math.max(200, this.element.clientWidth),
        height,
        padding: [8, 24, 0, 0],
        scales: {
          x: { time: false },
          y: { range: (_, __, most) => [0, y.most ?? (most > 0 ? most * 1.05 : 1)] },
        },
        axes: [
          { ...axis(x), size: 26 },
          { ...axis(y), size: 70 },
        ],
        series: [
          { label: x.name, value: (_, value) => (value === null || value === undefined ? '' : x.format(value)) },
          ...lines.map((line): uPlot.Series => ({
            label: line.name,
            stroke: line.colour,
            width: 2,
            dash: line.dash,
            fill: line.fill,
            paths: line.isStepped ? stepped : undefined,
            points: { show: line.hasPoints ?? xs.length <= 32, size: 5, fill: line.colour },
            value: (_, value) => (value === null || value === undefined ? '' : y.format(value)),
          })),
        ],
        cursor: { drag: { x: true, y: false }, points: { size: 8 } },
        hooks: { draw: [(of) => this.drawMark(of)] },
      },
      [[...xs], ...lines.map((line) => [...line.values])] as uPlot.AlignedData,
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
