/**
 * The computation as a film: node by node, token by token.
 *
 * The position is (evaluation, step); both stand in the address. What glows is
 * decided by the position alone: a range that was read k steps ago glows by
 * exp(−k/tail). So scrubbing backwards shows the same picture as playing. What
 * the filter leaves out does not glow.
 */
import { csv } from '../csv';
import { crisp, CanvasPen, stackCanvases } from '../canvas';
import { css, withAlpha } from '../colours';
import { Cover, h, segmented, type Segmented } from '../dom';
import { layerRanges, rowBytes, tensorAt, tensorBefore, type RowLayout } from '../filemap';
import * as format from '../format';
import { drawLayerGrid, weightBytes } from '../layergrid';
import { KernelCells } from '../kernelcells';
import { computes, scrubOf } from '../scrub';
import type { Filter, State } from '../state';
import type { EvalInfo, EvalStep, TensorInfo, TokenInfo } from '../generated/index';
import type { App, View } from '../view';

/** Nodes per second. */
const SPEEDS = [8, 30, 120, 500, 2000];
const CELL_PX = 8;
/** Evaluations kept ready ahead of the one that plays. */
const AHEAD = 3;
const NEIGHBOURS = 48;

export function playback(): View {
  return new PlaybackView();
}

class PlaybackView implements View {
  id = 'playback';
  title = 'Playback';
  key = '2';
  help: [string, string][] = [
    ['Space', 'play or pause'],
    ['← →', 'one node back or on'],
    ['Shift + ← →', 'one token back or on; tokens of a batch go together'],
    ['Home End', 'first or last token'],
    ['− +', 'slower or faster'],
  ];
  private app!: App;
  private cover!: Cover;
  private mapCanvas!: HTMLCanvasElement;
  private gridCanvas!: HTMLCanvasElement;
  private readonly parts = {
    past: h('bdi', {}),
    now: h('span', { class: 'now' }),
    coming: h('span', { class: 'coming' }),
    facts: h('div', { class: 'play-facts' }),
    node: h('div', { class: 'play-caption' }),
    grid: h('div', { class: 'play-caption' }),
    play: h('button', { type: 'button', class: 'play', title: 'play or pause (Space)' }, '▶ play'),
    tokenRange: h('input', { type: 'range', min: 0, 'aria-label': 'token' }),
    tokenUnit: h('span', {}, 'token'),
    nodeRange: h('input', { type: 'range', min: 0, 'aria-label': 'node' }),
    tokenText: h('output', {}),
    nodeText: h('output', {}),
  };
  private kernel!: KernelCells;
  private speeds!: Segmented;
  private resizes: ResizeObserver | null = null;
  private frame = 0;
  private isPlaying = false;
  private lastTime = 0;
  /** Fraction of a step that has been played. */
  private fraction = 0;
  /** The token that the slider was moved to, also when it is not the first of its batch… */
  private scrubbed: number | null = null;
  /** …and while its evaluation is being looked up. */
  private asked: number | null = null;
  private current: EvalInfo | null = null;
  private previous: EvalInfo | null = null;
  /** Index into the steps of the current evaluation; the state holds the step's number. */
  private step = 0;
  private neighbours: TokenInfo[] = [];
  private layout: RowLayout | null = null;
  /** The map without any glow, painted once per size and theme. */
  private base: HTMLCanvasElement | null = null;
  private baseKey = '';
  private readonly details = new Map<number, Promise<EvalInfo>>();
  private version = -1;

