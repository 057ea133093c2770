/**
 * The frame around the views: header, tabs, filter bar, main area, status line.
 *
 * Holds the state and carries it to the address bar and back. One round of
 * updates runs per animation frame, however often the state changes in it.
 * Of a model without a run there are other views, and nothing to filter.
 */
import { Api, isAbort } from './api';
import { coloursOf, type Colours, type Theme } from './colours';
import { Cover, h } from './dom';
import { exportAs, type ExportKind } from './export';
import { filterBar, type FilterBar } from './filterbar';
import * as format from './format';
import { helpOverlay, type Help } from './help';
import { modelText } from './model';
import { filterParams, fromHash, NO_FILTER, toHash, type Filter, type State } from './state';
import { Tooltip } from './tooltip';
import type { Info } from './generated/index';
import type { ModelFacts, RunName } from './generated/server';
import type { App, SetHow, View } from './view';
import { allViews, modelViews } from './views';

const POLL_MS = 1000;
/** An answer that comes sooner needs no "computing…". */
const PATIENCE_MS = 250;
/** Browsers refuse more than some 200 changes of the address in 30 s. */
const ADDRESS_MS = 200;
const THEME_KEY = 'tensorscope.theme';

export class Shell implements App {
  state: State;
  colours: Colours;
  readonly tooltip: Tooltip;
  private readonly views: View[];
  private view: View | null = null;
  private readonly bar: FilterBar | null;
  private readonly help: Help;
  private readonly cover: Cover;
  private readonly main = h('main', { class: 'stage main', id: 'main', 'aria-live': 'off' });
  private readonly progress = h('div', { class: 'progress', role: 'presentation' });
  private readonly title = h('div', { class: 'title' });
  private readonly tabs = h('nav', { class: 'tabs', role: 'tablist', 'aria-label': 'views' });
  private readonly summary = h('span', { class: 'status-summary', role: 'status' });
  private readonly note = h('span', { class: 'status-note' });
  private readonly warning = h('button', { type: 'button', class: 'warning' });
  private readonly follow = h('button', { type: 'button', class: 'live', 'aria-pressed': 'true' });
  private readonly exports: Record<ExportKind, HTMLButtonElement>;
  private frame = 0;
  private round = 0;
  private addressTimer = 0;
  private isDrawn = false;
  /** What the filter bar and the summary show now. */
  private filtered = '';

  constructor(
    private readonly root: HTMLElement,
    readonly api: Api,
    readonly runs: RunName[],
    public info: Info,
    state: State,
    readonly model: ModelFacts | null = null,
  ) {
    this.views = model ? modelViews() : allViews();
    document.documentElement.classList.toggle('is-model', model !== null);
    this.state = this.valid(state);
    this.colours = coloursOf(preferredTheme());
    document.documentElement.dataset['theme'] = this.colours.theme;
    this.exports = { png: this.exportButton('png'), svg: this.exportButton('svg'), csv: this.exportButton('csv') };
    this.bar = model ? null : filterBar(this);
    root.replaceChildren(this.header(), this.bar?.element ?? '', this.progress, this.main, this.footer());
    this.tooltip = new Tooltip(document.body);
    this.cover = new Cover(this.main);
    this.help = helpOverlay(document.body, () => this.view, this.views, model === null);
    this.listen();
    this.showRun();
    this.schedule();
    if (info.live) this.poll();
  }

  setState(change: Partial<State>, how: SetHow = {}): void {
    const before = this.state;
    this.state = this.valid({ ...before, ...change });
    if (this.state.run !== before.run) void this.openRun(this.state.run);
    this.writeAddress(how.replace ? 'replace' : 'push');
    if (!how.atOnce) return this.schedule();
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.apply();
  }

  setFilter(change: Partial<Filter>, how?: { replace?: boolean }): void {
    this.setState({ filter: { ...this.state.filter, ...change } }, how);
  }

  setOpt(key: string, value: string | null, how?: { replace?: boolean }): void {
    const opt = { ...this.state.opt };
    if (value === null) delete opt[key];
    else opt[key] = value;
    this.setState({ opt }, how);
  }

  status(text: string | null): void {
    this.note.textContent = text ?? '';
  }

  /** A short message that goes away by itself. */
  toast(text: string): void {
    const box = h('div', { class: 'toast', role: 'status' }, text);
    this.root.append(box);
    // Long enough to read it.
    setTimeout(() => box.remove(), Math.max(2500, text.length * 60));
  }

  private valid(state: State): State {
    return this.views.some((view) => view.id === state.view) ? state : { ...state, view: this.views[0]?.id ?? '' };
  }

