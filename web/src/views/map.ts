/**
 * The model file as a map of bytes.
 *
 * In rows the vertical axis is the offset, or, sorted by layer (maporder.ts), a
 * position; so that pan and zoom are those of every plot; cells have a fixed width, and zooming in halves the bytes of a
 * cell. The server divides the whole model into N cells, so that N alone decides
 * the raster: panning at one zoom needs no request at all. In Hilbert order the
 * whole model fills a square, and what is near in the file is near on the map.
 */
import {
  columnsOf,
  columnTicks,
  drawBorders,
  drawGaps,
  drawRowOwners,
  fewestBytes,
  GUTTER_PX,
  hilbertSide,
  imageOf,
  positionAt,
  rowCells,
  squareImage,
  squareOf,
} from '../bytemap';
import { csv, type Cell } from '../csv';
import { drawLegend, paint, svgDocument, unscaled, type PaintOptions, type Pen, type Scale } from '../canvas';
import { packed, type Table } from '../colours';
import { Cover, h, segmented, toolbar, type Segmented } from '../dom';
import { rowBytes, tensorAt, type RowLayout } from '../filemap';
import * as format from '../format';
import { drawComponentKey, drawOwners, hilbertCurve } from '../hilbert';
import { componentPixels, drawComponentLegend, PALER } from '../mapcolour';
import { drawLabels } from '../maplabels';
import { metricName, METRICS, NOTHING, shownValue, usualMetric, type Metric } from '../mapmetric';
import { fileOrder, knownOrders, layerOrder, ORDERS, orderText, type Order } from '../maporder';
import { Plot, type PlotPoint, type RasterLayer } from '../plot';
import { range, type State } from '../state';
import type { TooltipLine } from '../tooltip';
import type { Raster } from '../api';
import type { Located, MapHeader } from '../generated/index';
import type { App, View } from '../view';

export function map(): View {
  return new MapView();
}

class MapView implements View {
  id = 'map';
  title = 'Map';
  key = '1';
  help: [string, string][] = [
    ['click', 'filter all views by the layer, component and expert of that byte'],
    ['wheel, + −', 'zoom into the file'],
    ['m', 'next metric'],
    ['o', 'next order: of the file, of the layers, Hilbert’s'],
  ];
  private app!: App;
  private plot!: Plot;
  private cover!: Cover;
  private controls!: { metric: Segmented; order: Segmented; scale: Segmented; when: Segmented };
  private raster: Raster<MapHeader> | null = null;
  /** Rows in sight and some around them, as an image. */
  private rows: RasterLayer | null = null;
  /** The whole model in Hilbert order. */
  private square: HTMLCanvasElement | null = null;
  /** Component that owns most of each row, as far as they were drawn. */
  private owned: (string | null)[] = [];
  /** What the images were painted with. */
  private look = '';
  private layout: RowLayout | null = null;
  /** Bytes read by component, for the key of the Hilbert map. */
  private read = new Map<string, number>();
  private hovered = 0;
  private available: readonly string[] = ['component', 'accesses', 'bytes', 'recency'];
  private order!: Order;
  /** Values of the raster in the order that is shown. */
  private values: Float32Array = new Float32Array();

