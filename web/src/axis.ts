/** One axis of a plot: the window that it shows within its limits. */
import type { AxisKind, Tick } from './ticks';

export interface AxisOptions {
  label: string;
  kind: AxisKind;
  /** The most that can be shown. */
  limits: [number, number];
  /** Does not move; ticks are drawn all the same. */
  isFixed?: boolean;
  /** Shortest range to zoom into. */
  shortest?: number;
  /** Own ticks, for lanes and names. */
  ticks?: (low: number, high: number, pixels: number) => Tick[];
  /** Lines of the grid over the plot; off unless asked for. */
  hasGrid?: boolean;
  /** Pixels between the axis and its texts, for something that stands there. */
  clearance?: number;
  /** Neither line nor ticks nor label. */
  isHidden?: boolean;
}

export class Axis {
  low: number;
  high: number;

  constructor(public options: AxisOptions) {
    [this.low, this.high] = options.limits;
  }

  get span(): number {
    return this.high - this.low;
  }

  /** Shows [low, high], moved and widened so that it lies within the limits. */
  show(low: number, high: number): void {
    const [min, max] = this.options.limits;
    const whole = max - min;
    const span = Math.min(whole, Math.max(high - low, Math.min(whole, this.options.shortest ?? 0)));
    const middle = (low + high) / 2;
    this.low = Math.min(Math.max(min, middle - span / 2), max - span);
    this.high = this.low + span;
  }

  showAll(): void {
    [this.low, this.high] = this.options.limits;
  }

  get isWhole(): boolean {
    return this.low === this.options.limits[0] && this.high === this.options.limits[1];
  }

  /** The window widened by a share of it on both sides, within the limits. */
  widened(share: number): [number, number] {
    if (this.options.isFixed) return [this.low, this.high];
    const [min, max] = this.options.limits;
    return [
      Math.max(Math.min(min, this.low), this.low - this.span * share),
      Math.min(Math.max(max, this.high), this.high + this.span * share),
    ];
  }

  /** Around a value that stays where it is. */
  zoom(factor: number, around: number): void {
    this.show(around - (around - this.low) * factor, around + (this.high - around) * factor);
  }
}
