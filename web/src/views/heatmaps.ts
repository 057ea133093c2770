/**
 * Token × layer, token × tensor, token × expert.
 *
 * Two rasters are drawn one over the other: the whole run, coarse, and what is
 * in sight, sharp. A pan moves both at once; the sharp one is asked for again
 * when it no longer covers what is in sight. The token filter does not cut the
 * picture: it is shown as a selection in it, because this is where it is made.
 */
import { drawLegend, fit, svgDocument, unscaled, type Pen, type Scale as Growth } from '../canvas';
import { withAlpha } from '../colours';
import { Cover, h, picker, segmented, toolbar, type Picker, type Segmented } from '../dom';
import * as format from '../format';
import { Plot, type PlotPoint, type RasterLayer } from '../plot';
import { filterParams, type Filter, type State } from '../state';
import type { HeatmapRow } from '../generated/index';
import type { App, View } from '../view';
import { csv } from '../csv';
import { drawSeparators, drawTokenAxis, rowTicks } from './parts/heat-axes';
import {
  exactValue,
  longName,
  MANY_ROWS,
  metricName,
  METRICS,
  optionsOf,
  ROWS,
  shownValue,
  tokenName,
  usualGrowth,
  type HeatOptions,
} from './parts/heat-options';
import { areApart, higher, mostOf, peaksOf, type Peaks } from './parts/heat-peaks';
import { GROWTHS, tableFor, type Scale } from './parts/scale';
import { imageOf, rowKey, tileOf, valueAt, type Tile } from './parts/tiles';
import { TokenTexts } from './parts/token-texts';

type HeatmapQuery = Parameters<App['api']['heatmap']>[0] & { from: number; to: number; columns: number };

/** Cells of one raster: four bytes each on the wire and in the cache of answers. */
const MAX_CELLS = { whole: 2_000_000, sharp: 1_000_000 };
const MAX_COLUMNS = 2048;
const MARGIN = { left: 150, right: 16, top: 38, bottom: 92 };

// A page has one heatmap: what it shows is the module's.
let app: App;
let plot: Plot | null = null;
let cover: Cover;
let texts: TokenTexts;
let controls: { rows: Segmented; metric: Segmented; growth: Segmented; layer: Picker };
let options: HeatOptions;
let rows: HeatmapRow[] = [];
let rowPlaces = new Map<string, number>();
let unit = '';
let peaks: Peaks = { layers: 0, none: 0 };
let whole: { tile: Tile; layer: RasterLayer } | null = null;
let sharp: { tile: Tile; layer: RasterLayer } | null = null;
/** What the rasters were asked with; others are forgotten when it changes. */
let asked = '';
/** What the images were coloured with. */
let coloured = '';
let selected: [number, number] | null = null;
/** Scale of the colours unless one was chosen. */
let usual: Growth = 'linear';
let version = 0;
let settled = 0;