  mount(root: HTMLElement, app: App): void {
    this.app = app;
    this.raster = null;
    this.rows = null;
    this.square = null;
    this.look = '';
    this.order = fileOrder(app.info.tensors);
    const metric = segmented('colour', METRICS, (value) =>
      app.setOpt('map.metric', value === usualMetric(this.app.info) ? null : value),
    );
    const order = segmented('order', ORDERS, (value) => this.setOrder(value));
    const scale = segmented(
      'scale',
      [
        { value: 'linear', text: 'linear' },
        { value: 'log', text: 'log' },
      ],
      (value) => app.setOpt('map.scale', value === 'linear' ? null : value),
    );
    const when = segmented(
      'pages',
      [
        {
          value: 'recorded',
          text: 'recorded',
          title: 'by the last sample before the end of the selected evaluation, or of the run',
        },
        { value: 'now', text: 'now', title: 'as the kernel says now' },
      ],
      (value) => app.setOpt('map.pages', value === 'recorded' ? null : value),
    );
    this.controls = { metric, order, scale, when };
    const host = h('div', {});
    const stage = h('div', { class: 'stage' }, host);
    root.append(
      toolbar(
        metric.element,
        when.element,
        order.element,
        scale.element,
        h('span', { class: 'spacer' }),
        h('span', { class: 'hint' }, 'click a cell to filter by what it holds'),
      ),
      stage,
    );
    const total = Math.max(1, app.info.model.size_bytes);
    this.cover = new Cover(stage);
    this.plot = new Plot(host, {
      label: 'map of the model file, coloured by how its bytes were read',
      x: {
        label: '',
        kind: 'bytes',
        limits: [0, 1],
        isFixed: true,
        ticks: (_low, _high, pixels) => columnTicks(this.layout, pixels),
      },
      y: { label: 'file offset', kind: 'bytes', limits: [0, total], shortest: 64, clearance: 6 },
      margin: { left: 84, right: GUTTER_PX, top: 30, bottom: 34 },
      colours: () => this.app.colours,
      draw: (context) => this.draw(context),
      decorate: (pen) => this.decorate(pen),
      hover: (point) => void this.hover(point),
      // A byte that the server does not know is no reason to change the filter.
      click: (point) => void this.click(point).catch(() => undefined),
      resized: () => app.setState({}, { replace: true }),
      moved: (plot) => {
        const { low, high, isWhole } = plot.y;
        const window: [number, number] | null = isWhole ? null : [Math.round(low), Math.round(high)];
        if (!this.isSorted(app.state)) return app.setState({ offset: window }, { replace: true, atOnce: true });
        // A position is no offset, which other views would take it for.
        const { ['map.window']: _, ...opt } = app.state.opt;
        app.setState(
          { opt: window ? { ...opt, 'map.window': window.join('-') } : opt },
          { replace: true, atOnce: true },
        );
      },
    });
  }

  unmount(): void {
    this.plot.destroy();
    this.hovered = -1;
  }

  async update(state: State): Promise<void> {
    const { app, plot } = this;
    const metric = this.metric(state);
    const isHilbert = this.isHilbert(state);
    this.controls.metric.set(
      metric,
      METRICS.map((m) => m.value).filter((m) => !this.available.includes(m)),
    );
    const isSorted = this.isSorted(state);
    this.controls.order.set(this.orderOf(state), this.orders().includes('layers') ? [] : ['layers']);
    this.controls.scale.set(this.scale(state), metric === 'recency' || metric === 'residency' ? ['linear', 'log'] : []);
    const total = Math.max(1, app.info.model.size_bytes);
    const columns = columnsOf(plot);
    plot.y.options.limits = [0, total];
    plot.y.options.shortest = fewestBytes(columns, total);
    plot.y.options.isFixed = isHilbert;
    plot.y.options.label = isHilbert ? '' : isSorted ? 'by layer' : 'file offset';
    plot.y.options.isHidden = isHilbert;
    plot.x.options.isHidden = isHilbert;
    // A plot that the user is moving knows better than the state.
    if (isHilbert) plot.y.showAll();
    else if (!plot.isAhead) {
      const window = isSorted ? range(state.opt['map.window'] ?? null) : state.offset;
      plot.y.show(...(window ?? plot.y.options.limits));
    }
    plot.reframe();

    const cells = isHilbert ? hilbertSide(plot) ** 2 : rowCells(plot, columns, total);
    const isRecorded = metric === 'residency' && app.info.kernel.residency;
    this.controls.when.element.hidden = !isRecorded;
    this.controls.when.set(this.isNow(state) ? 'now' : 'recorded');
    const at = isRecorded && !this.isNow(state) ? await this.moment(state) : undefined;
    const [raster, read] = await Promise.all([
      app.api.map({ cells, metric: metric === 'component' ? 'accesses' : metric, at }, state.filter),
      isHilbert ? this.readBy(metric, state) : [],
    ]);
    // A pan along the file needs neither another raster nor another image.
    const look = [app.colours.theme, metric, this.orderOf(state), columns, this.scale(state)].join();
    if (raster === this.raster && look === this.look) return;
    if (look !== this.look) app.tooltip.hide();
    this.look = look;
    this.read = new Map(read);
    this.available = ['component', ...raster.header.available];
    this.controls.metric.set(
      metric,
      METRICS.map((m) => m.value).filter((m) => !this.available.includes(m)),
    );
    this.raster = raster;
    this.layout = { columns, cellBytes: raster.header.cell_bytes, totalBytes: total };
    this.rows = null;
    const { tensors } = app.info;
    this.order = isSorted ? layerOrder(tensors, total) : fileOrder(tensors);
    this.values = this.order.arranged(raster.values, raster.header.cell_bytes);
    this.square = isHilbert ? this.paintSquare(raster) : null;
    this.owned = [];
    const isEmpty = metric === 'recency' ? raster.values.every(Number.isNaN) : !(raster.header.max > 0);
    if (isEmpty) this.cover.empty(NOTHING[metric]);
    else this.cover.clear();
    plot.redraw();
  }

