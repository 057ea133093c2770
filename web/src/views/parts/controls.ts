/** The controls of an estimate: each is an option of `tensorscope estimate`, with its unit. */
import { fill, h, type Child } from '../../dom';
import * as format from '../../format';
import type { ModelFacts } from '../../generated/server';
import {
  CACHE_TYPES,
  contextSteps,
  hasGpu,
  nearestStep,
  USUAL,
  WEIGHT_TYPES,
  type Option,
  type Question,
} from './question';

/** Null: as usual. `isMoving` while a slider is dragged. */
export type Change = (changes: Partial<Record<Option, string | null>>, isMoving?: boolean) => void;

type Input = HTMLInputElement | HTMLSelectElement;

export class Controls {
  readonly element: HTMLElement;
  private readonly inputs = new Map<Option, Input>();
  private readonly slider: HTMLInputElement;
  private readonly sliderText = h('output', { class: 'est-output' });
  private readonly draftTokens: HTMLInputElement;
  private readonly draftShare: HTMLInputElement;
  private readonly gpuRow: HTMLElement;
  private steps: number[] = [];

  constructor(
    private readonly model: ModelFacts,
    private readonly change: Change,
  ) {
    this.slider = h('input', {
      type: 'range',
      min: 0,
      step: 1,
      'aria-label': 'context size, in doublings',
      oninput: () => change({ 'ctx-size': String(this.steps[Number(this.slider.value)]) }, true),
    });
    this.draftTokens = this.numberInput('tokens of a draft', 1, () => this.draftChanged(), 'none');
    this.draftShare = h('input', {
      type: 'text',
      inputmode: 'decimal',
      class: 'text-input',
      'aria-label': 'share of drafted tokens that is accepted, 0 to 1',
      placeholder: '0.8',
      onchange: () => this.draftChanged(),
    });
    this.gpuRow = this.number(
      'gpu-layers',
      'GPU layers',
      'layers',
      'Layers on the GPU; the others stay with the processor',
      'all',
    );
    this.element = h(
      'form',
      { class: 'est-controls', 'aria-label': 'question', onsubmit: (event: Event) => event.preventDefault() },
      group(
        'Context',
        h(
          'div',
          { class: 'est-wide' },
          this.number('ctx-size', 'context', 'tokens', 'Context size, all sequences together'),
          h('div', { class: 'est-slider' }, this.slider, this.sliderText),
        ),
        this.number('parallel', 'sequences', 'at once', 'Sequences that are generated side by side'),
        this.number(
          'prompt-tokens',
          'prompt',
          'tokens',
          'Tokens of the prompt, for the time to the first token',
          'half',
        ),
        this.number('ubatch-size', 'ubatch', 'tokens', 'Most tokens of one graph evaluation'),
        this.select('cache-type-k', 'K cache', 'Type of the K cache', CACHE_TYPES),
        this.select(
          'cache-type-v',
          'V cache',
          'Type of the V cache; other than f16 and f32 it needs flash attention',
          CACHE_TYPES,
        ),
        this.select('flash-attn', 'flash attention', 'Attention block by block', ['auto', 'on', 'off']),
      ),
      group(
        'Machine',
        h('div', { class: 'est-wide' }, this.machines()),
        this.text('memory', 'memory', '6G', 'Memory that there is: 6G, 512M', 'machine’s'),
        this.gpuRow,
      ),
      group(
        'What if',
        this.text('latency', 'latency', '50ms', 'Longest time between two tokens of a sequence: 50ms', 'any'),
        this.select('versus', 'other weights', 'The same model with weights of another type', ['', ...WEIGHT_TYPES]),
        this.number(
          'train',
          'train on',
          'GPUs',
          'Training on so many GPUs of the machine: the fastest layouts',
          'none',
        ),
        row('draft', 'tokens', this.draftTokens, 'Speculation: tokens of a draft'),
        row('accepted', 'share', this.draftShare, 'Share of drafted tokens that is accepted, 0 to 1'),
      ),
    );
  }

  /** Shows a question; a field that is being typed in keeps its text. */
  set(question: Question): void {
    for (const [option, input] of this.inputs) put(input, question[option] ?? shownUsual(option));
    const context = Number(question['ctx-size']);
    this.steps = contextSteps(this.model, Number(question.parallel ?? 1) || 1);
    this.slider.max = String(this.steps.length - 1);
    const at = nearestStep(this.steps, context || 1);
    this.slider.value = String(at);
    this.slider.setAttribute('aria-valuetext', `${format.integer(this.steps[at] ?? 0)} tokens`);
    const most = this.steps.at(-1) ?? 0;
    fill(this.sliderText, `of ${format.integer(most)}`);
    const [tokens = '', share = ''] = (question.draft ?? '').split(':');
    put(this.draftTokens, tokens);
    put(this.draftShare, share);
    this.gpuRow.hidden = !hasGpu(this.model, question.machine);
  }