  mount(root: HTMLElement, app: App): void {
    this.app = app;
    this.kernel = new KernelCells(app, () => this.draw());
    this.current = null;
    this.previous = null;
    this.scrubbed = this.asked = null;
    this.neighbours = [];
    this.baseKey = '';
    this.details.clear();
    const { parts } = this;
    this.mapCanvas = h('canvas', { role: 'img', 'aria-label': 'the model file; ranges that were just read glow' });
    this.gridCanvas = h('canvas', { role: 'img', 'aria-label': 'layers and experts that are at work' });
    const button = (text: string, title: string, act: () => void) =>
      h('button', { type: 'button', title, 'aria-label': title, onclick: act }, text);
    parts.play.onclick = () => this.toggle();
    // A token that cannot be had leaves the film where it is.
    parts.tokenRange.oninput = () => void this.scrub(Number(parts.tokenRange.value)).catch(() => undefined);
    parts.nodeRange.oninput = () => {
      if (this.current) this.go(this.current.eval, this.stepNumber(Number(parts.nodeRange.value)));
    };
    this.speeds = segmented(
      'nodes/s',
      SPEEDS.map((s) => ({ value: String(s), text: format.integer(s) })),
      (value) => app.setOpt('playback.speed', value, { replace: true }),
    );
    const mapHost = h('div', { class: 'play-canvas' }, this.mapCanvas);
    const gridHost = h('div', { class: 'play-canvas' }, this.gridCanvas);
    const stage = h(
      'div',
      { class: 'stage' },
      h(
        'div',
        { class: 'play-tokens' },
        h('div', { class: 'play-line' }, h('span', { class: 'past' }, parts.past), parts.now, parts.coming),
        parts.facts,
      ),
      h(
        'div',
        { class: 'play-body' },
        h('div', {}, parts.node, this.kernel.element, mapHost),
        h('div', {}, parts.grid, gridHost),
      ),
      h(
        'div',
        { class: 'play-controls' },
        h(
          'div',
          { class: 'buttons' },
          button('|◂', 'one token back (Shift ←); tokens of a batch go together', () => this.moveToken(-1)),
          button('◂', 'one node back (←)', () => this.moveStep(-1)),
          parts.play,
          button('▸', 'one node on (→)', () => this.moveStep(1)),
          button('▸|', 'one token on (Shift →); tokens of a batch go together', () => this.moveToken(1)),
        ),
        h('label', { class: 'scrub' }, parts.tokenUnit, parts.tokenRange, parts.tokenText),
        h('label', { class: 'scrub' }, 'node', parts.nodeRange, parts.nodeText),
        this.speeds.element,
      ),
    );
    root.append(stage);
    this.cover = new Cover(stage);
    this.resizes = new ResizeObserver(() => this.draw());
    this.resizes.observe(mapHost);
    this.resizes.observe(gridHost);
  }

  unmount(): void {
    this.pause();
    cancelAnimationFrame(this.frame);
    this.resizes?.disconnect();
  }

  async update(state: State): Promise<void> {
    const { info } = this.app;
    this.speeds.set(String(this.speed));
    if (info.totals.evals === 0) {
      this.cover.empty('this run has no evaluation yet');
      return;
    }
    if (this.version !== info.version) this.details.clear();
    this.version = info.version;
    const wanted = this.wantedEval(state);
    const [detail, previous] = await Promise.all([this.detail(wanted), wanted > 0 ? this.detail(wanted - 1) : null]);
    this.current = detail;
    this.previous = previous;
    this.step = indexOfStep(detail, state.step ?? 0);
    this.cover.clear();
    this.draw();
    await this.showTokens(detail);
  }

  onKey(event: KeyboardEvent): boolean {
    switch (event.key) {
      case ' ':
        this.toggle();
        return true;
      case 'ArrowLeft':
        event.shiftKey ? this.moveToken(-1) : this.moveStep(-1);
        return true;
      case 'ArrowRight':
        event.shiftKey ? this.moveToken(1) : this.moveStep(1);
        return true;
      case 'Home':
        this.go(0, 0);
        return true;
      case 'End':
        this.go(this.app.info.totals.evals - 1, 0);
        return true;
      case '+':
      case '=':
        this.changeSpeed(1);
        return true;
      case '-':
      case '_':
        this.changeSpeed(-1);
        return true;
      default:
        return false;
    }
  }