const view: View = {
  id: 'heatmaps',
  title: 'Heatmaps',
  key: '4',
  help: [
    ['drag, wheel', 'pan, zoom tokens; shift-wheel zooms rows'],
    ['click', 'filter by this token'],
    ['shift-drag', 'filter by a range of tokens'],
    ['z', 'zoom to the filtered tokens'],
    ['r / m / s', 'next rows, metric, colour scale'],
  ],

  mount(root, of) {
    app = of;
    asked = '';
    whole = sharp = null;
    rows = [];
    peaks = { layers: 0, none: 0 };
    selected = app.state.filter.tokens;
    options = optionsOf(app.state, app.info);
    controls = {
      rows: segmented('rows', ROWS, (value) => app.setOpt('heatmaps.rows', value)),
      metric: segmented('colour', METRICS, (value) => app.setOpt('heatmaps.metric', value)),
      growth: segmented('scale', GROWTHS, (value) => app.setOpt('heatmaps.scale', value)),
      layer: picker('of', 'layers whose experts are shown', (value) => app.setOpt('heatmaps.layer', value)),
    };
    const bar = toolbar(
      controls.rows.element,
      controls.layer.element,
      controls.metric.element,
      controls.growth.element,
    );
    const stage = h('div', { class: 'stage view-stage' });
    root.append(bar, stage);
    cover = new Cover(stage);
    texts = new TokenTexts(app.api, () => plot?.redraw());
    plot = new Plot(stage, {
      label: 'heatmap of tokens',
      x: { label: '', kind: 'token', limits: [0, Math.max(1, app.info.totals.tokens)], shortest: 4, ticks: () => [] },
      y: {
        label: '',
        kind: 'names',
        limits: [0, 1],
        shortest: 4,
        ticks: (low, high, pixels) => rowTicks(rows, options.rows, low, high, pixels),
      },
      margin: MARGIN,
      colours: () => app.colours,
      draw,
      decorate,
      hover,
      click: (point) => pickTokens(Math.floor(point.x), Math.floor(point.x)),
      select: ([from, to]) => pickTokens(Math.floor(from), Math.max(Math.floor(from), Math.ceil(to) - 1)),
      moved,
    });
  },

  async update(state) {
    if (!plot) return;
    options = optionsOf(state, app.info);
    showControls();
    const tokens = app.info.totals.tokens;
    if (tokens === 0) return cover.empty('no token has been recorded yet');
    if (options.rows === 'expert' && app.info.experts === 0) {
      asked = '';
      whole = sharp = null;
      rows = [];
      plot.redraw();
      return cover.error(
        `${app.info.model.name ?? 'This'} is a dense model: it has no experts. Choose layers or tensors.`,
      );
    }
    const question = JSON.stringify([
      state.run,
      app.info.version,
      options.rows,
      options.metric,
      options.layer,
      filterParams(filter()),
    ]);
    if (question === asked) {
      recolour();
      bringIntoSight();
      plot.redraw();
      return;
    }
    // Another version of a live run keeps its window: only what is drawn is replaced.
    const isSamePicture = sameRows(asked, question);
    asked = question;
    if (version !== app.info.version) texts.forget();
    version = app.info.version;
    const raster = await app.api.heatmap(query(0, tokens, rowCount(), MAX_CELLS.whole), filter(), 'heatmap-whole');
    if (asked !== question || !plot) return;
    rows = raster.header.rows;
    rowPlaces = new Map(rows.map((row, at) => [rowKey(row), at]));
    unit = raster.header.unit;
    peaks = peaksOf(raster);
    usual = usualGrowth(options.metric, raster.values, mostOf(peaks, 0));
    controls.growth.set(growth());
    const tile = tileOf(raster, rowPlaces);
    whole = tile && { tile, layer: imageOf(tile, scaleOf) };
    sharp = null;
    coloured = colouring();
    const wasWhole = plot.x.isWhole;
    plot.x.options.limits = [0, tokens];
    plot.y.options.limits = [0, Math.max(1, rows.length)];
    if (isSamePicture) {
      if (wasWhole) plot.x.showAll();
      else plot.x.show(plot.x.low, plot.x.high);
      plot.y.show(plot.y.low, plot.y.high);
    } else {
      plot.x.show(...windowOf(state, 'x', [0, tokens]));
      plot.y.show(...windowOf(state, 'y', [0, Math.max(1, rows.length)]));
    }
    bringIntoSight();
    if (rows.length === 0 || !(raster.header.max > 0)) cover.empty();
    else cover.clear();
    plot.redraw();
    sharpen();
  },

  unmount() {
    clearTimeout(settled);
    plot?.destroy();
    plot = null;
    app.tooltip.hide();
  },

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    const tokens = app.state.filter.tokens;
    switch (event.key) {
      case 'z':
        if (tokens && plot) {
          plot.x.show(tokens[0], tokens[1] + 1);
          plot.redraw();
          moved();
        }
        return true;
      case 'r':
        next('rows', ROWS.slice(0, app.info.experts === 0 ? 2 : 3), options.rows);
        return true;
      case 'm':
        next(
          'metric',
          METRICS.filter(({ value }) => value !== (options.rows === 'expert' ? 'nanos' : 'weight')),
          options.metric,
        );
        return true;
      case 's':
        next('scale', GROWTHS, growth());
        return true;
      default:
        return plot?.onKey(event) ?? false;
    }
  },

  exportCsv() {
    const [from, to] = app.state.filter.tokens ?? [0, app.info.totals.tokens - 1];
    const tile = sharp && sharp.tile.from <= from && sharp.tile.to > to ? sharp.tile : (whole?.tile ?? null);
    if (!tile) return csv(['layer', 'row'], []);
    const { edges, columns } = tile.raster.header;
    const shown = [...Array(columns).keys()].filter((at) => (edges[at + 1] ?? 0) > from && (edges[at] ?? 0) <= to);
    const names = shown.map((at) => {
      const [first, last] = [edges[at] ?? 0, (edges[at + 1] ?? 1) - 1];
      return first === last ? `token ${first}` : `tokens ${first}-${last}`;
    });
    const lines = rows.map((row, place) => {
      const at = tile.rowOf[place] ?? -1;
      return [
        row.layer,
        longName(row),
        ...shown.map((column) => (at < 0 ? null : tile.raster.values[at * columns + column])),
      ];
    });
    return csv(['layer', `row (${unit})`, ...names], lines);
  },

  exportCanvas() {
    return (plot as Plot).canvas;
  },

  exportSvg() {
    return plot ? svgDocument([plot.svg()], app.colours.ground) : '';
  },
};

