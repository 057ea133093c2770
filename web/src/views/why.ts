/**
 * Why: where the time of a token goes, in parts that add up, and what makes it
 * slower than it has to be: causes, what to do about each, what that gives, and
 * what would show that it is wrong.
 */
import { fill, h, panel, withCode, type Child } from '../dom';
import * as format from '../format';
import type { Diagnosis, Ranked } from '../generated/diagnose';
import type { State } from '../state';
import type { App, View } from '../view';
import { bars, type Bar } from './parts/bars';
import { csv } from '../csv';
import {
  bySource,
  CSV_COLUMNS,
  csvRows,
  gainText,
  isQuery,
  ofPhase,
  partPercent,
  partRows,
  systemCallsText,
  type PartRow,
} from './parts/diagnosis';
import { paced } from './parts/paced';
import { Panels, Slot } from './parts/panels';
import { ROOFLINE_COLUMNS, rooflineRows } from './parts/roofline';
import { RooflinePlot } from './parts/roofline-plot';

/** What stands behind which cards; `all`, or the rules' names. */
const OPEN = 'why.open';
const NO_ROOFLINE =
  'What memory and arithmetic give was not measured: `tensorscope diagnose RUN` on the machine of the run does, or open the page with `--ceilings FILE`.';
const NO_CAUSE = 'No cause found: nothing that a rule knows makes this slower than it has to be.';

class Why implements View {
  readonly id = 'why';
  readonly title = 'Why';
  readonly key = 'w';
  readonly help: [string, string][] = [
    ['e', 'show or hide the evidence of all causes'],
    ['Enter on “show in Table”', 'run the query behind a number'],
  ];
  private app!: App;
  private panels!: Panels;
  private slot!: Slot;
  private readonly content = h('div', { class: 'view-panels-inner' });
  private roofline!: RooflinePlot;
  private rooflineSlot!: Slot;
  private answer: Diagnosis | null = null;
  /** What is drawn now: drawing it again would take the focus away. */
  private drawn: { answer: Diagnosis | null; look: string } = { answer: null, look: '' };
  /** By the name of its rule and phase: the button that opens the evidence, and the evidence. */
  private folds = new Map<string, { button: HTMLElement; body: HTMLElement }>();

  mount(root: HTMLElement, app: App): void {
    this.app = app;
    this.answer = null;
    this.drawn = { answer: null, look: '' };
    this.panels = new Panels(root, app);
    this.slot = new Slot(this.content, 'analysing the run…');
    this.roofline = this.panels.keep(new RooflinePlot(app));
    this.rooflineSlot = new Slot(this.roofline.element, '');
    this.panels.element.append(this.slot.element, panel('Roofline', '', this.rooflineSlot.element));
  }

  unmount(): void {
    this.panels.destroy();
  }

  async update(state: State): Promise<void> {
    const answer = paced(this.app, 'why', () => this.app.api.why());
    await this.slot.fill(answer, (found) => {
      this.answer = found && ofPhase(found, state.filter.phase);
      if (!this.answer) return 'There is no diagnosis of this run.';
      const look = `${this.app.colours.theme} ${state.filter.phase}`;
      if (this.drawn.answer !== found || this.drawn.look !== look) this.draw(this.answer);
      this.drawn = { answer: found, look };
      this.showFolds();
      return null;
    });
    const roofline = paced(this.app, 'roofline', () => this.app.api.roofline());
    await this.rooflineSlot.fill(roofline, (chart) => {
      if (!chart) return NO_ROOFLINE;
      this.roofline.show(chart, state.filter.phase);
      return null;
    });
  }

  onKey(event: KeyboardEvent): boolean {
    if (event.key !== 'e' || event.ctrlKey || event.metaKey || event.altKey || this.folds.size === 0) return false;
    this.app.setOpt(OPEN, this.open().size === this.folds.size ? null : 'all');
    return true;
  }

  exportCsv(): string {
    const rows = this.answer ? csvRows(this.answer) : [];
    const classes = rooflineRows(this.roofline.shown, CSV_COLUMNS);
    return csv([...CSV_COLUMNS, ...ROOFLINE_COLUMNS], [...rows, ...classes]);
  }