  exportCanvas(): HTMLCanvasElement {
    return stackCanvases([this.mapCanvas, this.gridCanvas], this.app.colours.ground);
  }

  exportCsv(): string {
    const names = ['eval', 'step', 'op', 'name', 'layer', 'begin_nanos', 'end_nanos', 'weight_bytes', 'experts'];
    const { current } = this;
    const row = (s: EvalInfo['steps'][number]) => [
      current?.eval,
      s.step,
      s.op,
      s.name,
      s.layer,
      s.begin,
      s.end,
      weightBytes(s),
      s.experts.join(' '),
    ];
    return csv(names, (current?.steps ?? []).map(row));
  }

  private get speed(): number {
    const wanted = Number(this.app.state.opt['playback.speed']);
    return SPEEDS.includes(wanted) ? wanted : 120;
  }

  private changeSpeed(by: 1 | -1): void {
    const next = SPEEDS[SPEEDS.indexOf(this.speed) + by];
    if (next) this.app.setOpt('playback.speed', String(next), { replace: true });
  }

  private wantedEval(state: State): number {
    return Math.max(0, Math.min(this.app.info.totals.evals - 1, state.eval ?? 0));
  }

  private detail(number: number): Promise<EvalInfo> {
    let found = this.details.get(number);
    if (!found) {
      found = this.app.api.evaluation(number);
      this.details.set(number, found);
      found.catch(() => this.details.delete(number));
      for (const old of this.details.keys()) {
        if (this.details.size <= AHEAD + 8) break;
        this.details.delete(old);
      }
    }
    return found;
  }

  /** To the evaluation that computes a token. */
  private async scrub(to: number): Promise<void> {
    const { api, info } = this.app;
    if (info.totals.tokens === 0) return this.go(to, 0);
    this.asked = to;
    try {
      const known = this.neighbours.find((token) => token.token === to);
      const token = known ?? (await api.tokens(to, to, 'scrub'))[0];
      // The slider may have been moved on meanwhile.
      if (this.asked !== to || !token) return;
      this.go(token.eval, 0);
      this.scrubbed = to;
    } finally {
      if (this.asked === to) this.asked = null;
    }
  }

  private go(toEval: number, step: number): void {
    this.fraction = 0;
    this.app.setState({ eval: Math.max(0, Math.min(this.app.info.totals.evals - 1, toEval)), step }, { replace: true });
  }

  private moveStep(by: 1 | -1): void {
    const { current } = this;
    const { state } = this.app;
    // While another evaluation is being fetched there is no step to move from.
    if (!current || this.wantedEval(state) !== current.eval) return;
    // From the state, not from what is drawn: keys may be faster than frames.
    const next = indexOfStep(current, state.step ?? 0) + by;
    if (next >= current.steps.length) this.moveToken(1);
    else if (next < 0) {
      if (this.previous) this.go(this.previous.eval, this.previous.steps.at(-1)?.step ?? 0);
    } else this.go(current.eval, this.stepNumber(next));
  }

  private stepNumber(index: number): number {
    return this.current?.steps[index]?.step ?? 0;
  }

  private moveToken(by: 1 | -1): void {
    this.go(this.wantedEval(this.app.state) + by, 0);
  }

  private toggle(): void {
    if (this.isPlaying) return this.pause();
    this.isPlaying = true;
    this.lastTime = performance.now();
    this.parts.play.textContent = '❚❚ pause';
    const { current } = this;
    // At the end: from the beginning again.
    if (current && current.eval === this.app.info.totals.evals - 1 && this.step >= current.steps.length - 1)
      this.go(0, 0);
    this.frame = requestAnimationFrame((now) => this.tick(now));
  }

  private pause(): void {
    this.isPlaying = false;
    this.parts.play.textContent = '▶ play';
    cancelAnimationFrame(this.frame);
  }