function showControls(): void {
  controls.rows.set(options.rows, app.info.experts === 0 ? ['expert'] : []);
  controls.metric.set(options.metric, [options.rows === 'expert' ? 'nanos' : 'weight']);
  controls.growth.set(growth());
  controls.layer.element.hidden = options.rows !== 'expert';
  const layers = app.info.layers.filter((layer): layer is number => layer !== null);
  controls.layer.set(
    [
      { value: 'all', text: 'all layers' },
      ...layers.map((layer) => ({ value: String(layer), text: `layer ${layer}` })),
    ],
    options.layer,
  );
}

function next(name: string, choices: readonly { value: string }[], value: string): void {
  const at = choices.findIndex((choice) => choice.value === value);
  app.setOpt(`heatmaps.${name}`, choices[(at + 1) % choices.length]?.value ?? null);
}

/** The filter bar without its tokens, and with the chosen layer of experts. */
function filter(): Filter {
  const own = { ...app.state.filter, tokens: null };
  return options.layer === 'all' ? own : { ...own, layer: [Number(options.layer)] };
}

/** How many rows to expect, before the server has said. */
function rowCount(): number {
  if (options.rows === 'tensor') return app.info.tensors.length;
  if (options.rows === 'layer') return app.info.layers.length;
  return app.info.experts * (options.layer === 'all' ? app.info.layers.length : 1);
}

function query(from: number, to: number, ofRows: number, cells: number): HeatmapQuery {
  const fitting = Math.max(32, Math.floor(cells / Math.max(1, ofRows)));
  const columns = Math.max(1, Math.min(to - from, fitting, MAX_COLUMNS));
  return { rows: options.rows, metric: options.metric, from, to: to - 1, columns };
}

function scaleOf(row: number): Scale {
  const most = mostOf(peaks, rows[row]?.layer ?? null);
  return { growth: growth(), most, table: tableFor(options.metric, app.colours) };
}

function growth(): Growth {
  return options.growth ?? usual;
}

function colouring(): string {
  return `${growth()} ${app.colours.theme} ${peaks.layers} ${peaks.none}`;
}

function recolour(): void {
  const wanted = colouring();
  if (wanted === coloured) return;
  coloured = wanted;
  if (whole) whole.layer = imageOf(whole.tile, scaleOf);
  if (sharp) sharp.layer = imageOf(sharp.tile, scaleOf);
}

/** The same rows of the same run: a live run grew, or only the metric changed. */
function sameRows(a: string, b: string): boolean {
  if (a === '' || rows.length === 0) return false;
  const [x, y] = [JSON.parse(a) as unknown[], JSON.parse(b) as unknown[]];
  return [0, 2, 4].every((at) => x[at] === y[at]);
}

function windowOf(state: State, axis: 'x' | 'y', all: [number, number]): [number, number] {
  const match = /^(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)$/.exec(state.opt[`heatmaps.${axis}`] ?? '');
  return match ? [Number(match[1]), Number(match[2])] : all;
}