  onKey(event: KeyboardEvent): boolean {
    if (event.key === 'm') {
      const usable = METRICS.filter((m) => this.available.includes(m.value));
      const at = usable.findIndex((m) => m.value === this.metric(this.app.state));
      const next = usable[(at + 1) % usable.length]?.value ?? null;
      this.app.setOpt('map.metric', next === usualMetric(this.app.info) ? null : next);
      return true;
    }
    if (event.key === 'o') {
      const orders = this.orders();
      this.setOrder(orders[(orders.indexOf(this.orderOf(this.app.state)) + 1) % orders.length] ?? 'rows');
      return true;
    }
    return this.plot.onKey(event);
  }

  exportCanvas(): HTMLCanvasElement {
    return this.plot.canvas;
  }

  exportSvg(): string {
    return svgDocument([this.plot.svg()], this.app.colours.ground);
  }

  exportCsv(): string {
    const { raster } = this;
    if (!raster) return '';
    const { tensors } = this.app.info;
    const rows: Cell[][] = [];
    raster.values.forEach((value, i) => {
      const begin = i * raster.header.cell_bytes;
      if (begin >= raster.header.total_bytes) return;
      const tensor = tensorAt(tensors, begin);
      const end = Math.min(raster.header.total_bytes, begin + raster.header.cell_bytes);
      rows.push([i, begin, end, Number.isNaN(value) ? null : value, tensor?.name, tensor?.layer, tensor?.component]);
    });
    return csv(['cell', 'begin', 'end', raster.header.metric, 'tensor', 'layer', 'component'], rows);
  }

  private metric(state: State): Metric {
    const wanted = state.opt['map.metric'];
    return METRICS.find((m) => m.value === wanted)?.value ?? usualMetric(this.app.info);
  }
  private orders(): string[] {
    return knownOrders(this.app.info.tensors);
  }
  private orderOf(state: State): string {
    return this.orders().find((order) => order === state.opt['map.order']) ?? 'rows';
  }
  private setOrder(order: string): void {
    const { ['map.window']: _, ['map.order']: __, ...opt } = this.app.state.opt;
    this.app.setState({ opt: order === 'rows' ? opt : { ...opt, 'map.order': order }, offset: null });
  }
  private isSorted(state: State): boolean {
    return this.orderOf(state) === 'layers';
  }
  /** Bytes by component: of all accesses, or from the disk. */
  private async readBy(metric: Metric, { filter }: State): Promise<[string, number][]> {
    const { api } = this.app;
    if (metric !== 'disk')
      return (await api.summary(filter, 'map-key')).by_component.map((one) => [one.component, one.bytes]);
    const read = new Map<string, number>();
    for (const one of (await api.disk(filter, 'map-key')).by_tensor)
      read.set(one.component, (read.get(one.component) ?? 0) + one.read_bytes);
    return [...read];
  }
  private isNow(state: State): boolean {
    return state.opt['map.pages'] === 'now';
  }
  /** The end of the selected evaluation, or of the run. */
  private async moment(state: State): Promise<number> {
    const { api, info } = this.app;
    const [selected] = state.eval === null ? [] : await api.evals({ from: state.eval, to: state.eval, max: 1 });
    return selected?.end ?? info.totals.duration_nanos;
  }
  private isHilbert(state: State): boolean {
    return this.orderOf(state) === 'hilbert';
  }
  private scale(state: State): Scale {
    return state.opt['map.scale'] === 'log' ? 'log' : 'linear';
  }

  private colourTable(): Table {
    const { colours } = this.app;
    // What was read just now is bright, whatever the theme.
    return this.raster?.header.metric === 'recency' ? colours.time.slice().reverse() : colours.counts;
  }