  private get isFollowing(): boolean {
    return this.info.live && this.state.opt['live.follow'] !== 'no';
  }

  private schedule(): void {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.apply();
    });
  }

  /** Brings everything on the page in line with the state. */
  private apply(): void {
    const wanted = this.views.find((view) => view.id === this.state.view) as View;
    if (wanted !== this.view) this.open(wanted);
    // Panning changes the state in every frame, but not what the filter says.
    const filtered = `${this.state.run} ${this.info.version} ${this.colours.theme} ${JSON.stringify(this.state.filter)}`;
    if (filtered !== this.filtered) {
      this.filtered = filtered;
      this.bar?.update();
      if (this.model) this.summary.textContent = modelText(this.model);
      else void this.updateSummary();
    }
    this.follow.hidden = !this.info.live;
    this.follow.setAttribute('aria-pressed', String(this.isFollowing));
    this.follow.textContent = this.isFollowing ? 'live · following' : 'live · paused';
    void this.updateView(wanted);
  }

  private open(view: View): void {
    this.view?.unmount?.();
    this.tooltip.hide();
    this.status(null);
    this.main.replaceChildren();
    this.cover.clear();
    this.view = view;
    this.isDrawn = false;
    view.mount(this.main, this);
    for (const tab of this.tabs.children) {
      const isOpen = (tab as HTMLElement).dataset['view'] === view.id;
      tab.setAttribute('aria-selected', String(isOpen));
      (tab as HTMLElement).tabIndex = isOpen ? 0 : -1;
    }
    this.exports.png.disabled = !view.exportCanvas;
    this.exports.svg.disabled = !view.exportSvg && !view.exportCanvas;
    this.exports.csv.disabled = !view.exportCsv;
  }

  private async updateView(view: View): Promise<void> {
    const round = ++this.round;
    const patience = setTimeout(() => {
      if (round !== this.round) return;
      if (this.isDrawn) this.progress.classList.add('is-on');
      else this.cover.busy();
    }, PATIENCE_MS);
    try {
      await view.update(this.state);
      if (round !== this.round) return;
      this.isDrawn = true;
      this.cover.clear();
    } catch (error) {
      if (isAbort(error)) return;
      if (round === this.round) this.cover.error(error instanceof Error ? error.message : String(error));
      if (!(error instanceof Error) || error.name !== 'ApiError') console.error(error);
    } finally {
      clearTimeout(patience);
      if (round === this.round) {
        this.progress.classList.remove('is-on');
        this.main.dataset['view'] = view.id;
        this.main.dataset['round'] = String(round);
      }
    }
  }

  private async updateSummary(): Promise<void> {
    try {
      const { totals } = await this.api.summary(this.state.filter, 'status');
      const share = this.info.totals.bytes > 0 ? totals.bytes / this.info.totals.bytes : 0;
      const whole = filterParams(this.state.filter).length === 0;
      this.summary.textContent =
        totals.accesses === 0
          ? 'no access passes this filter'
          : `${format.integer(totals.tokens)} tokens · ${format.integer(totals.evals)} evals · ${format.count(totals.nodes)} nodes · ` +
            `${format.count(totals.accesses)} accesses · ${format.bytes(totals.bytes)}${whole ? '' : ` (${format.percent(share)} of the run)`} · ` +
            `${format.nanos(totals.nanos)} in nodes`;
    } catch (error) {
      if (!isAbort(error)) this.summary.textContent = error instanceof Error ? error.message : String(error);
    }
  }

  private showRun(): void {
    const { info } = this;
    const model = info.model.name ?? 'unnamed model';
    // A run without its model file knows the layers of its nodes all the same.
    const layers = info.model.layers || info.layers.filter((layer) => layer !== null).length;
    const facts = [
      info.model.architecture ?? '',
      format.bytes(info.model.size_bytes),
      `${layers} layer${layers === 1 ? '' : 's'}`,
      info.model.experts > 0 ? `${info.model.experts_used} of ${info.model.experts} experts` : '',
    ].filter((fact) => fact !== '');
    document.title = `${info.name} · tensorscope`;
    const name = this.runs.length > 1 ? this.runPicker() : h('span', { class: 'run-name' }, info.name);
    this.title.replaceChildren(
      h('span', { class: 'logo', 'aria-hidden': 'true' }, ...Array.from({ length: 9 }, () => h('i'))),
      name,
      h('span', { class: 'model' }, model),
      h('span', { class: 'facts' }, facts.join(' · ')),
    );
    this.showTabs();
    this.warning.hidden = info.missing.length === 0;
    this.warning.textContent = `⚠ ${info.missing.length} note${info.missing.length === 1 ? '' : 's'} about the data`;
    this.warning.title = info.missing.join('\n');
  }

  /** A view that has nothing of this run is off, and its tab says why. */
  private showTabs(): void {
    for (const view of this.views) {
      const tab = this.tabs.querySelector(`[data-view="${view.id}"]`);
      const lacks = view.lacks?.(this.info) ?? null;
      tab?.setAttribute('aria-disabled', String(lacks !== null));
      tab?.setAttribute('title', lacks ?? `${view.title} (${view.key})`);
    }
  }

  /** Opens a view, or says why there is nothing to open. */
  private choose(view: View): void {
    const lacks = view.lacks?.(this.info) ?? null;
    if (lacks === null) this.setState({ view: view.id });
    else this.toast(lacks);
  }

  private runPicker(): HTMLElement {
    const picker = h(
      'select',
      { class: 'run-name', 'aria-label': 'run', onchange: () => this.setState({ run: Number(picker.value) }) },
      ...this.runs.map((run) => h('option', { value: run.run, selected: run.run === this.state.run }, run.name)),
    );
    return picker;
  }

  private async openRun(run: number): Promise<void> {
    try {
      const info = await this.api.info(run);
      this.api.run = run;
      this.api.forget();
      this.info = info;
      this.state = { ...this.state, run, filter: NO_FILTER, time: null, offset: null, eval: null, step: null };
      this.writeAddress('replace');
      this.showRun();
      // A view builds its scales for one run: start it afresh.
      this.view?.unmount?.();
      this.view = null;
      this.schedule();
      if (info.live) this.poll();
    } catch (error) {
      this.cover.error(error instanceof Error ? error.message : String(error));
    }
  }

  /** Asks a live run once a second whether it has grown. */
  private poll(): void {
    const { run } = this.state;
    setTimeout(async () => {
      if (this.state.run !== run) return;
      try {
        const newer = await this.api.info(run, this.info.version);
        if ('totals' in newer) this.grow(newer);
        else this.info = { ...this.info, live: newer.live };
        this.root.classList.remove('is-lost');
      } catch {
        this.root.classList.add('is-lost');
      }
      if (this.info.live) this.poll();
      else this.schedule();
    }, POLL_MS);
  }

  private grow(info: Info): void {
    const before = this.info;
    // The last piece of a run comes when it is no longer live.
    const isFollowing = this.isFollowing;
    this.info = info;
    this.api.forget();
    this.showRun();
    if (isFollowing) {
      const change: Partial<State> = {};
      if (this.state.time) {
        const [t0, t1] = this.state.time;
        change.time = [info.totals.duration_nanos - (t1 - t0), info.totals.duration_nanos];
      }
      if (this.state.eval !== null && this.state.eval === before.totals.evals - 1) {
        change.eval = info.totals.evals - 1;
        change.step = null;
      }
      if (Object.keys(change).length) this.setState(change, { replace: true });
    }
    this.schedule();
  }

  private writeAddress(how: 'push' | 'replace'): void {
    // Not put off again and again: what plays or pans for long shows in the address meanwhile.
    if (how === 'replace' && this.addressTimer) return;
    clearTimeout(this.addressTimer);
    this.addressTimer = 0;
    const write = () => {
      this.addressTimer = 0;
      const hash = toHash(this.state);
      if (hash === location.hash) return;
      if (how === 'push') history.pushState(null, '', hash);
      else history.replaceState(null, '', hash);
    };
    if (how === 'push') write();
    else this.addressTimer = window.setTimeout(write, ADDRESS_MS);
  }

  private setTheme(theme: Theme): void {
    document.documentElement.dataset['theme'] = theme;
    this.colours = coloursOf(theme);
    this.schedule();
  }

  private toggleTheme(): void {
    const theme = this.colours.theme === 'dark' ? 'light' : 'dark';
    try {
      localStorage.setItem(THEME_KEY, theme);
    } catch {
      // Storage may be forbidden: the choice then lasts as long as the page.
    }
    this.setTheme(theme);
  }

  private async share(): Promise<void> {
    this.writeAddress('push');
    try {
      await navigator.clipboard.writeText(location.href);
      this.toast('link copied: it shows exactly this view');
    } catch {
      this.toast('the browser forbids copying: take the link from the address bar');
    }
  }

  private header(): HTMLElement {
    this.tabs.append(
      ...this.views.map((view) =>
        h(
          'button',
          {
            type: 'button',
            role: 'tab',
            'data-view': view.id,
            'aria-controls': 'main',
            onclick: () => this.choose(view),
          },
          view.title,
          h('kbd', { 'aria-hidden': 'true' }, view.key),
        ),
      ),
    );
    this.tabs.addEventListener('keydown', (event) => {
      const step = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
      if (!step) return;
      // A tab that is off is passed over, unless a link has opened it.
      const all = [...this.tabs.children] as HTMLElement[];
      const isOff = (tab: HTMLElement) => tab.getAttribute('aria-disabled') === 'true';
      const tabs = all.filter((tab) => !isOff(tab) || tab === document.activeElement);
      const at = tabs.indexOf(document.activeElement as HTMLElement);
      const next = tabs[(at + step + tabs.length) % tabs.length];
      next?.focus();
      next?.click();
      event.preventDefault();
      event.stopPropagation();
    });
    this.follow.addEventListener('click', () => this.setOpt('live.follow', this.isFollowing ? 'no' : null));
    this.follow.title = 'follow the end of the run as it grows (f)';
    const button = (text: string, title: string, act: () => void) =>
      h('button', { type: 'button', class: 'quiet', title, 'aria-label': title, onclick: act }, text);
    return h(
      'header',
      { class: 'header' },
      h(
        'div',
        { class: 'header-top' },
        this.title,
        this.follow,
        h(
          'div',
          { class: 'actions' },
          h(
            'div',
            { class: 'exports', role: 'group', 'aria-label': 'export this view' },
            this.exports.png,
            this.exports.svg,
            this.exports.csv,
          ),
          button('link', 'copy a link to this view (c)', () => void this.share()),
          button('◐', 'dark or light (t)', () => this.toggleTheme()),
          button('?', 'keys and help (?)', () => this.help.toggle()),
        ),
      ),
      this.tabs,
    );
  }

  private footer(): HTMLElement {
    this.warning.addEventListener('click', () => this.toast(this.info.missing.join('  ·  ')));
    return h('footer', { class: 'statusline' }, this.summary, this.warning, this.note);
  }

  private exportButton(kind: ExportKind): HTMLButtonElement {
    return h(
      'button',
      {
        type: 'button',
        class: 'quiet',
        title: `save this view as ${kind.toUpperCase()}`,
        onclick: () => {
          if (this.view) exportAs(kind, this.view, this).catch((error: unknown) => this.toast(String(error)));
        },
      },
      kind.toUpperCase(),
    );
  }

  private listen(): void {
    const restore = () => {
      const state = this.valid(fromHash(location.hash, this.views[0]?.id ?? ''));
      if (toHash(state) === toHash(this.state)) return;
      const run = this.state.run;
      this.state = state;
      if (state.run !== run) void this.openRun(state.run);
      this.schedule();
    };
    addEventListener('popstate', restore);
    addEventListener('hashchange', restore);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.setTheme(preferredTheme()));
    document.addEventListener('keydown', (event) => this.onKey(event));
  }

  private onKey(event: KeyboardEvent): void {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target as HTMLElement;
    if (target.matches('input:not([type=range]), textarea, select, [contenteditable]')) return;
    if (target.matches('button, [role=option]') && (event.key === ' ' || event.key === 'Enter')) return;
    if (this.handleKey(event)) event.preventDefault();
  }

  private handleKey(event: KeyboardEvent): boolean {
    if (this.help.isOpen) {
      if (event.key === 'Escape' || event.key === '?') this.help.toggle();
      return true;
    }
    const view = this.views.find((v) => v.key === event.key);
    if (view) {
      this.choose(view);
      return true;
    }
    if (this.view?.onKey?.(event)) return true;
    switch (event.key) {
      case '?':
        this.help.toggle();
        return true;
      case '/':
        this.bar?.focus();
        return this.bar !== null;
      case 't':
        this.toggleTheme();
        return true;
      case 'c':
        void this.share();
        return true;
      case 'f':
        this.follow.click();
        return this.info.live;
      case 'Escape':
        this.tooltip.hide();
        this.setState({ filter: NO_FILTER });
        return true;
      default:
        return false;
    }
  }
}

function preferredTheme(): Theme {
  try {
    const chosen = localStorage.getItem(THEME_KEY);
    if (chosen === 'dark' || chosen === 'light') return chosen;
  } catch {
    // Storage may be forbidden.
  }
  return matchMedia('(prefers-color-scheme: light)').matches ? 'light' : 'dark';
}
