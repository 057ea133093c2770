/** The overlay that lists all keys. */
import { h } from './dom';
import type { View } from './view';

export interface Help {
  readonly isOpen: boolean;
  toggle(): void;
}

const EVERYWHERE: [string, string][] = [
  ['c', 'copy a link to exactly this view'],
  ['t', 'dark or light'],
  ['?', 'this help'],
];
const OF_RUNS: [string, string][] = [
  ['/', 'type a token range; Tab goes on to the menus'],
  ['Esc', 'clear the filter, close a menu'],
  ['f', 'follow a live run'],
];
const PLOTS: [string, string][] = [
  ['wheel', 'zoom; with Shift the other axis, with Ctrl both'],
  ['drag', 'pan'],
  ['Shift + drag', 'zoom to what is selected'],
  ['double click, Home', 'show all'],
  ['arrows', 'pan'],
  ['+ −', 'zoom'],
];

export function helpOverlay(
  parent: HTMLElement,
  current: () => View | null,
  views: readonly View[],
  isOfRuns: boolean,
): Help {
  const body = h('div', { class: 'help-body' });
  const close = h('button', { type: 'button', class: 'quiet', 'aria-label': 'close', onclick: () => toggle() }, '×');
  const dialog = h(
    'div',
    { class: 'help', role: 'dialog', 'aria-modal': 'true', 'aria-label': 'keys', tabindex: -1 },
    h('div', { class: 'help-head' }, h('h2', {}, 'Keys'), close),
    body,
  );
  const shade = h(
    'div',
    {
      class: 'shade',
      onclick: (event: MouseEvent) => {
        if (event.target === shade) toggle();
      },
    },
    dialog,
  );
  shade.hidden = true;
  parent.append(shade);
  let before: Element | null = null;

  function toggle(): void {
    shade.hidden = !shade.hidden;
    if (shade.hidden) {
      (before as HTMLElement | null)?.focus?.();
      return;
    }
    before = document.activeElement;
    const view = current();
    body.replaceChildren(
      section(
        'Views',
        views.map((v) => [v.key, v.title]),
      ),
      section('Everywhere', isOfRuns ? [...OF_RUNS, ...EVERYWHERE] : EVERYWHERE),
      section('Plots', PLOTS),
      ...(view?.help ? [section(view.title, view.help)] : []),
    );
    dialog.focus();
  }
  return {
    get isOpen() {
      return !shade.hidden;
    },
    toggle,
  };
}

function section(title: string, lines: readonly [string, string][]): HTMLElement {
  return h(
    'section',
    {},
    h('h3', {}, title),
    h('dl', {}, ...lines.flatMap(([keys, text]) => [h('dt', {}, h('kbd', {}, keys)), h('dd', {}, text)])),
  );
}
