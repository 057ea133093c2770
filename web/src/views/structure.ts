/**
 * Structure: the model's file as a map, and its layers as a table.
 *
 * The map is that of a run without a run: a cell has the colour of its component, pale where it is
 * not among what is picked. Everything is known from the header: nothing is asked for but once.
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
import { svgDocument, type Pen } from '../canvas';
import { csv } from '../csv';
import { fill, h, panel, segmented, toolbar, type Segmented } from '../dom';
import { rowBytes, tensorBefore, type RowLayout } from '../filemap';
import * as format from '../format';
import { drawOwners } from '../hilbert';
import { componentPixels, drawComponentLegend } from '../mapcolour';
import { drawLabels } from '../maplabels';
import { fileOrder, knownOrders, layerOrder, ORDERS, orderText, type Order } from '../maporder';
import { Plot, type PlotPoint, type RasterLayer } from '../plot';
import { range, type State } from '../state';
import { isSelected, layerTable, selectedCells, sumsBy, type LayerRow, type Selection, type Sum } from '../structure';
import type { TooltipLine } from '../tooltip';
import type { ModelFacts, ModelStructure, ModelTensor } from '../generated/server';
import type { App, View } from '../view';
import { bars } from './parts/bars';

/** Where the plot is small. */
const NARROW_GUTTER_PX = 96;

class Structure implements View {
  readonly id = 'structure';
  readonly title = 'Structure';
  readonly key = '2';
  readonly help: [string, string][] = [
    ['click', 'pick the layer of that byte, or of that row; again: all'],
    ['wheel, + −', 'zoom into the file'],
    ['o', 'next order: of the file, of the layers, Hilbert’s'],
    ['Esc', 'pick all'],
  ];
  private app!: App;
  private plot!: Plot;
  private orders!: Segmented;
  private structure: ModelStructure | null = null;
  private order!: Order;
  private layout: RowLayout | null = null;
  /** Rows of cells, or the square; one of them. */
  private rows: RasterLayer | null = null;
  private square: HTMLCanvasElement | null = null;
  private owned: (string | null)[] = [];
  private look = '';
  private listed = '';
  private readonly picked = h('span', { class: 'hint', role: 'status' });
  private readonly table = h('div', { class: 'struct-scroll' });
  private readonly types = h('div');
  private readonly components = h('div');

  mount(root: HTMLElement, app: App): void {
    this.app = app;
    this.look = this.listed = '';
    this.order = fileOrder(app.info.tensors);
    this.orders = segmented('order', ORDERS, (value) => this.setOrder(value));
    const host = h('div', {});
    const side = h(
      'div',
      { class: 'struct-side' },
      panel('Layers', 'Bytes and types by role. A click on a layer picks it on the map.', this.table),
      panel('By component', 'A click picks it on the map.', this.components),
      panel('By type', 'As the weights are stored.', this.types),
    );
    root.append(
      h(
        'div',
        { class: 'struct' },
        h(
          'div',
          { class: 'struct-map' },
          toolbar(this.orders.element, h('span', { class: 'spacer' }), this.picked),
          h('div', { class: 'stage' }, host),
        ),
        side,
      ),
    );
    this.plot = new Plot(host, {
      label: 'map of the model file, coloured by component',
      x: {
        label: '',
        kind: 'bytes',
        limits: [0, 1],
        isFixed: true,
        ticks: (_low, _high, pixels) => columnTicks(this.layout, pixels),
      },
      y: { label: 'file offset', kind: 'bytes', limits: [0, this.total], shortest: 64, clearance: 6 },
      margin: { left: 84, right: GUTTER_PX, top: 30, bottom: 34 },
      colours: () => this.app.colours,
      draw: (context) => this.draw(context),
      decorate: (pen) => this.decorate(pen),
      hover: (point) => this.hover(point),
      click: (point) => this.click(point),
      resized: () => app.setState({}, { replace: true }),
      moved: (plot) => {
        const { low, high, isWhole } = plot.y;
        const { ['structure.window']: _, ...opt } = app.state.opt;
        const window = `${Math.round(low)}-${Math.round(high)}`;
        app.setState({ opt: isWhole ? opt : { ...opt, 'structure.window': window } }, { replace: true, atOnce: true });
      },
    });
  }

  unmount(): void {
    this.plot.destroy();
    this.app.tooltip.hide();
  }