/** Tokens that were filtered elsewhere are moved into sight, once. */
function bringIntoSight(): void {
  const now = app.state.filter.tokens;
  const isNew = now !== null && (selected?.[0] !== now[0] || selected[1] !== now[1]);
  selected = now;
  if (!plot || !now || !isNew || (now[1] + 1 > plot.x.low && now[0] < plot.x.high)) return;
  const middle = (now[0] + now[1] + 1) / 2;
  const half = Math.max(plot.x.span, now[1] + 1 - now[0]) / 2;
  plot.x.show(middle - half, middle + half);
  moved();
}

/** Sharpens while the plot moves; the window stands in the address bar once it has come to rest. */
function moved(): void {
  clearTimeout(settled);
  sharpen();
  settled = window.setTimeout(() => {
    if (!plot || rows.length === 0) return;
    for (const name of ['x', 'y'] as const) {
      const axis = plot[name];
      const value = axis.isWhole ? null : `${Math.round(axis.low * 100) / 100}-${Math.round(axis.high * 100) / 100}`;
      if ((app.state.opt[`heatmaps.${name}`] ?? null) !== value)
        app.setOpt(`heatmaps.${name}`, value, { replace: true });
    }
  }, 400);
}

/** Asks for what is in sight, with a margin to pan into, unless it is there. */
function sharpen(): void {
  if (!plot || !whole || rows.length === 0) return;
  const tokens = app.info.totals.tokens;
  const { low, high, span } = plot.x;
  const isSharp = (tile: Tile): boolean => {
    const perColumn = (tile.to - tile.from) / tile.raster.header.columns;
    const covers = tile.from <= Math.floor(low) && tile.to >= Math.min(tokens, Math.ceil(high)) && coversRows(tile);
    return covers && (perColumn <= 1 || perColumn <= (1.5 * span) / (plot as Plot).innerWidth);
  };
  if (isSharp(whole.tile)) {
    if (sharp) plot.redraw();
    sharp = null;
    return;
  }
  if (sharp && isSharp(sharp.tile)) return;
  const from = Math.max(0, Math.floor(low - span / 2));
  const to = Math.min(tokens, Math.ceil(high + span / 2));
  const seen = visibleLayers();
  const wanted = seen ? { ...filter(), layer: seen.layers } : filter();
  const asking = query(from, to, seen?.rows ?? rows.length, MAX_CELLS.sharp);
  // With very many rows a new raster may be no sharper than what is there.
  const there = [sharp, whole].find(
    (one) =>
      one &&
      one.tile.from <= Math.floor(low) &&
      one.tile.to >= Math.min(tokens, Math.ceil(high)) &&
      coversRows(one.tile),
  );
  if (
    there &&
    (to - from) / asking.columns > (0.8 * (there.tile.to - there.tile.from)) / there.tile.raster.header.columns
  )
    return;
  const question = asked;
  app.api.heatmap(asking, wanted, 'heatmap-sharp').then(
    (raster) => {
      if (question !== asked || !plot) return;
      const tile = tileOf(raster, rowPlaces);
      if (!tile) return;
      // Means of many tokens hide the largest: the scale grows as it is found.
      peaks = higher(peaks, peaksOf(raster));
      recolour();
      sharp = { tile, layer: imageOf(tile, scaleOf) };
      plot.redraw();
    },
    (error: unknown) => {
      if (!(error instanceof DOMException)) app.status(String(error instanceof Error ? error.message : error));
    },
  );
}

function coversRows(tile: Tile): boolean {
  if (!plot) return false;
  return tile.firstRow <= Math.floor(plot.y.low) && tile.endRow >= Math.min(rows.length, Math.ceil(plot.y.high));
}

/** The layers in sight, when there are too many rows to fetch all of them sharply. */
function visibleLayers(): { layers: (number | null)[]; rows: number } | null {
  if (!plot || rows.length <= MANY_ROWS) return null;
  const layers = new Set<number | null>();
  for (let at = Math.max(0, Math.floor(plot.y.low)); at < Math.min(rows.length, Math.ceil(plot.y.high)); at++)
    layers.add(rows[at]?.layer ?? null);
  let count = 0;
  for (const row of rows) if (layers.has(row.layer)) count++;
  return { layers: [...layers], rows: count };
}

