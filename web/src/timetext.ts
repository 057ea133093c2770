/** Nodes, accesses and evaluations in words: tooltips, the line of the selected node, the key of colours, CSV. */
import type { Colours } from './colours';
import { csv, type Cell } from './csv';
import { h } from './dom';
import * as format from './format';
import type { State } from './state';
import type { TooltipLine } from './tooltip';
import type { App } from './view';
import type {
  EvalBrief,
  EvalInfo,
  EvalStep,
  ExactAccess,
  NodeSpan,
  NodesHeader,
  OffsetsHeader,
} from './generated/index';

type Line = [string, string];
const EVEN =
  'an evaluation is only a few pixels wide here: what each layer takes of it is spread evenly over it, in both plots';

export function evalLines(name: EvalBrief, text: string | null): Line[] {
  const last = name.tokens > 1 ? `–${format.integer(name.first_token + name.tokens - 1)}` : '';
  const quoted = text === null ? '' : ` “${format.tokenText(text).slice(0, 60)}”`;
  return [
    ['evaluation', `${format.integer(name.eval)} (${name.phase})`],
    ['token', `${format.integer(name.first_token)}${last}${quoted}`],
  ];
}

/** Of a cell of the grid of layers. */
export function cellLines(header: NodesHeader, at: { x: number; y: number }, ops: readonly string[]): TooltipLine[] {
  if (header.kind !== 'raster') return [];
  const column = Math.floor(((at.x - header.t0) / (header.t1 - header.t0)) * header.w);
  const op = header.ops[Math.floor(at.y) * header.w + column] ?? -1;
  const mostly: TooltipLine[] = op >= 0 ? [['mostly', ops[op] ?? '']] : [];
  return [...mostly, 'zoom in to see single nodes'];
}

export function spanLines(span: NodeSpan): Line[] {
  const length = span.end - span.begin;
  return [
    ['takes', `${format.nanos(length)} (${format.exactNanos(length)})`],
    ['begins', format.exactNanos(span.begin)],
    ['layer', span.layer === null ? 'none' : String(span.layer)],
    ['component', span.component],
    ['bytes', `${format.bytes(span.bytes)} (${format.integer(span.bytes)})`],
    ['node', `step ${span.step}`],
  ];
}

export function accessLines(access: ExactAccess): Line[] {
  const lines: Line[] = [
    ['reads', `${format.bytes(access.bytes)} (${format.integer(access.bytes)} bytes)`],
    ['offset', `${format.integer(access.offset)} (${format.hex(access.offset)})`],
    ['op', `${access.op}, step ${access.step}`],
  ];
  if (access.expert !== null) lines.push(['expert', String(access.expert)]);
  lines.push(['from', format.exactNanos(access.begin)], ['to', format.exactNanos(access.end)]);
  return lines;
}

/** Exact values of the selected node, from its evaluation; null where it has none. */
export async function selection(app: App, { eval: number, step }: State): Promise<HTMLElement[] | null> {
  const hint = (text: string) => [h('span', { class: 'hint' }, text)];
  if (number === null)
    return hint('click a node or an access to select it; wheel zooms, drag pans, Shift-drag zooms to a range');
  try {
    const detail = await app.api.evaluation(number, 'selected');
    const selected = detail.steps.find((one) => one.step === step) ?? detail.steps[0];
    if (!selected) return null;
    const play = { type: 'button', class: 'quiet', onclick: () => app.setState({ view: 'playback' }) };
    return [...selectedLine(detail, selected), h('button', play, '▶ play from here')];
  } catch {
    return hint(`evaluation ${number} is not in this run`);
  }
}

/** Exact values of one node, side by side. */
function selectedLine(detail: EvalInfo, step: EvalStep): HTMLElement[] {
  const weights = step.ranges.reduce((sum, [, size]) => sum + size, 0);
  const ranges = `${step.ranges.length} range${step.ranges.length === 1 ? '' : 's'}`;
  const line = [
    h('b', {}, `${step.op} ${step.name}`),
    h('span', {}, `evaluation ${detail.eval}, step ${step.step}`),
    h('span', {}, format.layer(step.layer)),
    h('span', {}, `${format.exactNanos(step.begin)} + ${format.exactNanos(step.end - step.begin)}`),
    h('span', {}, `${format.integer(weights)} bytes of weights in ${ranges}`),
  ];
  if (step.experts.length > 0) line.push(h('span', {}, `experts ${step.experts.slice(0, 12).join(', ')}`));
  return line;
}

/** Which colours mean what among the nodes in sight. */
export function nodeKey(
  header: NodesHeader,
  by: 'op' | 'component',
  ops: readonly string[],
  colours: Colours,
): HTMLElement[] {
  const isByOp = by === 'op' || header.kind === 'raster';
  const used = new Set<string>();
  if (header.kind === 'spans') for (const span of header.spans) used.add(isByOp ? span.op : span.component);
  else for (const op of new Set(header.ops)) if (op >= 0) used.add(ops[op] ?? '');
  // Names that share a colour share an entry; ops without one of their own are "other".
  const grey = colours.op('');
  const byColour = new Map<string, string[]>();
  for (const name of [...used].sort()) {
    const colour = isByOp ? colours.op(name) : colours.component(name);
    byColour.set(colour, [...(byColour.get(colour) ?? []), name]);
  }
  const others = isByOp && byColour.delete(grey);
  const items = [...byColour].map(([colour, names]) => keyItem(names.join(', '), colour));
  if (others) items.push(keyItem('other ops', grey));
  if (by === 'component' && header.kind === 'raster') items.push(h('span', {}, '(by op until zoomed in to nodes)'));
  if (header.kind === 'raster' && header.even)
    items.push(h('span', { title: EVEN }, '· whole evaluations: zoom in to see inside'));
  return items;
}

function keyItem(name: string, colour: string): HTMLElement {
  const swatch = h('i', { class: 'swatch' });
  swatch.style.background = colour;
  return h('span', {}, swatch, name);
}

export function spansCsv(spans: readonly NodeSpan[]): string {
  return csv(
    ['eval', 'step', 'layer', 'op', 'name', 'component', 'begin_nanos', 'end_nanos', 'bytes', 'token'],
    spans.map((s) => [s.eval, s.step, s.layer, s.op, s.name, s.component, s.begin, s.end, s.bytes, s.token]),
  );
}

/** Cells that are not empty, with their borders. */
export function offsetsCsv(header: OffsetsHeader, values: Float32Array): string {
  const { t0, t1, o0, o1, w, h: rows } = header;
  const border = (low: number, high: number, k: number, n: number) => Math.round(low + ((high - low) * k) / n);
  const cells: Cell[][] = [];
  values.forEach((value, i) => {
    if (!(value > 0)) return;
    const [x, y] = [i % w, Math.floor(i / w)];
    const time = [border(t0, t1, x, w), border(t0, t1, x + 1, w)];
    cells.push([...time, border(o0, o1, y, rows), border(o0, o1, y + 1, rows), value]);
  });
  return csv(['begin_nanos', 'end_nanos', 'offset_begin', 'offset_end', 'bytes'], cells);
}
