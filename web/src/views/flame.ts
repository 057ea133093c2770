/**
 * The flame graph: phase → layer → component → op → tensor, by bytes or time.
 *
 * Drawn downwards from the run. Of frames that share half a pixel one is drawn,
 * so that a hundred layers draw as fast as six.
 */
import { CanvasPen, crisp, fit, SvgPen, svgDocument, type Pen } from '../canvas';
import { textOn, withAlpha } from '../colours';
import { Cover, fill, h, segmented, toolbar, type Segmented } from '../dom';
import * as format from '../format';
import type { State } from '../state';
import type { App, View } from '../view';
import { csv } from '../csv';
import { find, layOut, pathOf, search, type Frames } from './parts/flame-layout';

type Measure = 'bytes' | 'nanos';

const MEASURES = [
  { value: 'bytes', text: 'bytes', title: 'bytes read and written: distinct bytes of each access, added up' },
  { value: 'nanos', text: 'time', title: 'time of the nodes, each from the tick before it to its own' },
] as const;
const LEVELS = ['run', 'phase', 'layer', 'component', 'op', 'tensor'];
const MIN_PIXELS = 0.5;
const SEPARATOR = '›';

class Flame implements View {
  readonly id = 'flame';
  readonly title = 'Flame';
  readonly key = '8';
  readonly help: [string, string][] = [
    ['click', 'zoom to a frame'],
    ['backspace', 'zoom out by one level'],
    ['← →', 'the frame beside'],
    ['b', 'bytes or time'],
    ['f', 'search in the flame graph'],
  ];
  private app!: App;
  private frames: Frames | null = null;
  private measure: Measure = 'bytes';
  private zoomed = 0;
  private hovered = -1;
  private hits: { hits: Uint8Array; count: number; value: number } | null = null;
  private readonly canvas = h('canvas', { class: 'view-flame', tabindex: 0, role: 'img', 'aria-label': 'flame graph' });
  private stage!: HTMLElement;
  private cover!: Cover;
  private control!: Segmented;
  private box!: HTMLInputElement;
  private found!: HTMLElement;
  private readonly legend = h('div', { class: 'legend-swatches' });
  private path!: HTMLElement;
  private watcher!: ResizeObserver;
  private frame = 0;

