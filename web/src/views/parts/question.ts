/**
 * What an estimate is asked for, as options of `tensorscope estimate`: from the address, as a
 * request, and as the command that says the same. Options stand in the address as
 * `estimate.ctx-size=8192`.
 */
import type { ModelFacts } from '../../generated/server';

/** Options that the server passes on: those that describe a question. */
const OPTIONS = [
  'ctx-size',
  'parallel',
  'prompt-tokens',
  'ubatch-size',
  'cache-type-k',
  'cache-type-v',
  'flash-attn',
  'gpu-layers',
  'gpus',
  'threads',
  'memory',
  'machine',
  'latency',
  'versus',
  'draft',
  'attention',
  'shapes',
  'train',
  'global-batch',
  'page-tokens',
  'shared-prefix',
  'disk',
] as const;

export type Option = (typeof OPTIONS)[number];
/** By option; empty for one that takes no value. */
export type Question = Readonly<Partial<Record<Option, string>>>;

/** What `tensorscope estimate` takes where an option is not given. */
export const USUAL: Question = {
  parallel: '1',
  'ubatch-size': '512',
  'cache-type-k': 'f16',
  'cache-type-v': 'f16',
  'flash-attn': 'auto',
  machine: 'this',
};
const USUAL_CONTEXT = 4096;
const LEAST_CONTEXT = 512;
/** Where the model does not say what it was trained for. */
const UNKNOWN_CONTEXT = 131_072;

export const CACHE_TYPES = ['f32', 'f16', 'bf16', 'q8_0', 'q5_1', 'q5_0', 'q4_1', 'q4_0', 'iq4_nl'];
export const WEIGHT_TYPES = [
  'f32',
  'f16',
  'bf16',
  'fp8',
  'q8_0',
  'q6_K',
  'q5_K',
  'q4_K',
  'q4_0',
  'iq4_xs',
  'q3_K',
  'q2_K',
];

export function addressKey(option: Option): string {
  return `estimate.${option}`;
}

/** The question of an address; what it has beside options of an estimate is left alone. */
export function questionOf(opt: Readonly<Record<string, string>>, model: ModelFacts): Question {
  const question: Partial<Record<Option, string>> = { 'ctx-size': String(usualContext(model)) };
  for (const option of OPTIONS) {
    const value = opt[addressKey(option)];
    if (value !== undefined) question[option] = value;
  }
  // Its control is not to be seen either.
  if (!hasGpu(model, question.machine)) delete question['gpu-layers'];
  return question;
}

/** How the address changes when an option does; null leaves it at what is usual. */
export function changed(
  opt: Readonly<Record<string, string>>,
  changes: Readonly<Partial<Record<Option, string | null>>>,
): Record<string, string> {
  const next = { ...opt };
  for (const [option, value] of Object.entries(changes) as [Option, string | null][]) {
    if (value === null || value === USUAL[option]) delete next[addressKey(option)];
    else next[addressKey(option)] = value;
  }
  return next;
}

export function hasGpu(model: ModelFacts, machine: string | undefined): boolean {
  return model.machines.some(({ name, kind }) => name === machine && kind === 'gpu');
}

export function usualContext(model: ModelFacts): number {
  return Math.min(USUAL_CONTEXT, model.max_context ?? USUAL_CONTEXT);
}

/** Steps of the slider: doublings, and at the end all that the model was trained for, for every sequence. */
export function contextSteps(model: ModelFacts, sequences: number): number[] {
  const most = (model.max_context ?? UNKNOWN_CONTEXT) * Math.max(1, sequences);
  const steps: number[] = [];
  for (let step = LEAST_CONTEXT; step < most; step *= 2) steps.push(step);
  return [...steps, most];
}

/** The step that is nearest, in doublings. */
export function nearestStep(steps: readonly number[], context: number): number {
  const away = (step: number) => Math.abs(Math.log2(step / Math.max(1, context)));
  return steps.reduce((best, step, at) => (away(step) < away(steps[best] as number) ? at : best), 0);
}

/** The command that prints the same numbers. */
export function commandLine(path: string, question: Question): string {
  const words = ['tensorscope', 'estimate', quoted(path.startsWith('-') ? `./${path}` : path)];
  for (const option of OPTIONS) {
    const value = question[option];
    if (value === undefined || value === USUAL[option]) continue;
    words.push(option === 'ctx-size' ? '-c' : `--${option}`);
    if (value !== '') words.push(quoted(value));
  }
  return words.join(' ');
}

function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** What trying a way to make it fit changes: flags are set, other weights put beside these; null where nothing can be tried here. */
export function triedBy(change: string): Partial<Record<Option, string>> | null {
  const [, type] = /^weights in (\S+)/.exec(change) ?? [];
  if (type !== undefined) return { versus: type };
  return change.startsWith('--') ? optionsOf(change) : null;
}

/** `--ubatch-size 64 --flash-attn on` as options; what is none is left out. */
function optionsOf(flags: string): Partial<Record<Option, string>> {
  const options: Partial<Record<Option, string>> = {};
  let last: Option | null = null;
  for (const word of flags.split(/\s+/)) {
    const name = word.startsWith('--') ? word.slice(2) : null;
    if (name === null && last !== null) options[last] = word;
    last = name === null ? null : (OPTIONS.find((option) => option === name) ?? null);
    if (last !== null) options[last] = '';
  }
  return options;
}
