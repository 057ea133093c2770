/**
 * Typed fetchers for the server's API.
 *
 * Requests that may become outdated while the user pans carry a *slot*: at most
 * one request of a slot is under way and one waits. A newer one replaces the
 * waiting one (which rejects with an AbortError), and aborts the running one
 * when that has taken long. So panning neither floods the server nor starves.
 * Answers are kept in a small cache, which a new version of a live run empties.
 */
import type { LineChart, RooflineChart } from './generated/charts';
import type { Diagnosis } from './generated/diagnose';
import { filterParams, type Filter } from './state';
import type {
  Disk,
  EvalBrief,
  EvalInfo,
  Experts,
  Flame,
  HeatmapHeader,
  Info,
  Located,
  LanesHeader,
  MapHeader,
  MarksHeader,
  NodesHeader,
  OffsetsHeader,
  Summary,
  TokenInfo,
} from './generated/index';
import type { ModelFacts, ModelStructure, RunName, TimedSqlAnswer, Unchanged } from './generated/server';
import type { Preference } from './views/parts/results';

/** A raster response: `values` row by row. */
export interface Raster<H> {
  header: H;
  values: Float32Array;
}

type Params = Record<string, string | number | null | undefined>;

/** A message from the server: what, where, what next. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
    this.name = 'ApiError';
  }
}

export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === 'AbortError';
}

/** Running longer than this, a request that a newer one replaces is aborted. */
const PATIENCE_MS = 250;
const CACHE_ENTRIES = 48;
/** Rasters in the cache at most, in bytes: the finest map alone has 4 MB. */
const CACHE_BYTES = 48 << 20;

interface Slot {
  running: { started: number; abort: AbortController } | null;
  waiting: { start: () => void; drop: () => void } | null;
}

interface Cached {
  answer: Promise<unknown>;
  /** Of a raster's values; 0 while it is not there, and for the rest, which is small. */
  bytes: number;
}

export class Api {
  /** Run that the per-run fetchers ask; the shell sets it. */
  run = 0;
  /** Times of the last requests in milliseconds, for the status line and tests. */
  readonly latencies: number[] = [];
  private readonly cache = new Map<string, Cached>();
  private readonly slots = new Map<string, Slot>();
  /** What the server knows this page by, of which it answers one query at a time. */
  private readonly page = Array.from(crypto.getRandomValues(new Uint32Array(2)), (n) => n.toString(36)).join('');

  /** `base` is the address of the page: it ends with the secret token and a slash. */
  constructor(private readonly base: string) {}

