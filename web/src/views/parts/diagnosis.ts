/** What the view *Why* says of a diagnosis, apart from how it looks: as `tensorscope diagnose` does. */
import type { Cell } from '../../csv';
import type { Diagnosis, Part, PhaseStack, Ranked } from '../../generated/diagnose';

/** Parts below this are not worth a line. */
const MIN_SHARE = 0.0005;

/** What is not explained always is. */
export function shownParts(phase: PhaseStack): Part[] {
  return phase.stack.filter((part) => part.share >= MIN_SHARE || part.name === 'unexplained');
}

/** Of a part: so many decimals that parts can be seen to add up. */
export function partPercent(share: number): string {
  return `${(share * 100).toFixed(1)} %`;
}

/** A part and what each phase has of it, in the order of the phases. */
export interface PartRow {
  name: string;
  title: string;
  of: (Part | null)[];
}

/** Every part that a phase shows, in the order in which the longest stack has them. */
export function partRows(phases: readonly PhaseStack[]): PartRow[] {
  const shown = new Set(phases.flatMap((phase) => shownParts(phase).map((part) => part.name)));
  const rows = new Map<string, PartRow>();
  const longestFirst = [...phases.entries()].sort(([, a], [, b]) => b.stack.length - a.stack.length);
  for (const [at, phase] of longestFirst) {
    for (const part of phase.stack) {
      if (!shown.has(part.name)) continue;
      const row = rows.get(part.name) ?? { name: part.name, title: part.title, of: phases.map(() => null) };
      row.of[at] = part;
      rows.set(part.name, row);
    }
  }
  return [...rows.values()];
}

/** Kinds of system calls that are worth a word; empty where nobody watched. */
export function systemCallsText(phase: PhaseStack): string {
  const kinds = (phase.system_calls ?? []).filter((kind) => kind.share >= MIN_SHARE);
  const texts = kinds.map((kind) => `${kind.category} ${partPercent(kind.share)} (${kind.calls.join(', ')})`);
  return texts.length > 0 ? `in system calls, of the threads' time: ${texts.join('; ')}` : '';
}

/** More speed, in per cent, with its interval; null where a rule does not say. */
export function gainText(cause: Ranked): string | null {
  const { gain_percent: gain, gain_percent_low: low, gain_percent_high: high } = cause;
  if (gain === null || low === null || high === null) return null;
  const signed = (value: number) => `${value < 0 ? '-' : '+'}${Math.abs(value).toFixed(0)}`;
  return `${signed(gain)} % speed expected (${signed(low)} to ${signed(high)} %)`;
}

/** Whether the table can be asked; else it is a place in a file. */
export function isQuery(source: string): boolean {
  return /^(SELECT|WITH) /.test(source);
}

/** Numbers of a cause by the query or the place that shows them, in their order. */
export function bySource(cause: Ranked): { source: string | null; numbers: { name: string; text: string }[] }[] {
  const groups = new Map<string | null, { name: string; text: string }[]>();
  for (const { name, text, source } of cause.evidence) {
    const numbers = groups.get(source) ?? [];
    numbers.push({ name, text });
    groups.set(source, numbers);
  }
  return [...groups].map(([source, numbers]) => ({ source, numbers }));
}

/** Of one phase, or as it is; what other tools' files say belongs to none and stays. */
export function ofPhase(diagnosis: Diagnosis, phase: string | null): Diagnosis {
  if (phase === null) return diagnosis;
  const isOther = (name: string) => name !== phase && diagnosis.phases.some((one) => one.name === name);
  return {
    ...diagnosis,
    phases: diagnosis.phases.filter((one) => one.name === phase),
    causes: diagnosis.causes.filter((one) => !isOther(one.phase)),
    healthy: diagnosis.healthy.filter((one) => !isOther(one.phase)),
    not_evaluated: diagnosis.not_evaluated.filter((one) => !isOther(one.subject)),
  };
}

export const CSV_COLUMNS = [
  'row',
  'phase',
  'name',
  'title',
  'share',
  'nanos_per_token',
  'gain_percent',
  'gain_percent_low',
  'gain_percent_high',
  'action',
];

export function csvRows(diagnosis: Diagnosis): Cell[][] {
  const rows: Cell[][] = [];
  for (const phase of diagnosis.phases)
    for (const part of phase.stack)
      rows.push(['part', phase.name, part.name, part.title, part.share, part.nanos, null, null, null, null]);
  const cause = (row: string, one: Ranked): Cell[] => [
    row,
    one.phase,
    one.id,
    one.title,
    one.share,
    null,
    one.gain_percent,
    one.gain_percent_low,
    one.gain_percent_high,
    one.action,
  ];
  for (const one of diagnosis.causes) rows.push(cause('cause', one));
  for (const one of diagnosis.healthy) rows.push(cause('healthy', one));
  return rows;
}