  mount(root: HTMLElement, app: App): void {
    this.app = app;
    this.control = segmented('by', MEASURES, (value) => app.setOpt('flame.by', value));
    this.found = h('span', { class: 'view-found', role: 'status' });
    this.box = h('input', {
      type: 'search',
      placeholder: 'search: attn, MUL_MAT, layer 3',
      'aria-label': 'search in the flame graph',
      class: 'view-search',
      oninput: () => app.setOpt('flame.find', this.box.value || null, { replace: true }),
    });
    this.path = h('nav', { class: 'view-path', 'aria-label': 'where the flame graph is zoomed to' });
    this.stage = h('div', { class: 'stage view-stage' }, this.canvas);
    root.append(
      toolbar(this.control.element, h('label', { class: 'control' }, this.box), this.found, this.legend),
      this.path,
      this.stage,
    );
    this.cover = new Cover(this.stage);
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.stage);
    this.canvas.addEventListener('pointermove', (event) => this.hover(event));
    this.canvas.addEventListener('pointerleave', () => this.leave());
    this.canvas.addEventListener('click', (event) => {
      const at = this.at(event.offsetX, event.offsetY);
      if (at >= 0) this.zoom(at);
    });
  }

  async update(state: State): Promise<void> {
    this.measure = state.opt['flame.by'] === 'nanos' ? 'nanos' : 'bytes';
    this.control.set(this.measure);
    if (this.box.value !== (state.opt['flame.find'] ?? '') && document.activeElement !== this.box)
      this.box.value = state.opt['flame.find'] ?? '';
    const tree = await this.app.api.flame(this.measure, state.filter);
    this.frames = layOut(tree);
    const wanted = (this.app.state.opt['flame.at'] ?? '').split(SEPARATOR);
    this.zoomed = find(this.frames, ['', ...wanted.filter((name) => name !== '')]);
    const text = this.app.state.opt['flame.find'] ?? '';
    this.hits = text.trim() === '' ? null : search(this.frames, text);
    this.showFound();
    this.showLegend();
    this.showPath();
    if (tree.value > 0) this.cover.clear();
    else this.cover.empty();
    this.draw();
  }

  unmount(): void {
    this.watcher.disconnect();
    cancelAnimationFrame(this.frame);
    this.app.tooltip.hide();
    this.frames = null;
  }

  onKey(event: KeyboardEvent): boolean {
    const { frames } = this;
    if (!frames || event.ctrlKey || event.metaKey || event.altKey) return false;
    const parent = frames.parent[this.zoomed] ?? -1;
    switch (event.key) {
      case 'b':
        this.app.setOpt('flame.by', this.measure === 'bytes' ? 'nanos' : 'bytes');
        return true;
      case 'f':
        this.box.focus();
        return true;
      case 'Backspace':
      case 'ArrowUp':
        if (parent >= 0) this.zoom(parent);
        return true;
      case 'ArrowDown':
        if (frames.parent[this.zoomed + 1] === this.zoomed) this.zoom(this.zoomed + 1);
        return true;
      case 'ArrowLeft':
      case 'ArrowRight':
        this.sibling(event.key === 'ArrowRight' ? 1 : -1);
        return true;
      case 'Home':
        this.zoom(0);
        return true;
      default:
        return false;
    }
  }

  exportCsv(): string {
    const { frames } = this;
    const names = LEVELS.slice(1);
    if (!frames) return csv([...names, this.measure], []);
    const rows: (string | number)[][] = [];
    for (let at = 0; at < frames.count; at++) {
      // Only the tips: what lies above is their sum.
      if (frames.parent[at + 1] === at) continue;
      const path = pathOf(frames, at).slice(1);
      rows.push([...names.map((_, level) => path[level] ?? ''), frames.value[at] ?? 0]);
    }
    return csv([...names, this.measure], rows);
  }

  exportCanvas(): HTMLCanvasElement {
    return this.canvas;
  }

  exportSvg(): string {
    const pen = new SvgPen();
    const [width, height] = [this.stage.clientWidth, this.height()];
    this.paint(pen, width);
    return svgDocument([{ width, height, body: pen.parts.join('') }], this.app.colours.ground);
  }

  private zoom(at: number): void {
    if (!this.frames) return;
    const path = pathOf(this.frames, at).slice(1).join(SEPARATOR);
    this.app.setOpt('flame.at', path === '' ? null : path);
  }

  private sibling(step: number): void {
    const { frames } = this;
    if (!frames) return;
    const parent = frames.parent[this.zoomed] ?? -1;
    const same: number[] = [];
    for (let at = 0; at < frames.count; at++) if (parent >= 0 && frames.parent[at] === parent) same.push(at);
    const next = same[same.indexOf(this.zoomed) + step];
    if (next !== undefined) this.zoom(next);
  }

  private rowHeight(): number {
    const depths = this.frames?.depths ?? 1;
    return Math.max(22, Math.min(84, Math.floor((this.stage.clientHeight - 24) / Math.max(1, depths))));
  }

  private height(): number {
    return (this.frames?.depths ?? 1) * this.rowHeight() + 8;
  }

  private draw(): void {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => {
      const width = this.stage.clientWidth;
      if (!this.frames || width < 10) return;
      const context = crisp(this.canvas, width, this.height());
      context.fillStyle = this.app.colours.ground;
      context.fillRect(0, 0, width, this.height());
      this.paint(new CanvasPen(context), width);
    });
  }

  private paint(pen: Pen, width: number): void {
    const { frames, app } = this;
    if (!frames) return;
    const high = this.rowHeight();
    const left = frames.begin[this.zoomed] ?? 0;
    const scale = (width - 16) / (frames.width[this.zoomed] || 1);
    const ancestors = new Set<number>();
    for (let at = this.zoomed; at >= 0; at = frames.parent[at] ?? -1) ancestors.add(at);
    const ends = new Float64Array(frames.depths).fill(-Infinity);
    for (let at = 0; at < frames.count; at++) {
      const isAncestor = ancestors.has(at);
      const begin = isAncestor ? 8 : 8 + ((frames.begin[at] ?? 0) - left) * scale;
      const wide = isAncestor ? width - 16 : (frames.width[at] ?? 0) * scale;
      const depth = frames.depth[at] ?? 0;
      // Beside the frame that is zoomed to; a thousandth of a pixel is rounding.
      if (begin + wide < 8.001 || begin > width - 8.001) continue;
      if (!isAncestor && depth <= (frames.depth[this.zoomed] ?? 0)) continue;
      // Of frames that share a pixel one is drawn: the eye could not tell them apart.
      if (begin + wide < (ends[depth] ?? 0) + MIN_PIXELS) continue;
      const from = wide < MIN_PIXELS ? Math.max(begin, ends[depth] ?? 0) : begin;
      ends[depth] = Math.max(begin + wide, from + MIN_PIXELS);
      const y = 4 + depth * high;
      const isHit = this.hits?.hits[at] === 1;
      let colour = this.colourOf(at);
      if (this.hits && !isHit) colour = mixed(colour, app.colours.panel, 0.78);
      if (at === this.hovered) colour = mixed(colour, app.colours.text, 0.25);
      const gap = wide > 3 ? 1 : 0;
      pen.rect(from, y, Math.max(MIN_PIXELS, wide - gap), high - 1, colour);
      if (isAncestor && at !== this.zoomed)
        pen.rect(begin, y, wide - gap, high - 1, withAlpha(app.colours.ground, 0.45));
      if (isHit && wide > 2) pen.rect(begin, y + high - 4, wide - gap, 3, app.colours.accent);
      if (wide > 16) this.label(pen, at, begin, y, wide, high, colour);
    }
  }

  private label(pen: Pen, at: number, begin: number, y: number, wide: number, high: number, colour: string): void {
    const name = this.nameOf(at);
    const isLayer = this.frames?.depth[at] === 2;
    // Whole or not at all: half a number is another number. Of a tensor's name the end says most.
    const shorter = isLayer ? name.replace('layer ', '') : name.replace(/^blk\.\d+\./, '');
    const bare = shorter.replace(/\.(?:weight|bias)$/, '');
    const room = wide - 10;
    const fitting = (...texts: string[]) => texts.find((text) => pen.measure(text) <= room) ?? '';
    // A few letters of a name are no name.
    const begun = fit(pen, bare, room);
    const cut = begun.length > 4 ? begun : '';
    const value = this.show(this.frames?.value[at] ?? 0);
    const ink = { colour: textOn(colour), align: 'left' } as const;
    if (high >= 38) {
      const short = fitting(name, shorter, bare);
      const long = short || cut;
      if (long) pen.text(long, begin + 5, y + high / 2 - 8, ink);
      const shown = fitting(value);
      if (shown) pen.text(shown, begin + 5, y + high / 2 + 8, { ...ink, colour: withAlpha(ink.colour, 0.75) });
    } else {
      const both = fitting(`${name}  ${value}`, `${shorter}  ${value}`, name, shorter, bare);
      const long = both || cut;
      if (long) pen.text(long, begin + 5, y + high / 2, ink);
    }
  }

  /** By what it is: phases and layers in greys, then components with their colour. */
  private colourOf(at: number): string {
    const { frames, app } = this;
    const depth = frames?.depth[at] ?? 0;
    if (!frames || depth === 0) return mixed(app.colours.muted, app.colours.panel, 0.55);
    if (depth === 1) return mixed(app.colours.muted, app.colours.panel, frames.name[at] === 'prompt' ? 0.35 : 0.45);
    if (depth === 2) return mixed(app.colours.muted, app.colours.panel, 0.6 + 0.12 * ((at % 3) - 1));
    let component = at;
    while ((frames.depth[component] ?? 0) > 3) component = frames.parent[component] ?? 0;
    const own = app.colours.component(frames.name[component] ?? null);
    return mixed(own, app.colours.panel, depth === 3 ? 0 : depth === 4 ? 0.18 : 0.32 + 0.1 * (at % 2));
  }

  private nameOf(at: number): string {
    const name = this.frames?.name[at] ?? '';
    return (this.frames?.depth[at] ?? 0) === 2 && /^\d+$/.test(name) ? `layer ${name}` : name;
  }

  private show(value: number): string {
    return this.measure === 'bytes' ? format.bytes(value) : format.nanos(value);
  }

  private at(x: number, y: number): number {
    const { frames } = this;
    if (!frames) return -1;
    const depth = Math.floor((y - 4) / this.rowHeight());
    const share =
      (frames.begin[this.zoomed] ?? 0) + ((x - 8) / (this.stage.clientWidth - 16)) * (frames.width[this.zoomed] ?? 1);
    if (depth <= (frames.depth[this.zoomed] ?? 0)) {
      for (let at = this.zoomed; at >= 0; at = frames.parent[at] ?? -1) if (frames.depth[at] === depth) return at;
      return -1;
    }
    for (let at = 0; at < frames.count; at++) {
      const begin = frames.begin[at] ?? 0;
      if (frames.depth[at] === depth && share >= begin && share < begin + (frames.width[at] ?? 0)) return at;
    }
    return -1;
  }

  private hover(event: PointerEvent): void {
    const { frames, app } = this;
    const at = this.at(event.offsetX, event.offsetY);
    if (at !== this.hovered) {
      this.hovered = at;
      this.draw();
    }
    if (!frames || at < 0) return app.tooltip.hide();
    this.canvas.style.cursor = 'pointer';
    const value = frames.value[at] ?? 0;
    const parent = frames.parent[at] ?? -1;
    const whole = frames.value[0] || 1;
    app.tooltip.show(
      event.clientX,
      event.clientY,
      this.nameOf(at),
      [
        ['level', LEVELS[frames.depth[at] ?? 0] ?? ''],
        [this.measure === 'bytes' ? 'bytes' : 'time', this.show(value)],
        ['exactly', this.measure === 'bytes' ? `${format.integer(value)} bytes` : format.exactNanos(value)],
        ['of all', format.percent(value / whole)],
        ...(parent > 0
          ? [[`of ${this.nameOf(parent)}`, format.percent(value / (frames.value[parent] || 1))] as [string, string]]
          : []),
      ],
      this.colourOf(at),
    );
  }

  private leave(): void {
    this.hovered = -1;
    this.app.tooltip.hide();
    this.draw();
  }

  private showFound(): void {
    const { hits, frames } = this;
    if (!hits || !frames) return void (this.found.textContent = '');
    const share = format.percent(hits.value / (frames.value[0] || 1));
    this.found.textContent =
      hits.count === 0
        ? 'nothing found'
        : `${format.integer(hits.count)} frames, ${this.show(hits.value)}, ${share} of all`;
  }

  /** Colours of the components: narrow frames have no room for their names. */
  private showLegend(): void {
    const { frames, app } = this;
    const names = new Set<string>();
    for (let at = 0; frames && at < frames.count; at++) if (frames.depth[at] === 3) names.add(frames.name[at] ?? '');
    const items = [...names].sort().map((name) => {
      const square = h('i', { class: 'swatch' });
      square.style.background = app.colours.component(name);
      return h('span', {}, square, name);
    });
    fill(this.legend, ...items);
  }

  private showPath(): void {
    const { frames } = this;
    if (!frames) return;
    const steps: Node[] = [];
    for (let at = this.zoomed; at >= 0; at = frames.parent[at] ?? -1) {
      const to = at;
      steps.unshift(
        h(
          'button',
          { type: 'button', 'aria-current': at === this.zoomed ? 'true' : null, onclick: () => this.zoom(to) },
          this.nameOf(at) || 'run',
        ),
      );
    }
    fill(this.path, ...steps);
  }
}

/** `#rrggbb` moved towards another by a share. */
function mixed(from: string, to: string, share: number): string {
  const channel = (colour: string, at: number) => Number.parseInt(colour.slice(1 + 2 * at, 3 + 2 * at), 16);
  const mix = (at: number) => Math.round(channel(from, at) + (channel(to, at) - channel(from, at)) * share);
  return `#${[0, 1, 2].map((at) => mix(at).toString(16).padStart(2, '0')).join('')}`;
}

export function flame(): View {
  return new Flame();
}