  exportCanvas(): HTMLCanvasElement {
    return this.panels.picture();
  }

  private draw(answer: Diagnosis): void {
    this.folds.clear();
    const causes = answer.causes.map((cause, at) => this.card(cause, at + 1));
    fill(
      this.content,
      answer.phases.length > 0 &&
        panel(
          'Where the time of a token goes',
          'Of one token on average, from the beginning of an evaluation to that of the next; of the filter bar only the phase counts here.',
          this.stacks(answer),
          partTable(answer, this.app),
          ...answer.phases.map((phase) => verdict(phase.name, systemCallsText(phase))),
          ...answer.phases.map((phase) => verdict(phase.name, phase.verdict)),
        ),
      panel(
        'Causes',
        answer.causes.length > 0
          ? 'The one that costs most first. Gains are predicted; tensorscope diagnose RUN --verify measures them.'
          : '',
        causes.length > 0 ? h('ol', { class: 'why-causes' }, ...causes) : h('p', { class: 'why-none' }, NO_CAUSE),
      ),
      answer.healthy.length > 0 &&
        panel(
          'What the hardware can do',
          'Rules that hold and name nothing that is wrong.',
          list(answer.healthy.map((one) => `${one.title} (${one.phase}): ${one.why}`)),
        ),
      answer.missing.length > 0 && panel('Not known', '', list(answer.missing, 'why-missing')),
      answer.not_evaluated.length > 0 &&
        panel(
          'Rules that lack an input',
          'Neither true nor false: what would decide them was not measured.',
          h(
            'ul',
            { class: 'why-lacking' },
            ...answer.not_evaluated.map((one) =>
              h(
                'li',
                { title: one.rule },
                `${one.title} (${one.subject}): `,
                ...one.missing.flatMap((name, at) => [at > 0 ? ', ' : '', h('code', {}, name)]),
              ),
            ),
          ),
        ),
    );
  }

  private stacks(answer: Diagnosis): HTMLElement {
    const { colours, tooltip } = this.app;
    const stack = answer.phases.map((phase): Bar => ({
      name: phase.name,
      label: `${format.nanos(phase.token_nanos)} a token · ${phase.tokens_per_second.toFixed(1)} tokens/s`,
      title: `${format.integer(phase.tokens)} tokens in ${format.integer(phase.evaluations)} evaluations`,
      parts: phase.stack.map((part) => ({ name: part.name, value: part.share, colour: colours.timePart(part.name) })),
    }));
    const element = bars(stack, {
      most: 1,
      hover: (event, bar, hovered) => {
        const phase = answer.phases.find((one) => one.name === bar.name);
        const part = phase?.stack.find((one) => one.name === hovered.name);
        if (!event || !part) return tooltip.hide();
        tooltip.show(
          event.clientX,
          event.clientY,
          part.title,
          [
            ['share', partPercent(part.share)],
            ['of a token', format.nanos(part.nanos)],
          ],
          hovered.colour,
        );
      },
    });
    element.classList.add('why-stacks');
    return element;
  }

  private card(cause: Ranked, number: number): HTMLElement {
    const key = keyOf(cause);
    const body = h(
      'div',
      { class: 'why-evidence', id: `why-evidence-${number}` },
      ...bySource(cause).map(({ source, numbers }) =>
        h(
          'div',
          { class: 'why-source' },
          h('dl', {}, ...numbers.flatMap((one) => [h('dt', {}, h('code', {}, one.name)), h('dd', {}, one.text)])),
          source !== null && this.source(source),
        ),
      ),
      h(
        'p',
        { class: 'why-rule' },
        'rule ',
        h('code', {}, cause.id),
        ...(cause.reference ? ['; ', ...withCode(cause.reference)] : []),
      ),
    );
    const button = h(
      'button',
      { type: 'button', class: 'why-fold', 'aria-controls': body.id, onclick: () => this.fold(key) },
      'evidence',
    );
    this.folds.set(key, { button, body });
    const gain = gainText(cause);
    const line = (name: string, ...what: Child[]) =>
      h('div', { class: 'why-line' }, h('span', {}, name), h('div', {}, ...what));
    return h(
      'li',
      { class: 'why-cause', 'data-rule': cause.id },
      h(
        'h3',
        {},
        h('span', { class: 'why-title' }, cause.title),
        h('span', { class: 'why-share' }, `${cause.phase}, ${(cause.share * 100).toFixed(0)} % of its time`),
      ),
      h('p', {}, ...withCode(cause.why)),
      cause.action !== null && line('do', ...this.action(cause.action)),
      gain !== null && line('gain', gain),
      cause.refute !== null && line('refuted if', ...withCode(cause.refute)),
      button,
      body,
    );
  }

