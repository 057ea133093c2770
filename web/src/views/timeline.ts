/**
 * What ran when: nodes by layer above, offsets that they read below, on one
 * time axis, from the whole run down to one node.
 *
 * A wide window comes as a raster, a narrow one as the nodes and accesses
 * themselves. Both are fetched a little wider than the window, so that a pan
 * shows its edges at once.
 */
import { stackCanvases, svgDocument } from '../canvas';
import { css } from '../colours';
import { DeviceLanes } from '../devicelanes';
import { Cover, h, segmented, toggles, toolbar, type Segmented, type Toggles } from '../dom';
import { EvalIndex } from '../evalindex';
import { layerRanges, tensorAt } from '../filemap';
import { MARK_KINDS, Marks, type MarkKind } from '../marks';
import * as format from '../format';
import { Plot, type PlotPoint, type RasterLayer } from '../plot';
import type { AxisOptions } from '../axis';
import type { Filter, State } from '../state';
import { axisTicks } from '../ticks';
import {
  drawAccesses,
  drawEvalLines,
  drawOffsetLegend,
  drawSpans,
  drawTokens,
  laneTicks,
  TOKEN_BAND_PX,
} from '../timedraw';
import { accessAt, isCovered, paintBytes, paintLanes, paintTokens, spanAt, wanted, type Asked } from '../timeraster';
import { accessLines, cellLines, evalLines, nodeKey, offsetsCsv, selection, spanLines, spansCsv } from '../timetext';
import type { TooltipLine } from '../tooltip';
import type { Raster } from '../api';
import type { ExactAccess, NodeSpan, NodesHeader, OffsetsHeader } from '../generated/index';
import type { App, View } from '../view';

const MARGIN = { left: 84, right: 34 };
/** An evaluation of fewer pixels shows no layers: which pixel one falls into would be chance. */
const EVEN_PX = 12;
/** Pixels of a column of the offset plot. */
const OFFSET_PX = 2;

export function timeline(): View {
  return new TimelineView();
}

interface Question {
  /** All but the window. */
  question: string;
  time: Asked;
  range: Asked;
}

class TimelineView implements View {
  id = 'timeline';
  title = 'Timeline';
  key = '3';
  help: [string, string][] = [
    ['click', 'select a node: its exact values stand below'],
    ['[ ]', 'the node before or after the selected one'],
    ['z', 'zoom to the selected node'],
    ['Enter', 'play from the selected node'],
    ['Shift + wheel', 'zoom the file offsets'],
    ['x r', 'page faults, disk reads over the offsets'],
    ['Esc', 'drop the selection'],
  ];
  private app!: App;
  private lanes!: Plot;
  private devices!: DeviceLanes;
  private offsets!: Plot;
  private cover!: Cover;
  private controls!: { by: Segmented; colour: Segmented; over: Toggles };
  private marks!: Marks;
  private readonly legend = h('div', { class: 'legend-swatches' });
  private readonly selected = h('div', { class: 'time-selected' });
  private evals!: EvalIndex;
  private nodes: { header: NodesHeader; layer: RasterLayer | null } | null = null;
  /** What the nodes and reads were asked with. */
  private asked: Question | null = null;
  /** Counts the fetches; each plot shows that of a round. */
  private round = 0;
  private shown = { nodes: 0, reads: 0, marks: 0, devices: 0 };
  /** All that changes the drawing but the window and the answers. */
  private look = '';
  private reads: { header: OffsetsHeader; values: Float32Array; layer: RasterLayer } | null = null;