  runs(): Promise<RunName[]> {
    return this.json('api/runs', {});
  }
  /** The model that is shown without a run; null where runs are shown. */
  model(): Promise<ModelFacts | null> {
    return this.json('api/model', {});
  }
  structure(): Promise<ModelStructure> {
    return this.json('api/model/structure', {});
  }
  /** The JSON of `estimate --json` for these options; one without a value is empty. */
  estimate<T = unknown>(options: Readonly<Record<string, string>>, slot = 'estimate'): Promise<T> {
    return this.json('api/model/estimate', options, slot);
  }
  /** Never cached. With `since`: only version and `live` when nothing is newer than that version. */
  info(run: number): Promise<Info>;
  info(run: number, since: number): Promise<Info | Unchanged>;
  info(run: number, since?: number): Promise<Info | Unchanged> {
    const path = address(`api/${run}/info`, { since });
    return this.fetchOnce(path, (response) => response.json() as Promise<Info | Unchanged>);
  }
  tokens(from: number, to: number, slot?: string): Promise<TokenInfo[]> {
    return this.json(this.of('tokens'), { from, to }, slot);
  }
  summary(filter: Filter, slot?: string): Promise<Summary> {
    return this.json(this.of('summary'), {}, slot, filter);
  }
  heatmap(
    query: { rows: 'layer' | 'tensor' | 'expert'; metric: string; from?: number; to?: number; columns?: number },
    filter: Filter,
    slot = 'heatmap',
  ): Promise<Raster<HeatmapHeader>> {
    return this.raster(this.of('heatmap'), query, slot, filter);
  }
  offsets(
    query: { t0: number; t1: number; o0: number; o1: number; w: number; h: number; even: number },
    filter: Filter,
    slot = 'offsets',
  ): Promise<Raster<OffsetsHeader>> {
    return this.raster(this.of('offsets'), query, slot, filter);
  }
  /** Major faults or disk reads over the offset plot. */
  marks(
    query: { of: MarksHeader['of']; t0: number; t1: number; o0: number; o1: number; w: number; h: number },
    filter: Filter,
  ): Promise<Raster<MarksHeader>> {
    return this.raster(this.of('marks'), query, `marks-${query.of}`, filter);
  }
  /** What was read from the disk, by layer and by tensor. */
  disk(filter: Filter, slot = 'disk'): Promise<Disk> {
    return this.json(this.of('disk'), {}, slot, filter);
  }
  /** `even`: evaluations of fewer columns are spread evenly over their time. */
  nodes(
    query: { t0: number; t1: number; w: number; even: number },
    filter: Filter,
    slot = 'nodes',
  ): Promise<Raster<NodesHeader>> {
    return this.raster(this.of('nodes'), query, slot, filter);
  }
  /** Processor, devices and copies over time. */
  lanes(query: { t0: number; t1: number; w: number }, filter: Filter, slot = 'lanes'): Promise<Raster<LanesHeader>> {
    return this.raster(this.of('lanes'), query, slot, filter);
  }
  map(query: { cells: number; metric: string; at?: number }, filter: Filter, slot = 'map'): Promise<Raster<MapHeader>> {
    return this.raster(this.of('map'), query, slot, filter);
  }
  locate(offset: number, slot = 'locate'): Promise<Located> {
    return this.json(this.of('locate'), { offset: Math.floor(offset) }, slot);
  }
  evaluation(number: number, slot?: string): Promise<EvalInfo> {
    return this.json(this.of('eval'), { eval: number }, slot);
  }
  evals(query: { from?: number; to?: number; max?: number }, slot?: string): Promise<EvalBrief[]> {
    return this.json(this.of('evals'), query, slot);
  }
  flame(by: 'bytes' | 'nanos', filter: Filter, slot = 'flame'): Promise<Flame> {
    return this.json(this.of('flame'), { by }, slot, filter);
  }
  experts(filter: Filter, slot = 'experts'): Promise<Experts> {
    return this.json(this.of('experts'), {}, slot, filter);
  }
  /** What tokens each expert prefers. */
  prefers(): Promise<Preference[]> {
    return this.json(this.of('prefers'), {});
  }
  /** One that the report has too: its numbers, names, units and colours; null where there is nothing to draw. */
  chart(
    of: 'kv-growth' | 'working-set' | 'miss-ratio' | 'disk-bytes' | 'predicted-speed' | 'expert-cache',
    choices: { scope?: string; measure?: string; grain?: string; pool?: string } = {},
  ): Promise<LineChart | null> {
    return this.json(this.of('chart'), { of, ...choices });
  }
  /** The next four are the JSON of `report --json`; they may take seconds the first time. */
  attention<T = unknown>(): Promise<T> {
    return this.json(this.of('attention'), {});
  }
  memory<T = unknown>(): Promise<T> {
    return this.json(this.of('memory'), {});
  }
  findings<T = unknown>(): Promise<T> {
    return this.json(this.of('findings'), {});
  }
  /** Where the time of a token goes, and what makes it slow; null where nobody asked. */
  why(): Promise<Diagnosis | null> {
    return this.json(this.of('why'), {});
  }
  /** What classes of nodes reached of what the hardware gives; null where that was not measured. */
  roofline(): Promise<RooflineChart | null> {
    return this.json(this.of('roofline'), {});
  }
  compare<T = unknown>(a: number, b: number): Promise<T> {
    return this.json('api/compare', { a, b });
  }
  /** One that is under way ends, with an error: a newer one takes its place. */
  sql(query: string): Promise<TimedSqlAnswer> {
    const path = address(this.of('sql'), { page: this.page });
    return this.fetchOnce(path, (response) => response.json() as Promise<TimedSqlAnswer>, {
      method: 'POST',
      // The header makes it a request that no other site's page can send.
      headers: { 'content-type': 'text/plain; charset=utf-8', 'x-tensorscope': '1' },
      body: query,
    });
  }
  /** Forgets all answers: the run has grown, or another one is shown. */
  forget(): void {
    this.cache.clear();
  }

  /** Any JSON endpoint, cached; `path` is below the page's address. */
  json<T>(path: string, params: Params, slot?: string, filter?: Filter): Promise<T> {
    return this.cached(address(path, params, filter), slot, (response) => response.json() as Promise<T>);
  }

  /** Any raster endpoint, cached. */
  raster<H>(path: string, params: Params, slot?: string, filter?: Filter): Promise<Raster<H>> {
    return this.cached(address(path, params, filter), slot, async (response) =>
      decodeRaster<H>(await response.arrayBuffer()),
    );
  }

