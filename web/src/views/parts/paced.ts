/**
 * Answers of the analyses, which take seconds. A live run grows every second:
 * while it does, they are asked for again at most every ten, one at a time.
 */
import type { Api } from '../../api';
import type { LineChart } from '../../generated/charts';
import type { App } from '../../view';

const PACE_MS = 10_000;

interface Known {
  answer: Promise<unknown>;
  version: number;
  asked: number;
  isDone: boolean;
}

const known = new Map<string, Known>();

export function paced<T>(app: App, name: string, ask: () => Promise<T>): Promise<T> {
  const key = `${app.api.run} ${name}`;
  const last = known.get(key);
  if (last && (last.version === app.info.version || isTooSoon(app, last))) return last.answer as Promise<T>;
  const answer = ask();
  const entry: Known = { answer, version: app.info.version, asked: performance.now(), isDone: false };
  known.set(key, entry);
  answer.then(
    () => (entry.isDone = true),
    // What failed is asked for again.
    () => known.delete(key),
  );
  return answer;
}

/** A chart that the report has too. */
export function pacedChart(app: App, ...asked: Parameters<Api['chart']>): Promise<LineChart | null> {
  return paced(app, `chart ${JSON.stringify(asked)}`, () => app.api.chart(...asked));
}

function isTooSoon(app: App, last: Known): boolean {
  return app.info.live && (!last.isDone || performance.now() - last.asked < PACE_MS);
}