  private draftChanged(): void {
    const tokens = this.draftTokens.value.trim();
    this.change({ draft: tokens === '' ? null : `${tokens}:${this.draftShare.value.trim() || '0.8'}` });
  }

  /** An empty field is as usual. */
  private changed(option: Option, value: string): void {
    const text = value.trim();
    this.change({ [option]: text === '' ? null : text });
  }

  private number(option: Option, label: string, unit: string, title: string, empty = ''): HTMLElement {
    const input = this.numberInput(
      title,
      option === 'gpu-layers' ? 0 : 1,
      () => this.changed(option, input.value),
      empty,
    );
    this.inputs.set(option, input);
    return row(label, unit, input, title);
  }

  /** Text, not a number: what is wrong with it the estimate says, in its own words. */
  private numberInput(title: string, least: number, changed: () => void, empty: string): HTMLInputElement {
    const input: HTMLInputElement = h('input', {
      type: 'text',
      inputmode: 'numeric',
      class: 'text-input',
      'aria-label': title,
      placeholder: empty,
      autocomplete: 'off',
      spellcheck: 'false',
      onchange: changed,
    });
    // As a number field has it, which would not hand out what is no number.
    input.addEventListener('keydown', (event) => {
      const step = event.key === 'ArrowUp' ? 1 : event.key === 'ArrowDown' ? -1 : 0;
      if (step === 0 || !/^\d*$/.test(input.value)) return;
      input.value = String(Math.max(least, Number(input.value || 0) + step));
      changed();
      event.preventDefault();
    });
    return input;
  }

  private text(option: Option, label: string, example: string, title: string, empty: string): HTMLElement {
    const input: HTMLInputElement = h('input', {
      type: 'text',
      class: 'text-input',
      'aria-label': title,
      placeholder: empty,
      autocomplete: 'off',
      spellcheck: 'false',
      onchange: () => this.changed(option, input.value),
    });
    this.inputs.set(option, input);
    return row(label, `as ${example}`, input, title);
  }

  private select(option: Option, label: string, title: string, values: readonly string[]): HTMLElement {
    const input: HTMLSelectElement = h(
      'select',
      { class: 'text-input', 'aria-label': title, onchange: () => this.changed(option, input.value) },
      ...values.map((value) => h('option', { value }, value === '' ? 'none' : value)),
    );
    this.inputs.set(option, input);
    return row(label, '', input, title);
  }

  private machines(): HTMLElement {
    const { machines } = this.model;
    const kinds = [...new Set(machines.map(({ kind }) => kind))];
    const input: HTMLSelectElement = h(
      'select',
      { class: 'text-input', 'aria-label': 'machine', onchange: () => this.changed('machine', input.value) },
      h('option', { value: 'this' }, 'this machine'),
      ...kinds.map((kind) =>
        h(
          'optgroup',
          { label: KINDS[kind] ?? kind },
          ...machines.filter((one) => one.kind === kind).map(({ name }) => h('option', { value: name }, name)),
        ),
      ),
    );
    this.inputs.set('machine', input);
    return row('machine', '', input, 'Whose memory and arithmetic it runs on');
  }
}

const KINDS: Record<string, string> = { gpu: 'GPUs', apple: 'Apple', cpu: 'processors' };

/** What an untouched control shows; fields without a usual value are empty. */
function shownUsual(option: Option): string {
  return USUAL[option] ?? '';
}

function put(input: Input, value: string): void {
  // A value that a link has and the list does not: the estimate says what is wrong with it.
  if (input instanceof HTMLSelectElement && ![...input.options].some((option) => option.value === value))
    input.append(h('option', { value }, value));
  if (document.activeElement === input && input instanceof HTMLInputElement && input.dataset['shown'] === value) return;
  input.dataset['shown'] = value;
  if (input.value !== value) input.value = value;
}

function group(title: string, ...children: Child[]): HTMLElement {
  return h('fieldset', { class: 'est-group' }, h('legend', {}, title), ...children);
}

function row(label: string, unit: string, input: Input, title: string): HTMLElement {
  return h(
    'label',
    { class: 'est-row', title },
    h('span', { class: 'est-label' }, label),
    input,
    h('span', { class: 'est-unit' }, unit),
  );
}