  /** One frame of the film. */
  private tick(now: number): void {
    if (!this.isPlaying) return;
    const { current } = this;
    const elapsed = Math.min(0.1, (now - this.lastTime) / 1000);
    this.lastTime = now;
    if (current && current.eval === this.wantedEval(this.app.state)) {
      this.fraction += elapsed * this.speed;
      const steps = Math.floor(this.fraction);
      this.fraction -= steps;
      for (let ahead = 1; ahead <= AHEAD; ahead++) {
        if (current.eval + ahead < this.app.info.totals.evals)
          void this.detail(current.eval + ahead).catch(() => undefined);
      }
      const next = this.step + steps;
      if (next < current.steps.length) {
        if (steps) this.app.setState({ eval: current.eval, step: this.stepNumber(next) }, { replace: true });
      } else if (current.eval + 1 < this.app.info.totals.evals) {
        this.app.setState({ eval: current.eval + 1, step: 0 }, { replace: true });
      } else if (!this.app.info.live) {
        this.go(current.eval, this.stepNumber(current.steps.length - 1));
        return this.pause();
      }
    }
    this.frame = requestAnimationFrame((t) => this.tick(t));
  }

  private async showTokens(detail: EvalInfo): Promise<void> {
    const { parts } = this;
    const first = detail.tokens[0];
    const last = detail.tokens.at(-1);
    if (!first || !last) {
      parts.past.textContent = parts.coming.textContent = '';
      parts.now.textContent = '(no token)';
      return;
    }
    const known = this.neighbours[0] && this.neighbours.at(-1);
    const lacks = !known || first.token - 8 < (this.neighbours[0] as TokenInfo).token || last.token + 8 > known.token;
    const whole = this.app.info.totals.tokens - 1;
    if (lacks) {
      const around = await this.app.api.tokens(
        Math.max(0, first.token - NEIGHBOURS),
        Math.min(whole, last.token + NEIGHBOURS),
        'playback',
      );
      this.neighbours = around;
    }
    const text = (tokens: readonly TokenInfo[]) => tokens.map((t) => format.tokenText(t.text)).join('');
    parts.past.textContent = text(this.neighbours.filter((t) => t.token < first.token));
    parts.coming.textContent = text(this.neighbours.filter((t) => t.token > last.token));
    // Without the model's vocabulary there are only numbers.
    parts.now.textContent = text(detail.tokens) || `token id ${first.id}`;
    parts.now.title = detail.tokens.map((t) => t.text ?? '').join('');
    const which =
      first === last ? `token ${format.integer(first.token)}` : `tokens ${first.token}–${last.token} in one batch`;
    parts.facts.textContent = [
      which,
      first.position === null ? '' : `position ${first.position}`,
      detail.phase,
      `evaluation ${format.integer(detail.eval)}`,
      `${detail.steps.length} nodes`,
      format.nanos(detail.end - detail.begin),
      passesEval(this.app.state.filter, detail) ? '' : 'outside the filter',
    ]
      .filter(Boolean)
      .join(' · ');
  }

  private draw(): void {
    const { current, parts } = this;
    if (!current) return;
    const step = current.steps[this.step];
    this.drawScrub(current);
    parts.nodeRange.max = String(Math.max(0, current.steps.length - 1));
    parts.nodeRange.value = String(this.step);
    parts.nodeText.textContent = `${this.step} / ${current.steps.length - 1}`;
    if (step) {
      parts.node.replaceChildren(
        h('b', {}, step.op),
        ` ${step.name} · ${format.layer(step.layer)}`,
        step.experts.length
          ? ` · experts ${step.experts.slice(0, 8).join(', ')}${step.experts.length > 8 ? ', …' : ''}`
          : '',
        weightBytes(step) > 0 ? ` · ${format.bytes(weightBytes(step))} of weights` : ' · no weights',
        ` · ${format.nanos(step.end - step.begin)}`,
      );
      parts.node.title = parts.node.textContent ?? '';
    }
    this.drawMap(current);
    this.drawGrid(current);
  }

