/**
 * The contract between the shell (main.ts) and a view (views/*.ts).
 *
 * Life of a view: `mount` once when its tab opens (build the DOM under `root`,
 * which is empty, a flex column that fills the main area), then `update` on
 * every change of state, of theme or of a live run's version, then `unmount`
 * when another tab opens. `update` may be called again before an earlier one
 * has finished; the Api drops outdated answers of the same slot by rejecting
 * with an AbortError, which the shell ignores. Any other rejection is shown to
 * the user over the view.
 */
import type { Api } from './api';
import type { Colours } from './colours';
import type { Filter, State } from './state';
import type { Tooltip } from './tooltip';
import type { Info } from './generated/index';
import type { ModelFacts, RunName } from './generated/server';

export interface View {
  /** Name in the address bar. */
  id: string;
  /** Name on the tab. */
  title: string;
  /** Key that opens it: '1' … '9', '0', then letters that no view uses. */
  key: string;
  /** Why there is nothing to see of a run, in a sentence; null where there is. Its tab is then off, a link still opens it. */
  lacks?(info: Info): string | null;
  mount(root: HTMLElement, app: App): void;
  update(state: State): void | Promise<void>;
  unmount?(): void;
  /** Keys of the view that the shell does not know; true when it was used. */
  onKey?(event: KeyboardEvent): boolean;
  /** Lines for the help overlay: [keys, what they do]. */
  help?: [string, string][];
  exportCsv?(): string;
  exportCanvas?(): HTMLCanvasElement;
  exportSvg?(): string;
}

export interface SetHow {
  replace?: boolean;
  atOnce?: boolean;
}

export interface App {
  readonly state: State;
  /** All runs that the server offers. */
  readonly runs: RunName[];
  readonly api: Api;
  /** Of the run that is shown; replaced by a newer object as a live run grows. */
  readonly info: Info;
  /** Shown without a run; `info` then has its tensors and nothing of a run. */
  readonly model: ModelFacts | null;
  readonly tooltip: Tooltip;
  /** Of the current theme; replaced when the theme changes (then `update` is called). */
  readonly colours: Colours;

  /**
   * Changes the state: address bar, filter bar and the current view follow.
   * `replace` leaves no step in the browser's history: for pans, scrubs, playback.
   * `atOnce` updates the view before it returns, not in the next frame: what has
   * to be fetched is then asked for one frame sooner.
   */
  setState(change: Partial<State>, how?: SetHow): void;
  setFilter(change: Partial<Filter>, how?: { replace?: boolean }): void;
  /** A view-specific option; the key is `view.name`; null removes it. */
  setOpt(key: string, value: string | null, how?: { replace?: boolean }): void;
  /** A short text at the right of the status line; null restores the summary. */
  status(text: string | null): void;
}