  mount(root: HTMLElement, app: App): void {
    this.app = app;
    this.nodes = null;
    this.reads = null;
    this.asked = null;
    this.look = '';
    this.evals = new EvalIndex(app.api);
    const by = segmented(
      'nodes by',
      [
        { value: 'op', text: 'op' },
        { value: 'component', text: 'component' },
      ],
      (value) => app.setOpt('timeline.by', value === 'op' ? null : value),
    );
    const colour = segmented(
      'offsets by',
      [
        { value: 'token', text: 'token', title: 'colour: which token, early to late; strength: bytes' },
        { value: 'bytes', text: 'bytes', title: 'bytes read per cell' },
      ],
      (value) => app.setOpt('timeline.colour', value === 'token' ? null : value),
    );
    this.marks = new Marks(app);
    const over = toggles(
      'over',
      MARK_KINDS.map(({ kind, text, title }) => ({ value: kind, text, title, colour: this.marks.colour(kind) })),
      (kind) => this.marks.flip(kind as MarkKind),
    );
    over.element.hidden = !this.marks.isRecorded;
    this.controls = { by, colour, over };
    const top = h('div', {});
    const middle = h('div', {});
    const bottom = h('div', {});
    const stage = h('div', { class: 'stage' }, top, middle, bottom);
    root.append(toolbar(by.element, colour.element, over.element, this.legend), stage, this.selected);
    this.cover = new Cover(stage);
    const duration = Math.max(1, app.info.totals.duration_nanos);
    const time = {
      kind: 'time' as const,
      limits: [0, duration] as [number, number],
      shortest: Math.min(duration, 500),
      hasGrid: false,
    };
    const common = {
      colours: () => this.app.colours,
      moves: (plot: Plot) => this.moves(plot),
      moved: () => this.moved(),
      resized: () => app.setState({}, { replace: true }),
    };
    // The texts stand below the last plot.
    const marksOnly: AxisOptions = {
      ...time,
      label: '',
      ticks: (...a) => axisTicks({ kind: 'time' }, ...a).map(({ at }) => ({ at, text: '' })),
    };
    this.lanes = new Plot(top, {
      ...common,
      label: 'nodes by layer over time',
      x: marksOnly,
      y: {
        label: '',
        kind: 'names',
        limits: [0, Math.max(1, app.info.layers.length)],
        isFixed: true,
        ticks: (_low, _high, pixels) => laneTicks(this.app.info.layers, pixels),
      },
      margin: { ...MARGIN, top: 16 + TOKEN_BAND_PX, bottom: 6 },
      draw: (context) => this.drawLanes(context),
      decorate: (pen, plot) => drawTokens(pen, plot, this.evals, (token) => this.tokenShare(token), app),
      hover: (point) => this.hoverLanes(point),
      click: (point) => this.clickLanes(point),
    });
    this.devices = new DeviceLanes(
      middle,
      app,
      { ...common, x: { ...marksOnly }, margin: MARGIN },
      {
        hover: (time) => this.setCursors(time, null),
        lines: (time) => this.evalLines(time),
        zoom: (begin, end) => this.zoomTo(begin, end),
        atRest: (time) => this.zoomToEval(time),
      },
    );
    this.offsets = new Plot(bottom, {
      ...common,
      label: 'file offsets that were read over time',
      x: { ...time, label: 'time since the first evaluation' },
      y: { label: 'file offset', kind: 'bytes', limits: [0, Math.max(1, app.info.model.size_bytes)], shortest: 256 },
      margin: { ...MARGIN, top: 26, bottom: 36 },
      draw: (context) => this.drawOffsets(context),
      decorate: (pen, plot) => {
        drawOffsetLegend(pen, plot, this.reads?.header ?? null, this.colour, app);
        this.marks.drawLegend(pen, plot);
      },
      hover: (point) => this.hoverOffsets(point),
      click: (point) => this.clickOffsets(point),
    });
    // The lanes need less room when there are few.
    top.style.flexGrow = String(Math.min(1.1, 0.25 + app.info.layers.length * 0.06));
  }

  unmount(): void {
    this.lanes.destroy();
    this.devices.destroy();
    this.offsets.destroy();
  }