  private drawScrub(current: EvalInfo): void {
    const { tokenRange, tokenUnit, tokenText } = this.parts;
    const { unit, last, at, text } = scrubOf(current, this.app.info.totals);
    tokenUnit.textContent = unit;
    tokenText.textContent = text;
    tokenRange.max = String(last);
    tokenRange.ariaLabel = unit;
    tokenRange.ariaValueText = `${unit} ${text.replace('/', 'of')}`;
    // While another evaluation is fetched the slider is the user's.
    if (this.asked !== null || this.wantedEval(this.app.state) !== current.eval) return;
    if (this.scrubbed !== null && !computes(current, this.scrubbed)) this.scrubbed = null;
    const place = this.scrubbed ?? at;
    if (place !== null) tokenRange.value = String(place);
  }

  /** Glow of something that was used `age` steps ago. */
  private glow(age: number): number {
    return age < 0 ? 0 : Math.exp(-age / Math.max(6, (this.current?.steps.length ?? 60) / 8));
  }

  /** Steps that still glow with their ages, the oldest first: so that the newest is drawn last. */
  private *recent(current: EvalInfo): Generator<[EvalStep, number]> {
    const before = this.previous?.steps ?? [];
    const { filter } = this.app.state;
    const { tensors } = this.app.info;
    if (this.previous && passesEval(filter, this.previous)) {
      for (let i = 0; i < before.length; i++) {
        const step = filtered(filter, tensors, before[i] as EvalStep);
        if (step) yield [step, this.step + before.length - i];
      }
    }
    if (!passesEval(filter, current)) return;
    for (let i = 0; i <= this.step; i++) {
      const step = filtered(filter, tensors, current.steps[i] as EvalStep);
      if (step) yield [step, this.step - i];
    }
  }

  private drawMap(current: EvalInfo): void {
    const host = this.mapCanvas.parentElement as HTMLElement;
    const [width, height] = [host.clientWidth, host.clientHeight];
    if (width < 20 || height < 20) return;
    const { colours } = this.app;
    const gutter = 30;
    const columns = Math.max(8, Math.floor((width - gutter) / CELL_PX));
    const rows = Math.max(4, Math.floor(height / CELL_PX));
    const total = Math.max(1, this.app.info.model.size_bytes);
    this.layout = { columns, cellBytes: Math.max(1, Math.ceil(total / (columns * rows))), totalBytes: total };
    const context = crisp(this.mapCanvas, width, height);
    const key = `${width}×${height} ${colours.theme} ${this.app.info.version}`;
    if (key !== this.baseKey) {
      this.base = this.paintBase(this.layout, rows);
      this.baseKey = key;
    }
    context.fillStyle = colours.ground;
    context.fillRect(0, 0, width, height);
    const { cellBytes } = this.layout;
    const glow = new Float32Array(columns * rows);
    for (const [step, age] of this.recent(current)) {
      const g = this.glow(age);
      if (g < 0.02) continue;
      for (const [offset, bytes] of step.ranges) {
        const last = Math.min(glow.length - 1, Math.floor((offset + bytes - 1) / cellBytes));
        for (let cell = Math.floor(offset / cellBytes); cell <= last; cell++)
          if ((glow[cell] as number) < g) glow[cell] = g;
      }
    }
    context.save();
    context.translate(gutter, 0);
    context.imageSmoothingEnabled = false;
    if (this.base) context.drawImage(this.base, 0, 0, columns * CELL_PX, rows * CELL_PX);
    this.kernel.ask(current, columns, rows);
    this.kernel.drawMissing(context, CELL_PX);
    for (let cell = 0; cell < glow.length; cell++) {
      const g = glow[cell] as number;
      if (g < 0.02) continue;
      context.globalAlpha = Math.min(1, 0.15 + g);
      context.fillStyle = css(colours.counts, 0.3 + 0.7 * g);
      context.fillRect((cell % columns) * CELL_PX, Math.floor(cell / columns) * CELL_PX, CELL_PX - 1, CELL_PX - 1);
    }
    context.globalAlpha = 1;
    this.kernel.drawFaults(context, CELL_PX);
    context.restore();
    const pen = new CanvasPen(context);
    const row = rowBytes(this.layout);
    let free = -20;
    for (const range of layerRanges(this.app.info.tensors)) {
      const y = (range.begin / row) * CELL_PX;
      if (range.layer === null || y < free) continue;
      pen.text(`L${range.layer}`, gutter - 7, y + 6, { colour: colours.muted, align: 'right' });
      free = y + 13;
    }
  }