  async update(state: State): Promise<void> {
    const { app, plot, total } = this;
    this.structure = await app.api.structure();
    const order = this.orderOf(state);
    const isHilbert = order === 'hilbert';
    this.orders.set(order, this.known().includes('layers') ? [] : ['layers']);
    plot.margin.right = isHilbert ? 16 : plot.width < 620 ? NARROW_GUTTER_PX : GUTTER_PX;
    const columns = columnsOf(plot);
    plot.y.options.shortest = fewestBytes(columns, total);
    plot.y.options.isFixed = plot.y.options.isHidden = plot.x.options.isHidden = isHilbert;
    plot.y.options.label = isHilbert ? '' : order === 'layers' ? 'by layer' : 'file offset';
    // A plot that the user is moving knows better than the state.
    if (isHilbert) plot.y.showAll();
    else if (!plot.isAhead) plot.y.show(...(range(state.opt['structure.window'] ?? null) ?? plot.y.options.limits));
    plot.reframe();
    this.list(state);
    const cells = isHilbert ? hilbertSide(plot) ** 2 : rowCells(plot, columns, total);
    const look = [app.colours.theme, order, columns, cells, JSON.stringify(this.selection(state))].join();
    if (look === this.look) return;
    this.look = look;
    this.order = order === 'layers' ? layerOrder(app.info.tensors, total) : fileOrder(app.info.tensors);
    this.owned = [];
    this.paint(columns, cells, isHilbert, this.selection(state));
    plot.redraw();
  }