  async update(state: State): Promise<void> {
    const { app, lanes, offsets } = this;
    const { info } = app;
    this.controls.by.set(this.by);
    this.controls.colour.set(this.colour);
    this.controls.over.set(this.marks.wanted);
    const duration = Math.max(1, info.totals.duration_nanos);
    for (const { x } of this.plots) x.options.limits = [0, duration];
    lanes.y.options.limits = [0, Math.max(1, info.layers.length)];
    lanes.y.showAll();
    offsets.y.options.limits = [0, Math.max(1, info.model.size_bytes)];
    // A plot that the user is moving knows better than the state.
    if (!this.plots.some((plot) => plot.isAhead)) {
      for (const { x } of this.plots) x.show(...(state.time ?? x.options.limits));
      offsets.y.show(...(state.offset ?? offsets.y.options.limits));
    }
    const look = [app.colours.theme, this.by, this.colour, this.marks.wanted, state.eval, state.step].join();
    const question = JSON.stringify([state.run, info.version, state.filter, lanes.innerWidth, offsets.innerHeight]);
    const isSameLook = look === this.look;
    this.look = look;
    if (!isSameLook) {
      void this.showSelected(state);
      lanes.redraw();
      this.devices.repaint();
      offsets.redraw();
    }
    for (const plot of this.plots) plot.reframe();
    const { asked } = this;
    if (
      isSameLook &&
      asked?.question === question &&
      isCovered(asked.time, lanes.x) &&
      isCovered(asked.range, offsets.y)
    )
      return;
    await this.fetch({ question, time: wanted(lanes.x), range: wanted(offsets.y) }, state.filter);
  }

  /** Each plot is drawn as soon as its answer is there. */
  private async fetch(asked: Question, filter: Filter): Promise<void> {
    const { lanes, offsets, app } = this;
    const [[t0, t1], [o0, o1]] = [asked.time.window, asked.range.window];
    const pixels = (part: number, whole: number, px: number) =>
      Math.max(1, Math.min(4096, Math.round((part / whole) * px)));
    const w = pixels(t1 - t0, lanes.x.span, lanes.innerWidth);
    const rows = pixels(o1 - o0, offsets.y.span, offsets.innerHeight / 2);
    const round = ++this.round;
    // An answer from the cache may overtake an older one.
    const isLate = (plot: 'nodes' | 'reads' | 'marks' | 'devices') => {
      if (round < this.shown[plot]) return true;
      this.shown[plot] = round;
      return false;
    };
    const [nodes, reads] = await Promise.all([
      app.api.nodes({ t0, t1, w, even: EVEN_PX }, filter).then((answer) => {
        if (!isLate('nodes')) this.showNodes(answer);
        return answer.header;
      }),
      Promise.all([
        app.api.offsets(
          { t0, t1, o0, o1, w: Math.max(1, Math.round(w / OFFSET_PX)), h: rows, even: EVEN_PX / OFFSET_PX },
          filter,
        ),
        // Names the tokens by which the offsets are coloured.
        this.evals.load(app.info.version, t0, t1),
      ]).then(([answer]) => {
        if (!isLate('reads')) this.showReads(answer);
        return answer.header;
      }),
      this.devices.fetch({ t0, t1, w }, filter, () => isLate('devices')),
      this.marks.fetch({ t0, t1, o0, o1, w, h: rows * 2 }, filter).then((answer) => {
        if (isLate('marks')) return;
        this.marks.show(answer);
        offsets.redraw();
      }),
    ]);
    if (round < this.shown.nodes || round < this.shown.reads) return;
    this.asked = asked;
    if (nodes.kind === 'spans' && nodes.spans.length === 0 && reads.accesses === 0) {
      this.cover.empty('no node passes this filter in this window');
    } else {
      this.cover.clear();
    }
  }

  private showNodes({ header, values }: Raster<NodesHeader>): void {
    const { info, colours } = this.app;
    this.nodes = { header, layer: header.kind === 'raster' ? paintLanes(header, values, info.ops, colours) : null };
    const key = nodeKey(header, this.by, info.ops, colours);
    // While the plot moves, mostly the same: then the page need not be laid out again.
    const isSameKey =
      key.length === this.legend.children.length &&
      key.every((item, i) => item.isEqualNode(this.legend.children[i] ?? null));
    if (!isSameKey) this.legend.replaceChildren(...key);
    this.lanes.redraw();
  }

