/**
 * Estimate: what a model will take and give on a machine, before anything runs.
 *
 * The numbers are those of `tensorscope estimate`, asked anew at every change; the command that
 * prints them stands above. An answer that comes when another question has been asked is dropped.
 */
import { isAbort } from '../api';
import { csv, type Cell } from '../csv';
import { fill, h, note, panel } from '../dom';
import * as format from '../format';
import type { State } from '../state';
import type { App, View } from '../view';
import type { Estimate as Answer } from './parts/answer';
import { Controls } from './parts/controls';
import * as curves from './parts/curves';
import {
  diskSentence,
  draftPanel,
  interval,
  machineText,
  memoryPanel,
  passPanel,
  versusPanel,
} from './parts/estimate-panels';
import { attentionPanel, kvTypesPanel, shapesPanel, trainPanel } from './parts/estimate-more';
import { Lines, type Mark } from './parts/lines';
import { Panels } from './parts/panels';
import { changed, commandLine, contextSteps, questionOf, type Option, type Question } from './parts/question';
import type { ModelFacts } from '../generated/server';

class EstimateView implements View {
  readonly id = 'estimate';
  readonly title = 'Estimate';
  readonly key = '1';
  readonly help: [string, string][] = [
    ['Tab', 'from control to control'],
    ['↑ ↓', 'in a field with a number: one more, one less'],
    ['← →', 'on the slider: half, twice the context'],
    ['y', 'copy the command'],
  ];
  private app!: App;
  private model!: ModelFacts;
  private panels!: Panels;
  private controls!: Controls;
  private readonly command = h('code', { class: 'est-command' });
  private readonly error = h('div', { class: 'est-error' });
  private readonly machine = h('p', { class: 'view-definition' });
  private readonly memory = h('div');
  private readonly prompt = h('div');
  private readonly token = h('div');
  private readonly speedNote = h('div');
  private readonly batchText = h('p', { class: 'view-definition' });
  private readonly kvText = h('p', { class: 'view-definition' });
  private readonly draft = h('div');
  private readonly versus = h('div');
  private readonly kvTypes = h('div');
  private readonly attention = h('div');
  private readonly shapes = h('div');
  private readonly train = h('div');
  private throughput!: Lines;
  private latency!: Lines;
  private kv!: Lines;
  private versusLines!: Lines;
  private content!: HTMLElement;
  private draftBox!: HTMLElement;
  private versusBox!: HTMLElement;
  private trainBox!: HTMLElement;
  private attentionBox!: HTMLElement;
  private answer: Answer | null = null;
  /** What was asked last, and what is drawn. */
  private asked = '';
  private drawn = '';

  mount(root: HTMLElement, app: App): void {
    this.app = app;
    this.model = app.model as ModelFacts;
    this.asked = this.drawn = '';
    this.controls = new Controls(this.model, (changes, isMoving) => this.change(changes, isMoving));
    const results = h('div', { class: 'est-results' });
    root.append(h('div', { class: 'est' }, this.controls.element, results));
    const bar = h(
      'div',
      { class: 'est-bar' },
      this.command,
      h(
        'button',
        { type: 'button', class: 'quiet', title: 'copy the command (y)', onclick: () => this.copyCommand() },
        'copy',
      ),
    );
    this.panels = new Panels(results, app, bar, this.error);
    const lines = (isDoubling: boolean, wordsAt: 'top' | 'bottom'): Lines =>
      this.panels.keep(new Lines({ height: 220, isDoubling, wordsAt }));
    this.throughput = lines(true, 'bottom');
    this.latency = lines(true, 'top');
    this.kv = lines(false, 'top');
    this.versusLines = lines(true, 'top');
    this.draftBox = panel('Speculation', '', this.draft);
    this.versusBox = panel('Another weight type', '', this.versus, this.versusLines.element);
    this.trainBox = panel('Training', 'The fastest layouts over that many GPUs of the machine.', this.train);
    this.attentionBox = panel("Attention's bytes", '', this.attention);
    this.content = h(
      'div',
      { class: 'view-panels-inner' },
      panel('Memory', '', this.memory),
      h(
        'div',
        { class: 'view-pair' },
        panel('First token', 'The prompt of one sequence, read at once.', this.prompt),
        panel('Every further token', 'One for each sequence, with its context full.', this.token),
      ),
      h('div', { class: 'est-below' }, this.machine, this.speedNote),
      this.draftBox,
      this.versusBox,
      h(
        'div',
        { class: 'view-pair' },
        panel('Tokens a second, by batch', '', this.batchText, this.throughput.element),
        panel(
          'Time between tokens, by batch',
          'Of each sequence, with the context that one has now.',
          this.latency.element,
        ),
      ),
      panel('KV memory, by context', '', this.kvText, this.kv.element),
      h(
        'div',
        { class: 'view-pair' },
        panel('KV memory, by type', 'Of one sequence, with the context that one has now.', this.kvTypes),
        this.attentionBox,
      ),
      panel('Dimensions', 'Those that leave units of the machine empty.', this.shapes),
      this.trainBox,
    );
    this.content.hidden = true;
    this.panels.element.append(this.content);
  }