  /** A command to copy, or a sentence with commands in it. */
  private action(text: string): Child[] {
    return text.includes('`') ? withCode(text) : [h('code', { class: 'why-action' }, text), this.copy(text)];
  }

  private source(text: string): HTMLElement {
    if (!isQuery(text)) return h('p', { class: 'why-place' }, text);
    return h(
      'div',
      { class: 'why-query' },
      h('code', {}, text),
      this.copy(text),
      h(
        'button',
        { type: 'button', class: 'quiet', title: 'run this query in the view Table', onclick: () => this.ask(text) },
        'show in Table',
      ),
    );
  }

  private copy(text: string): HTMLElement {
    const copy = async () => {
      try {
        await navigator.clipboard.writeText(text);
        this.app.status('copied');
      } catch {
        this.app.status('the browser forbids copying: select the text');
      }
    };
    return h(
      'button',
      { type: 'button', class: 'quiet', 'aria-label': `copy ${text}`, onclick: () => void copy() },
      'copy',
    );
  }

  private ask(query: string): void {
    const { opt } = this.app.state;
    this.app.setState({ view: 'table', opt: { ...opt, 'table.rows': 'sql', 'table.sql': query } });
  }

  /** Causes whose evidence is shown. */
  private open(): Set<string> {
    const wanted = this.app.state.opt[OPEN] ?? '';
    const names = new Set(wanted.split(','));
    return new Set([...this.folds.keys()].filter((key) => wanted === 'all' || names.has(key)));
  }

  private fold(key: string): void {
    const open = this.open();
    if (!open.delete(key)) open.add(key);
    this.app.setOpt(OPEN, open.size > 0 ? [...open].join(',') : null, { replace: true });
  }

  private showFolds(): void {
    const open = this.open();
    for (const [key, { button, body }] of this.folds) {
      button.setAttribute('aria-expanded', String(open.has(key)));
      body.hidden = !open.has(key);
    }
  }
}

/** A rule may hold for several phases. */
function keyOf(cause: Ranked): string {
  return `${cause.id}:${cause.phase}`.replaceAll(',', ' ');
}

/** Every part with its colour, and share and time in each phase. */
function partTable(answer: Diagnosis, app: App): HTMLElement {
  const { phases } = answer;
  const row = (of: PartRow) => {
    const square = h('i', { class: 'swatch' });
    square.style.background = app.colours.timePart(of.name);
    return h(
      'tr',
      { 'data-part': of.name },
      h('th', { scope: 'row' }, square, of.title),
      ...of.of.flatMap((part) => [
        h('td', {}, part ? partPercent(part.share) : '–'),
        h('td', {}, part ? format.nanos(part.nanos) : ''),
      ]),
    );
  };
  return h(
    'table',
    { class: 'why-parts' },
    h(
      'thead',
      {},
      h(
        'tr',
        {},
        h('th', { scope: 'col' }, 'part'),
        ...phases.flatMap((phase) => [h('th', { scope: 'col' }, phase.name), h('th', { scope: 'col' }, 'a token')]),
      ),
    ),
    h('tbody', {}, ...partRows(phases).map(row)),
  );
}

function verdict(name: string, text: string): Child {
  return text !== '' && h('p', { class: 'why-verdict' }, h('b', {}, `${name}: `), ...withCode(text));
}

function list(lines: readonly string[], more = ''): HTMLElement {
  return h('ul', { class: `why-list ${more}`.trim() }, ...lines.map((line) => h('li', {}, ...withCode(line))));
}

export function why(): View {
  return new Why();
}