  private showReads(answer: Raster<OffsetsHeader>): void {
    this.reads = { header: answer.header, values: answer.values, layer: this.paintReads(answer) };
    this.offsets.redraw();
    // The texts of the tokens above them may have come along.
    this.lanes.redraw();
  }

  onKey(event: KeyboardEvent): boolean {
    switch (event.key) {
      // A node that cannot be had leaves the selection where it is.
      case '[':
        this.selectNeighbour(-1).catch(() => undefined);
        return true;
      case ']':
        this.selectNeighbour(1).catch(() => undefined);
        return true;
      case 'x':
        this.marks.flip('faults');
        return true;
      case 'r':
        this.marks.flip('reads');
        return true;
      case 'z':
        this.zoomToSelected().catch(() => undefined);
        return true;
      case 'Enter':
        if (this.app.state.eval === null) return false;
        this.app.setState({ view: 'playback' });
        return true;
      case 'Escape':
        if (this.app.state.eval === null) return false;
        this.app.setState({ eval: null, step: null });
        return true;
      default:
        return this.offsets.onKey(event);
    }
  }

  exportCanvas(): HTMLCanvasElement {
    return stackCanvases(
      this.sized.map((plot) => plot.canvas),
      this.app.colours.ground,
    );
  }

  exportSvg(): string {
    return svgDocument(
      this.sized.map((plot) => plot.svg()),
      this.app.colours.ground,
    );
  }

  exportCsv(): string {
    const header = this.nodes?.header;
    if (!header) return '';
    if (header.kind === 'spans') return spansCsv(header.spans);
    return this.reads ? offsetsCsv(this.reads.header, this.reads.values) : '';
  }

  private get by(): 'op' | 'component' {
    return this.app.state.opt['timeline.by'] === 'component' ? 'component' : 'op';
  }
  private get colour(): 'token' | 'bytes' {
    return this.app.state.opt['timeline.colour'] === 'bytes' ? 'bytes' : 'token';
  }

  private get plots(): Plot[] {
    return [this.lanes, this.devices.plot, this.offsets];
  }

  /** Those that are in sight. */
  private get sized(): Plot[] {
    return this.plots.filter((plot) => plot !== this.devices.plot || this.devices.isWanted);
  }

  /** The plots share the time axis… */
  private moves(plot: Plot): void {
    for (const other of this.plots) {
      if (other === plot) continue;
      other.x.show(plot.x.low, plot.x.high);
      other.follow();
    }
  }

  /** …and the state follows. */
  private moved(): void {
    const { x } = this.lanes;
    const { y } = this.offsets;
    this.app.setState(
      { time: x.isWhole ? null : [x.low, x.high], offset: y.isWhole ? null : [y.low, y.high] },
      { replace: true, atOnce: true },
    );
  }

  private paintReads(raster: Raster<OffsetsHeader>): RasterLayer {
    const { colours } = this.app;
    if (this.colour === 'bytes') return paintBytes(raster, colours);
    return paintTokens(raster, (time) => this.tokenShare(this.evals.at(time)?.first_token ?? 0), colours);
  }

  /** Place of a token in the run, 0 to 1. */
  private tokenShare(token: number): number {
    return Math.min(1, token / Math.max(1, this.app.info.totals.tokens - 1));
  }

  private laneOf(layer: number | null): number {
    return this.app.info.layers.indexOf(layer);
  }

  private spanColour(span: NodeSpan): string {
    return this.by === 'op' ? this.app.colours.op(span.op) : this.app.colours.component(span.component);
  }