  unmount(): void {
    this.panels.destroy();
  }

  async update(state: State): Promise<void> {
    const { app, model } = this;
    const question = questionOf(state.opt, model);
    this.controls.set(question);
    this.command.textContent = commandLine(model.path, question);
    const asked = JSON.stringify(question);
    this.asked = asked;
    try {
      const answer = await app.api.estimate<Answer>({ ...question, attention: '', shapes: '' });
      const window = await this.window(answer, question);
      if (asked !== this.asked) return;
      this.show(answer, question, window);
    } catch (error) {
      if (isAbort(error) || asked !== this.asked) return;
      // The controls stay: a wrong value is put right there.
      this.content.classList.add('is-stale');
      this.drawn = '';
      fill(this.error, note(error instanceof Error ? error.message : String(error), 'error'));
    }
  }

  onKey(event: KeyboardEvent): boolean {
    if (event.key !== 'y') return false;
    this.copyCommand();
    return true;
  }

  exportCanvas(): HTMLCanvasElement {
    return this.panels.picture();
  }

  exportCsv(): string {
    const rows = (this.answer?.batch.points ?? []).map((point): Cell[] => [
      point.batch,
      point.seconds.best,
      point.seconds.likely,
      point.seconds.worst,
      point.tokens_per_second,
      point.memory_bytes,
      String(point.fits),
      point.bound,
    ]);
    const head = [
      'batch',
      'best_seconds',
      'likely_seconds',
      'worst_seconds',
      'tokens_per_second',
      'memory_bytes',
      'fits',
      'bound',
    ];
    return csv(head, rows);
  }

  private change(changes: Partial<Record<Option, string | null>>, isMoving = false): void {
    this.app.setState({ opt: changed(this.app.state.opt, changes) }, { replace: isMoving });
  }

  private copyCommand(): void {
    void this.copy(this.command.textContent ?? '');
  }

  private async copy(text: string): Promise<void> {
    try {
      await navigator.clipboard.writeText(text);
      this.app.status(`copied: ${text}`);
    } catch {
      this.app.status('the browser forbids copying: mark the text instead');
    }
  }

  private sequences(question: Question): number {
    return Math.max(1, Number(question.parallel ?? 1) || 1);
  }

  private mostContext(question: Question): number {
    return Math.max(contextSteps(this.model, this.sequences(question)).at(-1) ?? 0, Number(question['ctx-size']) || 0);
  }

  /** Where the narrower layers end; a second answer is needed where the context does not reach that far. */
  private async window(answer: Answer, question: Question): Promise<number | null> {
    if (answer.kv.window_layers === 0) return null;
    const known = curves.windowTokens(answer.kv);
    if (known !== null) return known;
    const longest = { ...question, parallel: '1', 'ctx-size': String(contextSteps(this.model, 1).at(-1)) };
    const { kv } = await this.app.api.estimate<Answer>(longest, 'estimate-window');
    return curves.windowTokens(kv);
  }