  private of(endpoint: string): string {
    return `api/${this.run}/${endpoint}`;
  }

  private cached<T>(path: string, slot: string | undefined, decode: (r: Response) => Promise<T>): Promise<T> {
    const known = this.cache.get(path);
    if (known) {
      // Most recently used last.
      this.cache.delete(path);
      this.cache.set(path, known);
      if (slot) this.drop(slot);
      return known.answer as Promise<T>;
    }
    const answer = slot
      ? this.queued(slot, (signal) => this.fetchOnce(path, decode, { signal }))
      : this.fetchOnce(path, decode);
    const entry: Cached = { answer, bytes: 0 };
    this.cache.set(path, entry);
    answer.then(
      (value) => {
        const values = (value as { values?: unknown } | null)?.values;
        if (values instanceof Float32Array) entry.bytes = values.byteLength;
        this.trim();
      },
      () => {
        if (this.cache.get(path) === entry) this.cache.delete(path);
      },
    );
    this.trim();
    return answer;
  }

  /** Forgets the answers that were not used for longest. */
  private trim(): void {
    let bytes = 0;
    for (const entry of this.cache.values()) bytes += entry.bytes;
    for (const [path, entry] of this.cache) {
      if (this.cache.size <= CACHE_ENTRIES && bytes <= CACHE_BYTES) break;
      this.cache.delete(path);
      bytes -= entry.bytes;
    }
  }

  /** The waiting request of a slot is no longer wanted: the cache had the answer. */
  private drop(name: string): void {
    const slot = this.slots.get(name);
    slot?.waiting?.drop();
    if (slot) slot.waiting = null;
  }

  private queued<T>(name: string, request: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const slot = this.slots.get(name) ?? { running: null, waiting: null };
    this.slots.set(name, slot);
    return new Promise<T>((resolve, reject) => {
      const start = () => {
        const abort = new AbortController();
        const running = { started: performance.now(), abort };
        slot.running = running;
        request(abort.signal)
          .then(resolve, reject)
          .finally(() => {
            if (slot.running === running) slot.running = null;
            const next = slot.waiting;
            slot.waiting = null;
            next?.start();
          });
      };
      slot.waiting?.drop();
      slot.waiting = null;
      if (!slot.running) return start();
      slot.waiting = { start, drop: () => reject(new DOMException('outdated', 'AbortError')) };
      if (performance.now() - slot.running.started > PATIENCE_MS) slot.running.abort.abort();
    });
  }

  private async fetchOnce<T>(path: string, decode: (r: Response) => Promise<T>, init?: RequestInit): Promise<T> {
    const started = performance.now();
    let answer: T;
    try {
      const response = await fetch(this.base + path, { ...init, credentials: 'same-origin' });
      if (!response.ok) throw new ApiError(response.status, await errorText(response));
      answer = await decode(response);
    } catch (error) {
      // A connection may also break in the middle of an answer.
      if (error instanceof TypeError)
        throw new ApiError(0, 'the server does not answer: is `tensorscope view` still running?');
      throw error;
    }
    this.latencies.push(performance.now() - started);
    if (this.latencies.length > 200) this.latencies.shift();
    return answer;
  }
}

/** u32 length of the JSON header, the header, zeros to a multiple of 4, then f32 values. */
export function decodeRaster<H>(buffer: ArrayBuffer): Raster<H> {
  if (buffer.byteLength < 4) throw new ApiError(0, 'the raster from the server is cut off');
  const length = new DataView(buffer).getUint32(0, true);
  const begin = Math.ceil((4 + length) / 4) * 4;
  if (begin > buffer.byteLength) throw new ApiError(0, 'the raster from the server is cut off');
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length))) as H;
  const values = new Float32Array(buffer, begin, Math.floor((buffer.byteLength - begin) / 4));
  return { header, values };
}

function address(path: string, params: Params, filter?: Filter): string {
  const query = Object.entries(params)
    .filter(([, value]) => value !== null && value !== undefined)
    // The server takes whole numbers only.
    .map(([key, value]) => [key, String(typeof value === 'number' ? Math.floor(value) : value)])
    .concat(filter ? filterParams(filter) : []);
  const text = new URLSearchParams(query).toString();
  return text ? `${path}?${text}` : path;
}

async function errorText(response: Response): Promise<string> {
  try {
    const body = (await response.json()) as { error?: unknown };
    if (typeof body.error === 'string') return body.error;
  } catch {
    // Not JSON: the status says what there is to say.
  }
  return `the server answered ${response.status} ${response.statusText}`;
}