  private drawLanes(context: CanvasRenderingContext2D): void {
    const { lanes: plot, nodes } = this;
    const { colours, info, state } = this.app;
    const lane = plot.innerHeight / Math.max(1, info.layers.length);
    context.fillStyle = colours.grid;
    for (let i = 1; i < info.layers.length && lane > 4; i++) {
      context.fillRect(plot.margin.left, Math.round(plot.py(i)), plot.innerWidth, 1);
    }
    drawEvalLines(context, plot, this.evals, colours);
    if (!nodes) return;
    if (nodes.layer) plot.drawRaster(context, nodes.layer);
    if (nodes.header.kind !== 'spans') return;
    drawSpans(context, plot, nodes.header.spans, {
      lane,
      laneOf: (span) => this.laneOf(span.layer),
      colourOf: (span) => this.spanColour(span),
      isSelected: (span) => span.eval === state.eval && span.step === state.step,
      colours,
    });
  }

  private drawOffsets(context: CanvasRenderingContext2D): void {
    const { offsets: plot, reads } = this;
    const { colours, info, state } = this.app;
    // Where layers meet in the file, unless the lines would be all there is to see.
    const borders = layerRanges(info.tensors).filter((range) => range.end > plot.y.low && range.begin < plot.y.high);
    context.fillStyle = colours.grid;
    if (borders.length < plot.innerHeight / 5) {
      for (const range of borders)
        context.fillRect(plot.margin.left, Math.round(plot.py(range.begin)), plot.innerWidth, 1);
    }
    if (!reads) return;
    // Below marks of the kernel the accesses step back.
    if (this.marks.hasAny) context.globalAlpha = 0.4;
    const { exact } = reads.header;
    if (!exact) plot.drawRaster(context, reads.layer);
    drawAccesses(context, plot, exact ?? [], {
      colourOf: (access) =>
        this.colour === 'token'
          ? css(colours.time, this.tokenShare(access.token ?? 0))
          : colours.component(this.tensorOf(access)?.component ?? null),
      isSelected: (access) => access.eval === state.eval && access.step === state.step,
      colours,
    });
    context.globalAlpha = 1;
    this.marks.draw(context, plot);
  }

  private spanAt(point: PlotPoint): NodeSpan | null {
    const header = this.nodes?.header;
    const layer = this.app.info.layers[Math.floor(point.y)];
    if (header?.kind !== 'spans' || layer === undefined) return null;
    return spanAt(header.spans, layer, point.x, (this.lanes.x.span / this.lanes.innerWidth) * 2);
  }

  private accessAt(point: PlotPoint): ExactAccess | null {
    const { x, y, innerWidth, innerHeight } = this.offsets;
    return accessAt(this.reads?.header.exact ?? [], point, (x.span / innerWidth) * 3, (y.span / innerHeight) * 3);
  }

  private tensorOf(access: ExactAccess) {
    return tensorAt(this.app.info.tensors, access.offset);
  }

  private setCursors(x: number | null, y: number | null): void {
    this.lanes.setCursor(x, null);
    this.devices.plot.setCursor(x, null);
    this.offsets.setCursor(x, y);
  }

  private hoverLanes(point: PlotPoint | null): void {
    this.setCursors(point?.x ?? null, null);
    if (!point) return this.app.tooltip.hide();
    const span = this.spanAt(point);
    if (span)
      return this.app.tooltip.show(
        point.clientX,
        point.clientY,
        `${span.op} ${span.name}`,
        [...spanLines(span), ...this.evalLines((span.begin + span.end) / 2)],
        this.spanColour(span),
      );
    const { tooltip, info } = this.app;
    const layer = info.layers[Math.floor(point.y)] ?? null;
    const lines: TooltipLine[] = [['time', format.exactNanos(point.x)], ...this.evalLines(point.x)];
    if (this.nodes?.layer) lines.push(...cellLines(this.nodes.header, point, info.ops));
    tooltip.show(point.clientX, point.clientY, format.layer(layer), lines);
  }

  /** What a tooltip says about the evaluation that runs at a moment. */
  private evalLines(time: number): [string, string][] {
    const name = this.evals.at(time);
    return name ? evalLines(name, this.evals.text(name)) : [];
  }