  /** Cells in the dimmed colour of their component, one pixel each plus a gap drawn as background. */
  private paintBase(layout: RowLayout, rows: number): HTMLCanvasElement {
    const { tensors } = this.app.info;
    const { colours } = this.app;
    const scale = 8;
    const canvas = document.createElement('canvas');
    canvas.width = layout.columns * scale;
    canvas.height = rows * scale;
    const context = canvas.getContext('2d') as CanvasRenderingContext2D;
    const inFile = Math.ceil(layout.totalBytes / layout.cellBytes);
    for (let cell = 0; cell < Math.min(inFile, layout.columns * rows); cell++) {
      const tensor = tensors[tensorBefore(tensors, (cell + 0.5) * layout.cellBytes)];
      context.fillStyle = withAlpha(
        tensor ? colours.component(tensor.component) : colours.line,
        colours.theme === 'dark' ? 0.22 : 0.28,
      );
      context.fillRect(
        (cell % layout.columns) * scale,
        Math.floor(cell / layout.columns) * scale,
        scale - 1,
        scale - 1,
      );
    }
    return canvas;
  }

  private drawGrid(current: EvalInfo): void {
    const host = this.gridCanvas.parentElement as HTMLElement;
    const [width, height] = [host.clientWidth, host.clientHeight];
    if (width < 20 || height < 20) return;
    const { info, colours } = this.app;
    this.parts.grid.textContent =
      info.experts > 0
        ? `layers, and their ${info.experts} experts as the router picks them`
        : 'layers as they are computed';
    const context = crisp(this.gridCanvas, width, height);
    drawLayerGrid(context, width, height, {
      layers: info.layers,
      experts: info.experts,
      colours,
      current,
      step: this.step,
      recent: [...this.recent(current)].map(([step, age]) => [step, this.glow(age)]),
    });
  }
}

function passesEval(filter: Filter, detail: EvalInfo): boolean {
  if (filter.phase && filter.phase !== detail.phase) return false;
  const [from, to] = filter.tokens ?? [0, Number.POSITIVE_INFINITY];
  return !filter.tokens || detail.tokens.some((t) => t.token >= from && t.token <= to);
}

/** What the filter leaves of a step; null when that is nothing. */
function filtered(filter: Filter, tensors: readonly TensorInfo[], step: EvalStep): EvalStep | null {
  if (filter.layer.length > 0 && !filter.layer.includes(step.layer)) return null;
  if (filter.op.length > 0 && !filter.op.includes(step.op)) return null;
  if (filter.component.length === 0 && filter.expert.length === 0) return step;
  const ranges = step.ranges.filter(
    ([offset, , expert]) =>
      (filter.expert.length === 0 || filter.expert.includes(expert)) &&
      (filter.component.length === 0 || filter.component.includes(tensorAt(tensors, offset)?.component ?? '')),
  );
  if (ranges.length === 0) return null;
  const experts = filter.expert.length === 0 ? step.experts : step.experts.filter((e) => filter.expert.includes(e));
  return { ...step, ranges, experts };
}

/** The step of that number, or the next one that was executed. */
function indexOfStep(detail: EvalInfo, number: number): number {
  const at = detail.steps.findIndex((step) => step.step >= number);
  return at >= 0 ? at : Math.max(0, detail.steps.length - 1);
}
