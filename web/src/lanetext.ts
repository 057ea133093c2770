/** What the lanes of processor, devices and copies say in words: names, key, tooltips. */
import * as format from './format';
import type { Filter } from './state';
import type { TooltipLine } from './tooltip';
import type { Raster } from './api';
import type { Info, Lane, LaneCopy, LaneEval, LanesHeader, LaneWork } from './generated/index';

/** Rows of the grid for each lane: see `LanesHeader`. */
export const PARTS = 4;
const PART_NAMES = [
  'ran',
  'no kernel between two of an evaluation',
  'evaluations, node times not measured',
  'calls of which nothing is measured',
];
/** As tables call it. */
const PROCESSOR = 'CPU';

export type Hit =
  | { kind: 'work'; of: LaneWork }
  | { kind: 'copy'; of: LaneCopy }
  | { kind: 'gap'; of: LaneEval }
  | { kind: 'eval'; of: LaneEval };

/** Something besides the processor computed. */
export function hasDevices(info: Info): boolean {
  return info.devices.some((name) => name !== PROCESSOR);
}

export function laneName(lane: Lane): string {
  switch (lane.kind) {
    case 'to_device':
      return `to ${lane.device}`;
    case 'from_device':
      return `from ${lane.device}`;
    case 'between_devices':
      return `between ${lane.device}`;
    default:
      return lane.device;
  }
}

/** Why an evaluation has nothing inside; null where it has. */
export function laneSentence(one: LaneEval): string | null {
  switch (one.times) {
    case 'evaluation':
      return 'node times not measured';
    case 'call':
      return 'asked for here; when the device computed it was not measured';
    default:
      return null;
  }
}

/** For the key: what the window has, of all devices together. */
export function laneFacts(lanes: readonly Lane[]): Record<'gaps' | 'untimed' | 'asked', string | null> {
  const devices = lanes.filter((lane) => lane.kind === 'device');
  const sum = (of: (lane: Lane) => number) => devices.reduce((total, lane) => total + of(lane), 0);
  const [evals, timed, measured] = [sum((l) => l.evals), sum((l) => l.timed_evals), sum((l) => l.measured_evals)];
  const span = sum((l) => l.span_nanos);
  const of = (count: number) => `${format.integer(count)} of ${format.integer(evals)} evaluations`;
  return {
    gaps:
      span > 0
        ? `between kernels: ${format.percent(sum((l) => l.gap_nanos) / span)} of the time in ${of(measured)}`
        : null,
    untimed: timed > measured ? `node times not measured: ${of(timed - measured)}` : null,
    asked: evals > timed ? `only the call is known: ${of(evals - timed)}` : null,
  };
}

/** The filter has something that lanes do not follow. */
export function isBeside({ layer, component, op, expert }: Filter): boolean {
  return layer.length + component.length + op.length + expert.length > 0;
}

/** What lies in a lane at a moment, or nearest to it within the slack. */
export function under(header: LanesHeader, lane: number, time: number, slack: number): Hit | null {
  const { spans } = header;
  if (!spans) return null;
  const nearest = <T extends { lane: number; begin: number; end: number }>(all: readonly T[], most: number) => {
    let best: T | null = null;
    let distance = most;
    for (const one of all) {
      if (one.lane !== lane) continue;
      const away = Math.max(0, one.begin - time, time - one.end);
      if (away <= distance) [best, distance] = [one, away];
    }
    return best;
  };
  const work = nearest(spans.work, 0);
  if (work) return { kind: 'work', of: work };
  const copy = nearest(spans.copies, slack);
  if (copy) return { kind: 'copy', of: copy };
  const one = nearest(spans.evals, 0);
  if (!one) return null;
  const { kernels_begin, kernels_end } = one;
  const isGap = kernels_begin !== null && kernels_end !== null && kernels_begin <= time && time <= kernels_end;
  return { kind: isGap ? 'gap' : 'eval', of: one };
}

/** The tooltip of what lies under the pointer; of the lane where nothing does. */
export function spanLinesOf(
  shown: { raster: Raster<LanesHeader> },
  lane: Lane,
  hit: Hit | null,
  at: { x: number; y: number },
): { title: string; lines: TooltipLine[] } {
  if (hit === null) return { title: laneName(lane), lines: [...gridLines(shown.raster, at), ...laneLines(lane)] };
  if (hit.kind === 'work') return workLines(lane, hit.of);
  if (hit.kind === 'copy') return copyLines(lane, hit.of);
  return evalLinesOf(shown.raster.header, lane, hit.of, hit.kind === 'gap' ? at.x : null);
}