  private paintOptions({ header }: Raster<MapHeader>): PaintOptions {
    const panel = packed(this.app.colours.panel);
    return {
      max: header.metric === 'residency' ? 1 : header.max,
      scale: this.scaleNow(),
      nothing: panel,
      zero: header.metric === 'recency' ? (this.colourTable()[0] as number) : panel,
    };
  }

  /** Rows that are in sight, with some room to pan: all of them would be an image of a million cells. */
  private rowsInSight(raster: Raster<MapHeader>, layout: RowLayout): RasterLayer {
    const row = rowBytes(layout);
    const { low, high, span } = this.plot.y;
    if (this.rows && this.rows.y0 <= Math.max(0, low) && this.rows.y1 >= Math.min(high, layout.totalBytes))
      return this.rows;
    const cells = Math.min(this.values.length, Math.ceil(layout.totalBytes / layout.cellBytes));
    const first = Math.max(0, Math.floor((low - span) / row));
    const end = Math.min(Math.ceil(cells / layout.columns), Math.ceil((high + span) / row));
    const from = first * layout.columns;
    const values = this.values.subarray(from, Math.min(cells, end * layout.columns));
    const image = this.isByComponent
      ? imageOf(this.componentPixels(values, from, raster), layout.columns, end - first)
      : paint(values, layout.columns, end - first, this.colourTable(), this.paintOptions(raster));
    this.rows = { image, x0: 0, x1: 1, y0: first * row, y1: end * row };
    return this.rows;
  }

  private paintSquare(raster: Raster<MapHeader>): HTMLCanvasElement {
    const { header, values } = raster;
    const inFile = Math.min(values.length, Math.ceil(header.total_bytes / header.cell_bytes));
    const side = Math.round(Math.sqrt(values.length));
    if (this.isByComponent) {
      const pixels = this.componentPixels(values.subarray(0, inFile), 0, raster);
      return squareImage(pixels, side, this.app.colours);
    }
    const curve = hilbertCurve(side);
    const placed = new Float32Array(side * side).fill(Number.NaN);
    for (let d = 0; d < inFile; d++) placed[curve[d] as number] = values[d] as number;
    return paint(placed, side, side, this.colourTable(), this.paintOptions(raster));
  }

  private get isByComponent(): boolean {
    return this.metric(this.app.state) === 'component';
  }

  private componentPixels(values: Float32Array, first: number, { header }: Raster<MapHeader>): Uint32Array {
    const cells = { values, first, cellBytes: header.cell_bytes, tensors: this.order.tensors };
    return componentPixels(cells, { max: header.max, scale: this.scaleNow() }, this.app.colours);
  }

  private scaleNow(): Scale {
    const metric = this.raster?.header.metric;
    return metric === 'recency' || metric === 'residency' ? 'linear' : this.scale(this.app.state);
  }

  private draw(context: CanvasRenderingContext2D): void {
    const { square, raster, layout, plot } = this;
    if (square) return this.drawHilbert(context, square);
    if (!raster || !layout) return;
    plot.drawRaster(context, this.rowsInSight(raster, layout));
    const { colours, info } = this.app;
    drawGaps(context, plot, layout, colours);
    // The accent is among the components' colours.
    const border = this.isByComponent ? colours.ground : colours.accent;
    drawBorders(context, plot, layout, this.order.tensors, info.layers.length, border);
  }

  private drawHilbert(context: CanvasRenderingContext2D, image: HTMLCanvasElement): void {
    const { x, y, size } = squareOf(this.plot);
    const { colours, info } = this.app;
    context.fillStyle = colours.ground;
    context.fillRect(this.plot.margin.left, this.plot.margin.top, this.plot.innerWidth, this.plot.innerHeight);
    context.imageSmoothingEnabled = false;
    context.drawImage(image, x, y, size, size);
    drawOwners(context, { x, y, size }, image.width, this.raster?.header.cell_bytes ?? 1, info, colours);
  }

