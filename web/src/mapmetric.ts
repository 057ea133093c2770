/** What the map is coloured by, and how its values are written. */
import * as format from './format';
import type { Info, MapHeader } from './generated/index';

export type Metric = 'component' | 'accesses' | 'bytes' | 'recency' | 'residency' | 'faults' | 'disk';

export const METRICS: { value: Metric; text: string; title: string }[] = [
  { value: 'component', text: 'component', title: 'what the bytes are for; paler where they were read less often' },
  { value: 'accesses', text: 'accesses', title: 'how often each byte was read' },
  { value: 'bytes', text: 'bytes', title: 'bytes read' },
  { value: 'recency', text: 'recency', title: 'time since the last read' },
  {
    value: 'residency',
    text: 'residency',
    title: 'share of the pages in memory: now, or as `record --residency` saw them',
  },
  { value: 'faults', text: 'faults', title: 'major page faults; needs `record --faults`' },
  { value: 'disk', text: 'disk reads', title: 'bytes read from the disk; needs `record --io`' },
];
/** What an empty map says. */
export const NOTHING: Partial<Record<Metric, string>> = {
  residency: 'no page of the model is in memory',
  faults: 'no major page fault passes this filter',
  disk: 'no disk read passes this filter',
};
const TITLES: Record<Metric, string> = {
  component: 'mean reads of a byte',
  accesses: 'mean reads of a byte',
  bytes: 'bytes read per cell',
  recency: 'since the last read',
  residency: 'pages in memory now',
  faults: 'major page faults per cell',
  disk: 'bytes read from the disk per cell',
};

/** Which bytes of a mixture were read is worth a look; of a dense model all were, as often. */
export function usualMetric(info: Pick<Info, 'experts'>): Metric {
  return info.experts > 0 ? 'accesses' : 'component';
}

/** The metric of an answer in words. */
export function metricName({ metric, sampled }: MapHeader): string {
  return sampled ? `pages in memory at token ${format.integer(sampled.token)}` : TITLES[metric as Metric];
}

/** A value as people read it. */
export function shownValue(metric: string | undefined, v: number): string {
  switch (metric) {
    case 'accesses':
      return `${format.count(Math.round(v * 100) / 100).replace(' ', '')}×`;
    case 'bytes':
    case 'disk':
      return format.bytes(v);
    case 'recency':
      return Number.isNaN(v) ? 'never' : format.nanos(v);
    case 'residency':
      return Number.isNaN(v) ? 'not sampled yet' : format.percent(v);
    default:
      return format.count(v);
  }
}