function workLines(lane: Lane, work: LaneWork): { title: string; lines: TooltipLine[] } {
  const lines: TooltipLine[] = [...took(work.begin, work.end)];
  if (work.kernel !== null) lines.push(['kernel', work.kernel.slice(0, 120)]);
  lines.push(['device', lane.device], ['evaluation', format.integer(work.eval)]);
  if (work.step !== null) lines.push(['node', `step ${work.step}`]);
  return { title: work.op === null ? 'a kernel of no node' : `${work.op} ${work.name ?? ''}`, lines };
}

function copyLines(lane: Lane, copy: LaneCopy): { title: string; lines: TooltipLine[] } {
  const lines: TooltipLine[] = [
    ['copied', `${format.bytes(copy.bytes)} (${format.integer(copy.bytes)} bytes)`],
    ['way', copyWay(lane)],
    ['component', copy.component],
    ['the call', `${copy.is_async ? 'does not wait' : 'waits'}, ${format.nanos(copy.end - copy.begin)}`],
    ['begins', format.exactNanos(copy.begin)],
  ];
  if (copy.eval !== null) lines.push(['before evaluation', format.integer(copy.eval)]);
  lines.push('how long the bytes themselves took is not known');
  return { title: copy.tensor, lines };
}

function copyWay(lane: Lane): string {
  if (lane.kind === 'to_device') return `host to ${lane.device}`;
  if (lane.kind === 'from_device') return `${lane.device} to host`;
  return `between devices (${lane.device})`;
}

/** `gapAt`: a moment at which no kernel ran. */
function evalLinesOf(
  header: LanesHeader,
  lane: Lane,
  one: LaneEval,
  gapAt: number | null,
): { title: string; lines: TooltipLine[] } {
  const lines: TooltipLine[] = [];
  if (gapAt !== null) {
    const kernels = header.spans?.work.filter((work) => work.eval === one.eval) ?? [];
    const before = Math.max(one.kernels_begin ?? gapAt, ...kernels.filter((k) => k.end <= gapAt).map((k) => k.end));
    const after = Math.min(one.kernels_end ?? gapAt, ...kernels.filter((k) => k.begin >= gapAt).map((k) => k.begin));
    lines.push(['this gap', format.nanos(after - before)]);
  }
  lines.push(...took(one.begin, one.end));
  const span = (one.kernels_end ?? 0) - (one.kernels_begin ?? 0);
  if (one.gap_nanos !== null && span > 0)
    lines.push(
      ['kernels', format.integer(one.kernels)],
      ['no kernel ran', `${format.percent(one.gap_nanos / span)} (${format.nanos(one.gap_nanos)})`],
    );
  lines.push(['evaluation', `${format.integer(one.eval)} (${one.phase})`]);
  if (one.token !== null) lines.push(['token', format.integer(one.token)]);
  const sentence = laneSentence(one);
  if (sentence !== null) lines.push(sentence);
  return { title: gapAt === null ? laneName(lane) : 'no kernel ran', lines };
}

function took(begin: number, end: number): [string, string][] {
  return [
    ['takes', `${format.nanos(end - begin)} (${format.exactNanos(end - begin)})`],
    ['begins', format.exactNanos(begin)],
  ];
}

/** Shares of the cell under the pointer. */
function gridLines({ header, values }: Raster<LanesHeader>, at: { x: number; y: number }): TooltipLine[] {
  if (header.spans) return [['time', format.exactNanos(at.x)]];
  const column = Math.floor(((at.x - header.t0) / (header.t1 - header.t0)) * header.w);
  const first = Math.floor(at.y) * PARTS;
  const shares = PART_NAMES.map((name, part): [string, number] => [
    name,
    values[(first + part) * header.w + column] ?? 0,
  ]);
  const known = shares.filter(([, share]) => share > 0);
  return [['time', format.exactNanos(at.x)], ...known.map(([n, s]): TooltipLine => [n, format.percent(s)])];
}

/** What the window has of a lane. */
function laneLines(lane: Lane): TooltipLine[] {
  if (lane.kind !== 'device' && lane.kind !== 'processor')
    return [
      ['copies here and beside', format.integer(lane.copies)],
      ['bytes', format.bytes(lane.bytes)],
    ];
  const lines: TooltipLine[] = [['evaluations here and beside', format.integer(lane.evals)]];
  if (lane.kind === 'processor') return lines;
  lines.push(['with node times', format.integer(lane.measured_evals)]);
  if (lane.span_nanos > 0) lines.push(['no kernel ran in these', format.percent(lane.gap_nanos / lane.span_nanos)]);
  if (lane.timed_evals < lane.evals) lines.push(['not timed at all', format.integer(lane.evals - lane.timed_evals)]);
  return lines;
}