  private show(answer: Answer, question: Question, window: number | null): void {
    const { app } = this;
    this.answer = answer;
    const drawn = `${app.colours.theme} ${JSON.stringify(question)}`;
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    fill(this.error);
    this.content.hidden = false;
    this.content.classList.remove('is-stale');
    this.machine.textContent = machineText(answer.machine);
    fill(
      this.memory,
      ...memoryPanel(answer.memory, app, {
        apply: (options) => this.change(options),
        copy: (text) => void this.copy(text),
      }),
    );
    fill(this.prompt, ...passPanel(answer.prompt, 'to the first token', app));
    fill(this.token, ...passPanel(answer.token, 'a token', app));
    const slower = diskSentence(answer);
    fill(this.speedNote, slower !== null && note(slower, 'aside'));
    this.showBatches(answer, question);
    this.showKv(answer, question, window);
    this.draftBox.hidden = !answer.draft;
    if (answer.draft) fill(this.draft, ...draftPanel(answer.draft));
    this.versusBox.hidden = !answer.versus;
    if (answer.versus) {
      fill(this.versus, ...versusPanel(answer.versus));
      this.versusLines.show(curves.versusCurve(answer.versus), app.colours);
    }
    fill(this.kvTypes, ...kvTypesPanel(answer.kv_types));
    fill(this.shapes, ...shapesPanel(answer.shapes ?? []));
    this.attentionBox.hidden = !answer.attention;
    if (answer.attention) fill(this.attention, ...attentionPanel(answer.attention));
    this.trainBox.hidden = !answer.train;
    if (answer.train) fill(this.train, ...trainPanel(answer.train));
    const { seconds } = answer.token;
    app.status(`a token: ${format.nanos(seconds.likely * 1e9)} (${interval(seconds)})`);
  }

  private showBatches({ batch }: Answer, question: Question): void {
    const { colours } = this.app;
    const sequences = this.sequences(question);
    const most = batch.points.at(-1)?.batch ?? 0;
    const marks: Mark[] = [{ x: sequences, text: 'asked', colour: colours.accent }];
    if (batch.knee_batch !== null) marks.push({ x: batch.knee_batch, text: 'knee', colour: colours.muted });
    const fits = batch.max_batch_that_fits;
    if (fits !== null && fits > 0 && fits < most) marks.push({ x: fits, text: 'memory ends', colour: colours.fault });
    if (batch.best && question.latency !== undefined)
      marks.push({ x: batch.best.batch, text: `best within ${question.latency}`, colour: colours.component('router') });
    this.batchText.textContent = curves.batchSentences(batch, question.latency).join(' ');
    this.throughput.show(curves.throughput(batch), colours, { band: [0, 1], marks });
    this.latency.show(curves.latency(batch), colours, { band: [0, 1], marks });
  }

  private showKv(answer: Answer, question: Question, window: number | null): void {
    const { colours } = this.app;
    const [sequences, most] = [this.sequences(question), this.mostContext(question)];
    const longest = curves.mostContext(answer, sequences, most, window);
    const fits =
      longest === null
        ? 'Beside weights and buffers there is no room.'
        : longest >= most
          ? `Beside weights and buffers there is room for ${format.integer(most)} tokens.`
          : `Beside weights and buffers there is room for about ${format.integer(longest)} tokens.`;
    const trained = this.model.max_context;
    const beyond =
      trained !== null && answer.kv.context_tokens > trained
        ? ` A sequence has ${format.integer(answer.kv.context_tokens)}, more than the ${format.integer(trained)} that the model was trained for.`
        : '';
    this.kvText.textContent = `${format.bytes(answer.kv.bytes_per_token)} a token of one sequence. ${fits}${beyond}`;
    const marks: Mark[] = [{ x: Number(question['ctx-size']), text: 'asked', colour: colours.accent }];
    if (longest !== null && longest < most) marks.push({ x: longest, text: 'memory ends', colour: colours.fault });
    this.kv.show(curves.kvCurve(answer, sequences, most, window), colours, { marks });
  }
}

export function estimate(): View {
  return new EstimateView();
}