  /** The legend above, and beside the rows the names of layers and tensors. */
  private decorate(pen: Pen): void {
    const { plot, raster, layout } = this;
    const { colours, info } = this.app;
    if (!raster || !layout) return;
    const metric = raster.header.metric as Metric;
    const max = metric === 'residency' ? 1 : raster.header.max;
    const isRecency = metric === 'recency';
    const value = (v: number) => shownValue(metric, v);
    const right = plot.margin.left + plot.innerWidth;
    const isByComponent = this.isByComponent;
    if (isByComponent && this.square) pen.text(PALER, plot.width - 16, 14, { colour: colours.muted, align: 'right' });
    else if (isByComponent) drawComponentLegend(pen, [plot.margin.left, plot.width - 16], 14, info.tensors, colours);
    else
      drawLegend(pen, plot.width - 16, 14, {
        title: metricName(raster.header),
        table: this.colourTable(),
        colour: colours.muted,
        low: isRecency ? 'just now' : this.scaleNow() === 'log' ? `≤ ${value(unscaled(0, max, 'log'))}` : value(0),
        high: value(max),
      });
    if (this.square) {
      const { x, y, size } = squareOf(this.plot);
      const note = `1 cell = ${format.bytes(raster.header.cell_bytes)}`;
      pen.text(note, x, y + size + 14, { colour: colours.muted, baseline: 'middle' });
      drawComponentKey(pen, Math.min(x + size + 24, right + 14), y + 8, plot.width, this.read, info, colours);
      return;
    }
    pen.text(
      `1 cell = ${format.bytes(raster.header.cell_bytes)}, 1 row = ${format.bytes(rowBytes(layout))}`,
      plot.margin.left + plot.innerWidth,
      plot.height - 8,
      { colour: colours.muted, align: 'right' },
    );

    const order = orderText(info.tensors, this.isSorted(this.app.state));
    pen.text(order, plot.margin.left, plot.height - 8, { colour: colours.muted });
    drawRowOwners(pen, plot, layout, this.order.tensors, this.owned, colours);
    drawLabels(pen, plot, right + 8, this.order.tensors, colours);
  }

  /** Offset under the pointer and its cell; null beside the file. */
  private place(point: PlotPoint): { offset: number; cell: number } | null {
    const { plot, layout, raster, square } = this;
    if (!layout || !raster) return null;
    const offset = positionAt(plot, point, layout, square ? square.width : null);
    if (offset === null) return null;
    return { offset: this.order.offsetAt(offset), cell: Math.floor(offset / raster.header.cell_bytes) };
  }

  private async hover(point: PlotPoint | null): Promise<void> {
    const { app, raster } = this;
    const ask = ++this.hovered;
    const at = point && this.place(point);
    if (!point || !at || !raster) {
      app.tooltip.hide();
      return;
    }
    let found: Located;
    try {
      found = await app.api.locate(at.offset);
    } catch {
      return;
    }
    if (ask !== this.hovered) return;
    const value = this.values[at.cell] ?? Number.NaN;
    const lines: TooltipLine[] = [[metricName(raster.header), shownValue(raster.header.metric, value)]];
    if (raster.header.metric === 'disk')
      lines.push(['over its size', `${(value / raster.header.cell_bytes).toFixed(2)}×`]);
    if (found.name !== null) {
      lines.push(['layer', found.layer === null ? 'none' : String(found.layer)]);
      lines.push(['component', [found.component, found.role].filter(Boolean).join(' · ')]);
      if (found.expert !== null) lines.push(['expert', String(found.expert)]);
      if (found.head !== null) lines.push(['head', found.head]);
      lines.push([
        'in tensor',
        `byte ${format.integer(found.offset_in_tensor ?? 0)} of ${format.integer(found.size_bytes ?? 0)} (${found.type ?? ''})`,
      ]);
    }
    if (found.file !== null && app.info.model.files.length > 1) lines.push(['file', found.file]);
    lines.push(['offset', `${format.integer(at.offset)} (${format.hex(at.offset)})`]);
    app.tooltip.show(
      point.clientX,
      point.clientY,
      found.name ?? 'no tensor: header or padding',
      lines,
      found.component ? app.colours.component(found.component) : undefined,
    );
  }

  private async click(point: PlotPoint): Promise<void> {
    const at = this.place(point);
    if (!at) return;
    const found = await this.app.api.locate(at.offset);
    if (found.component === null) return;
    const wanted = {
      layer: [found.layer],
      component: [found.component],
      expert: found.expert === null ? [] : [found.expert],
    };
    const { filter } = this.app.state;
    const isSame = (['layer', 'component', 'expert'] as const).every(
      (key) => String(filter[key]) === String(wanted[key]),
    );
    // A second click on the same place takes the filter away.
    this.app.setFilter(isSame ? { layer: [], component: [], expert: [] } : wanted);
  }
}