function pickTokens(first: number, last: number): void {
  const end = app.info.totals.tokens - 1;
  const [from, to] = [Math.max(0, Math.min(end, first)), Math.max(0, Math.min(end, last))];
  const old = app.state.filter.tokens;
  // A second click on the only filtered token takes the filter away.
  const isSame = old !== null && old[0] === from && old[1] === to;
  app.setFilter({ tokens: isSame ? null : [from, to] });
}

function draw(context: CanvasRenderingContext2D, on: Plot): void {
  if (whole) on.drawRaster(context, whole.layer);
  if (sharp) on.drawRaster(context, sharp.layer);
  if (options.rows !== 'layer' || areApart(peaks)) drawSeparators(context, on, rows, app.colours, options.rows);
  if (selected) {
    const left = on.px(selected[0]);
    const right = Math.max(on.px(selected[1] + 1), left + 1);
    context.fillStyle = withAlpha(app.colours.ground, 0.62);
    context.fillRect(on.margin.left, on.margin.top, left - on.margin.left, on.innerHeight);
    context.fillRect(right, on.margin.top, on.width - right, on.innerHeight);
    context.strokeStyle = app.colours.accent;
    context.lineWidth = 1.5;
    context.strokeRect(left, on.margin.top - 2, right - left, on.innerHeight + 4);
  }
}

function decorate(pen: Pen, on: Plot): void {
  const { muted } = app.colours;
  drawTokenAxis(pen, on, app.info.totals.tokens, texts, app.colours);
  const isApart = areApart(peaks);
  const most = mostOf(peaks, 0);
  let left = drawLegend(pen, on.margin.left + on.innerWidth, 14, {
    title: `${metricName(options)} per token${isApart ? ', layers' : ''}`,
    table: tableFor(options.metric, app.colours),
    colour: muted,
    low: '0',
    high: shownValue(options.metric, most),
    middle: growth() === 'linear' ? undefined : shownValue(options.metric, unscaled(0.5, most, growth())),
  });
  if (isApart) {
    const apart = `rows of no layer: a scale of their own, to ${shownValue(options.metric, peaks.none)}`;
    pen.text(apart, left - 18, 14, { colour: muted, align: 'right', baseline: 'middle' });
    left -= 18 + pen.measure(apart);
  }
  const range =
    selected && (selected[0] === selected[1] ? `token ${selected[0]}` : `tokens ${selected[0]}–${selected[1]}`);
  const hint = range
    ? `${range} filtered · z zooms there`
    : 'click a token to filter by it · shift-drag a range · wheel zooms';
  const room = left - 12 - on.margin.left;
  if (range || pen.measure(hint) <= room)
    pen.text(fit(pen, hint, room), on.margin.left, 14, { colour: muted, align: 'left', baseline: 'middle' });
}

function hover(point: PlotPoint | null): void {
  const row = point && rows[Math.floor(point.y)];
  const tile = sharp ?? whole;
  if (!point || !row || !tile) {
    app.tooltip.hide();
    return plot?.setCursor(null, null);
  }
  plot?.setCursor(point.x, point.y);
  const token = Math.floor(point.x);
  const place = Math.floor(point.y);
  const cell = (sharp && valueAt(sharp.tile, token, place)) ?? (whole && valueAt(whole.tile, token, place));
  if (!cell) return app.tooltip.hide();
  const of = texts.get(token);
  const isOne = cell.first === cell.last;
  app.tooltip.show(point.clientX, point.clientY, longName(row), [
    isOne
      ? ['token', `${format.integer(token)}${of ? ` “${tokenName(of)}”` : ''}`]
      : ['tokens', `${format.integer(cell.first)}–${format.integer(cell.last)} (mean)`],
    ...(of && isOne ? [['phase', of.phase] as [string, string]] : []),
    [metricName(options), shownValue(options.metric, cell.value)],
    ['exactly', exactValue(options.metric, cell.value)],
    ...(row.layer === null && areApart(peaks)
      ? [['scale', `its own, to ${shownValue(options.metric, peaks.none)}`] as [string, string]]
      : []),
    ...(row.layer !== null && options.rows === 'tensor' ? [['layer', String(row.layer)] as [string, string]] : []),
  ]);
}

export function heatmaps(): View {
  return view;
}
