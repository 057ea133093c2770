/**
 * The state of the page, and how it stands in the address bar.
 *
 * Everything that changes what is shown lives here, so that a link reproduces
 * a view. Keys with a dot are options of one view (`map.metric=bytes`).
 */

/** An empty list or null does not filter. */
export interface Filter {
  phase: string | null;
  /** Token numbers of the run, inclusive. */
  tokens: [number, number] | null;
  /** null: steps that belong to no layer. */
  layer: (number | null)[];
  component: string[];
  op: string[];
  expert: number[];
  /** That computed; `CPU` is the processor. */
  device: string[];
}

export interface State {
  run: number;
  view: string;
  filter: Filter;
  /** Nanoseconds since the run's first evaluation; null: the whole run. */
  time: [number, number] | null;
  /** Bytes in the map space; null: the whole model. */
  offset: [number, number] | null;
  /** Evaluation and step that are selected or played. */
  eval: number | null;
  step: number | null;
  /** Options of views, by `view.name`. */
  opt: Readonly<Record<string, string>>;
}

export const NO_FILTER: Filter = {
  phase: null,
  tokens: null,
  layer: [],
  component: [],
  op: [],
  expert: [],
  device: [],
};

export function isFiltered(filter: Filter): boolean {
  return filterParams(filter).length > 0;
}

/** The filter as query parameters, in a fixed order: also serves as a cache key. */
export function filterParams(filter: Filter): [string, string][] {
  const params: [string, string][] = [];
  if (filter.phase) params.push(['phase', filter.phase]);
  if (filter.tokens) params.push(['tokens', filter.tokens.join('-')]);
  if (filter.layer.length) params.push(['layer', filter.layer.map((l) => l ?? 'none').join(',')]);
  if (filter.component.length) params.push(['component', filter.component.join(',')]);
  if (filter.op.length) params.push(['op', filter.op.join(',')]);
  if (filter.expert.length) params.push(['expert', filter.expert.join(',')]);
  if (filter.device.length) params.push(['device', filter.device.join(',')]);
  return params;
}

export function toHash(state: State): string {
  const params: [string, string][] = [['run', String(state.run)], ['view', state.view], ...filterParams(state.filter)];
  if (state.time) params.push(['t', state.time.map(Math.round).join('-')]);
  if (state.offset) params.push(['o', state.offset.map(Math.round).join('-')]);
  if (state.eval !== null) params.push(['eval', String(state.eval)]);
  if (state.step !== null) params.push(['step', String(state.step)]);
  for (const key of Object.keys(state.opt).sort()) params.push([key, state.opt[key] as string]);
  // Commas, dashes and dots are legal in a fragment: keep links readable.
  return '#' + params.map(([k, v]) => `${k}=${encodeURIComponent(v).replaceAll('%2C', ',')}`).join('&');
}

/** Reads a link; whatever it does not understand it leaves at the default. */
export function fromHash(hash: string, defaultView: string): State {
  const params = new URLSearchParams(hash.replace(/^#/, ''));
  const opt: Record<string, string> = {};
  for (const [key, value] of params) if (key.includes('.')) opt[key] = value;
  const list = (key: string) => (params.get(key) ?? '').split(',').filter((part) => part !== '');
  const integers = (key: string) =>
    list(key)
      .filter((part) => /^\d+$/.test(part))
      .map(Number);
  return {
    run: integer(params.get('run')) ?? 0,
    view: params.get('view') || defaultView,
    filter: {
      phase: params.get('phase') || null,
      tokens: range(params.get('tokens')),
      layer: list('layer')
        .filter((part) => part === 'none' || /^\d+$/.test(part))
        .map((part) => (part === 'none' ? null : Number(part))),
      component: list('component'),
      op: list('op'),
      expert: integers('expert'),
      device: list('device'),
    },
    time: range(params.get('t')),
    offset: range(params.get('o')),
    eval: integer(params.get('eval')),
    step: integer(params.get('step')),
    opt,
  };
}

/** `3-20`, or `7` for one token; null when it is neither. */
export function range(text: string | null): [number, number] | null {
  const match = /^\s*(\d+)\s*(?:-|–|\.\.)\s*(\d+)\s*$/.exec(text ?? '') ?? /^\s*(\d+)()\s*$/.exec(text ?? '');
  if (!match) return null;
  const first = Number(match[1]);
  const last = match[2] ? Number(match[2]) : first;
  return first <= last ? [first, last] : [last, first];
}

function integer(text: string | null): number | null {
  return text !== null && /^\d+$/.test(text) ? Number(text) : null;
}