  onKey(event: KeyboardEvent): boolean {
    if (event.key === 'o') {
      const known = this.known();
      this.setOrder(known[(known.indexOf(this.orderOf(this.app.state)) + 1) % known.length] ?? 'rows');
      return true;
    }
    if (event.key === 'Escape') {
      this.app.tooltip.hide();
      this.pick({});
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
    const files = this.structure?.files ?? [];
    return csv(
      ['tensor', 'type', 'shape', 'layer', 'component', 'role', 'file', 'file_offset', 'size_bytes'],
      (this.structure?.tensors ?? []).map((one) => [
        one.name,
        one.type,
        one.shape.join('x'),
        one.layer,
        one.component,
        one.role,
        files[one.file]?.name,
        one.file_offset,
        one.size_bytes,
      ]),
    );
  }

  private get total(): number {
    return Math.max(1, (this.app.model as ModelFacts).size_bytes);
  }

  private known(): string[] {
    return knownOrders(this.app.info.tensors);
  }

  private orderOf(state: State): string {
    return this.known().find((order) => order === state.opt['structure.order']) ?? 'rows';
  }

  private setOrder(order: string): void {
    const { ['structure.window']: _, ['structure.order']: __, ...opt } = this.app.state.opt;
    this.app.setState({ opt: order === 'rows' ? opt : { ...opt, 'structure.order': order } });
  }

  private selection({ opt }: State): Selection {
    const layer = opt['structure.layer'];
    const selection: Selection = {};
    if (layer === 'none') selection.layer = null;
    else if (layer !== undefined && /^\d+$/.test(layer)) selection.layer = Number(layer);
    if (opt['structure.component']) selection.component = opt['structure.component'];
    if (opt['structure.type']) selection.type = opt['structure.type'];
    return selection;
  }

  private pick({ layer, component, type }: Selection): void {
    const opt: Record<string, string> = { ...this.app.state.opt };
    for (const key of ['layer', 'component', 'type']) delete opt[`structure.${key}`];
    if (layer !== undefined) opt['structure.layer'] = layer === null ? 'none' : String(layer);
    if (component !== undefined) opt['structure.component'] = component;
    if (type !== undefined) opt['structure.type'] = type;
    this.app.setState({ opt });
  }

  /** Picks this alone, or all where it was picked already. */
  private toggle(wanted: Selection): void {
    const now = JSON.stringify(this.selection(this.app.state));
    this.pick(now === JSON.stringify(wanted) ? {} : wanted);
  }

  private paint(columns: number, cells: number, isHilbert: boolean, selection: Selection): void {
    const { total } = this;
    const { colours } = this.app;
    const { tensors } = this.order;
    const cellBytes = Math.ceil(total / cells);
    const inFile = Math.ceil(total / cellBytes);
    const values = selectedCells(tensors, inFile, cellBytes, selection);
    const pixels = componentPixels({ values, first: 0, cellBytes, tensors }, { max: 1, scale: 'linear' }, colours);
    this.layout = { columns, cellBytes, totalBytes: total };
    this.square = isHilbert ? squareImage(pixels, Math.round(Math.sqrt(cells)), colours) : null;
    this.rows = null;
    if (isHilbert) return;
    const height = Math.ceil(inFile / columns);
    const image = imageOf(pixels, columns, height);
    this.rows = { image, x0: 0, x1: 1, y0: 0, y1: height * rowBytes(this.layout) };
  }

  private draw(context: CanvasRenderingContext2D): void {
    const { plot, rows, square, layout } = this;
    const { colours, info } = this.app;
    if (!layout) return;
    if (square) {
      const place = squareOf(plot);
      context.fillStyle = colours.ground;
      context.fillRect(plot.margin.left, plot.margin.top, plot.innerWidth, plot.innerHeight);
      context.imageSmoothingEnabled = false;
      context.drawImage(square, place.x, place.y, place.size, place.size);
      drawOwners(context, place, square.width, layout.cellBytes, info, colours);
    } else if (rows) {
      plot.drawRaster(context, rows);
      drawGaps(context, plot, layout, colours);
      drawBorders(context, plot, layout, this.order.tensors, info.layers.length, colours.ground);
    }
  }

  private decorate(pen: Pen): void {
    const { plot, layout, square } = this;
    const { colours, info, state } = this.app;
    if (!layout) return;
    const paler = Object.keys(this.selection(state)).length > 0 ? 'paler: not picked' : '';
    drawComponentLegend(pen, [plot.margin.left, plot.width - 16], 14, info.tensors, colours, paler);
    const cell = `1 cell = ${format.bytes(layout.cellBytes)}`;
    if (square) {
      const { x, y, size } = squareOf(plot);
      pen.text(cell, x, y + size + 14, { colour: colours.muted, baseline: 'middle' });
      return;
    }
    const right = plot.margin.left + plot.innerWidth;
    if (plot.innerWidth > 420)
      pen.text(orderText(info.tensors, this.orderOf(state) === 'layers'), plot.margin.left, plot.height - 8, {
        colour: colours.muted,
      });
    pen.text(`${cell}, 1 row = ${format.bytes(rowBytes(layout))}`, right, plot.height - 8, {
      colour: colours.muted,
      align: 'right',
    });
    drawRowOwners(pen, plot, layout, this.order.tensors, this.owned, colours);
    drawLabels(pen, plot, right + 8, this.order.tensors, colours);
  }

  /** The tensor under the pointer, and the offset; null beside the file. */
  private at(point: PlotPoint): { tensor: ModelTensor | null; offset: number } | null {
    const { plot, layout, square, structure } = this;
    if (!layout || !structure) return null;
    const position = positionAt(plot, point, layout, square ? square.width : null);
    if (position === null) return null;
    const offset = this.order.offsetAt(position);
    const found = structure.tensors[tensorBefore(this.app.info.tensors, offset)];
    return { offset, tensor: found && offset < found.begin + found.size_bytes ? found : null };
  }

  private hover(point: PlotPoint | null): void {
    const { tooltip, colours } = this.app;
    const found = point && this.at(point);
    if (!point || !found) return tooltip.hide();
    const { tensor, offset } = found;
    const lines: TooltipLine[] = [];
    if (tensor) {
      lines.push(['type', tensor.type], ['shape', tensor.shape.join(' × ')]);
      lines.push(['size', `${format.bytes(tensor.size_bytes)} (${format.integer(tensor.size_bytes)} bytes)`]);
      lines.push(['layer', tensor.layer === null ? 'none' : String(tensor.layer)]);
      lines.push(['component', [tensor.component, tensor.role].filter(Boolean).join(' · ')]);
      if (tensor.experts > 0) lines.push(['experts', String(tensor.experts)]);
      lines.push(['begins at', `${format.integer(tensor.file_offset)} (${format.hex(tensor.file_offset)})`]);
      const files = this.structure?.files ?? [];
      if (files.length > 1) lines.push(['file', files[tensor.file]?.name ?? '']);
    }
    lines.push(['this byte', `${format.integer(offset)} (${format.hex(offset)})`]);
    const title = tensor?.name ?? 'no tensor: header or padding';
    tooltip.show(point.clientX, point.clientY, title, lines, tensor ? colours.component(tensor.component) : undefined);
  }

  private click(point: PlotPoint): void {
    const found = this.at(point);
    if (found?.tensor) this.toggle({ layer: found.tensor.layer });
  }

  /** The tables: built when the model or the theme is another one, then only marked. */
  private list(state: State): void {
    const { structure, app } = this;
    if (!structure) return;
    const selection = this.selection(state);
    const listed = app.colours.theme;
    if (listed !== this.listed) {
      this.listed = listed;
      const { tensors } = structure;
      fill(this.table, this.layersTable(tensors));
      fill(
        this.components,
        this.sums(sumsBy(tensors, 'component'), (name) => app.colours.component(name), 'component'),
      );
      fill(
        this.types,
        this.sums(sumsBy(tensors, 'type'), () => app.colours.category(0), 'type'),
      );
    }
    for (const row of this.table.querySelectorAll<HTMLElement>('tr[data-layer]')) {
      const own = row.dataset['layer'] === 'none' ? null : Number(row.dataset['layer']);
      const isPicked = selection.layer !== undefined && own === selection.layer;
      row.classList.toggle('is-picked', isPicked);
      row.querySelector('button')?.setAttribute('aria-pressed', String(isPicked));
    }
    this.picked.textContent = this.pickedText(structure.tensors, selection);
  }

  private pickedText(tensors: readonly ModelTensor[], selection: Selection): string {
    const told = [
      selection.layer === undefined ? '' : format.layer(selection.layer),
      selection.component ?? '',
      selection.type ?? '',
    ].filter((part) => part !== '');
    const picked = tensors.filter((one) => isSelected(one, selection));
    const bytes = picked.reduce((sum, one) => sum + one.size_bytes, 0);
    const count = `${format.integer(picked.length)} tensor${picked.length === 1 ? '' : 's'}, ${format.bytes(bytes)}`;
    return told.length === 0 ? count : `${told.join(' · ')}: ${count}`;
  }

  private sums(sums: readonly Sum[], colour: (name: string) => string, key: 'component' | 'type'): HTMLElement {
    const all = sums.reduce((sum, one) => sum + one.bytes, 0) || 1;
    return bars(
      sums.map((one) => ({
        name: one.name,
        label: `${format.bytes(one.bytes)}  ${format.percent(one.bytes / all)}`,
        title: `${format.integer(one.bytes)} bytes in ${format.integer(one.tensors)} tensors`,
        parts: [{ name: one.name, value: one.bytes, colour: colour(one.name) }],
        onClick: () => this.toggle({ [key]: one.name }),
      })),
    );
  }

  private layersTable(tensors: readonly ModelTensor[]): HTMLElement {
    const { columns, rows } = layerTable(tensors);
    const { colours } = this.app;
    const head = columns.map(({ component, role }) => {
      const swatch = h('i', { class: 'swatch' });
      swatch.style.background = colours.component(component);
      return h('th', { scope: 'col', title: `${component} · ${role}` }, swatch, ` ${role || component}`);
    });
    return h(
      'table',
      { class: 'est-table struct-table' },
      h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'layer'), h('th', { scope: 'col' }, 'bytes'), ...head)),
      h('tbody', {}, ...rows.map((row) => this.layerRow(row))),
    );
  }

  private layerRow({ layer, bytes, cells }: LayerRow): HTMLElement {
    const name = layer === null ? 'none' : String(layer);
    return h(
      'tr',
      { 'data-layer': name },
      h(
        'th',
        { scope: 'row' },
        h(
          'button',
          {
            type: 'button',
            'aria-pressed': 'false',
            title: format.layer(layer),
            onclick: () => this.toggle({ layer }),
          },
          name,
        ),
      ),
      h('td', { title: `${format.integer(bytes)} bytes` }, format.bytes(bytes)),
      ...cells.map((cell) =>
        cell
          ? h(
              'td',
              { title: `${format.integer(cell.bytes)} bytes` },
              format.bytes(cell.bytes),
              h('small', {}, cell.types.join(', ')),
            )
          : h('td', {}, ''),
      ),
    );
  }
}

export function structure(): View {
  return new Structure();
}