  private hoverOffsets(point: PlotPoint | null): void {
    this.setCursors(point?.x ?? null, point?.y ?? null);
    const { tooltip, info, colours } = this.app;
    if (!point || !this.reads) return tooltip.hide();
    const access = this.accessAt(point);
    const offset = access?.offset ?? Math.floor(point.y);
    const tensor = tensorAt(info.tensors, offset);
    const { header, values } = this.reads;
    const lines: [string, string][] = [];
    if (access) {
      lines.push(...accessLines(access));
    } else {
      const x = Math.floor(((point.x - header.t0) / (header.t1 - header.t0)) * header.w);
      const y = Math.floor(((point.y - header.o0) / (header.o1 - header.o0)) * header.h);
      const value = x >= 0 && y >= 0 && x < header.w && y < header.h ? values[y * header.w + x] : undefined;
      if (!header.exact) lines.push(['bytes in this cell', format.bytes(value ?? 0)]);
      lines.push(['time', format.exactNanos(point.x)], ['offset', `${format.integer(offset)} (${format.hex(offset)})`]);
    }
    lines.push(...this.marks.lines(point));
    if (tensor)
      lines.push(['layer', tensor.layer === null ? 'none' : String(tensor.layer)], ['component', tensor.component]);
    lines.push(...this.evalLines(access ? (access.begin + access.end) / 2 : point.x));
    tooltip.show(
      point.clientX,
      point.clientY,
      tensor?.name ?? 'no tensor',
      lines,
      tensor ? colours.component(tensor.component) : undefined,
    );
  }

  private clickLanes(point: PlotPoint): void {
    const span = this.spanAt(point);
    if (span) return this.app.setState({ eval: span.eval, step: span.step });
    // Too wide to hit a node: a click goes one level deeper.
    if (this.nodes?.header.kind === 'raster') this.zoomToEval(point.x);
  }

  private clickOffsets(point: PlotPoint): void {
    const access = this.accessAt(point);
    if (access) this.app.setState({ eval: access.eval, step: access.step });
    else if (this.reads && !this.reads.header.exact) this.zoomToEval(point.x);
  }

  private zoomToEval(time: number): void {
    const name = this.evals.at(time);
    if (name) this.zoomTo(name.begin, name.end);
  }

  private zoomTo(begin: number, end: number): void {
    const room = (end - begin) * 0.05;
    this.app.setState({ time: this.within(begin - room, end + room) });
  }

  private within(begin: number, end: number): [number, number] {
    return [Math.max(0, Math.round(begin)), Math.min(this.app.info.totals.duration_nanos, Math.round(end))];
  }

  /** The node before or after the selected one, in the order of computation. */
  private async selectNeighbour(by: 1 | -1): Promise<void> {
    const { state, info, api } = this.app;
    const at = state.eval ?? this.evals.at((this.lanes.x.low + this.lanes.x.high) / 2)?.eval ?? 0;
    let detail = await api.evaluation(at, 'neighbour');
    let index = state.step === null ? 0 : detail.steps.findIndex((s) => s.step === state.step) + by;
    if (index < 0 || index >= detail.steps.length) {
      if (at + by < 0 || at + by >= info.totals.evals) return;
      detail = await api.evaluation(at + by, 'neighbour');
      index = by > 0 ? 0 : detail.steps.length - 1;
    }
    const next = detail.steps[index];
    if (!next) return;
    const change: Partial<State> = { eval: detail.eval, step: next.step };
    const { low, high, span } = this.lanes.x;
    if (next.begin < low || next.end > high) change.time = this.within(next.begin - span / 2, next.begin + span / 2);
    this.app.setState(change, { replace: true });
  }

  private async zoomToSelected(): Promise<void> {
    const { state, api } = this.app;
    if (state.eval === null) return;
    const detail = await api.evaluation(state.eval, 'neighbour');
    const step = detail.steps.find((s) => s.step === state.step);
    if (step) this.zoomTo(step.begin - (step.end - step.begin), step.end + (step.end - step.begin));
  }

  /** The line below the plots. */
  private async showSelected(state: State): Promise<void> {
    const line = await selection(this.app, state);
    if (line) this.selected.replaceChildren(...line);
  }
}
