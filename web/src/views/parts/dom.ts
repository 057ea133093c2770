/** What the analysis views need beyond ../../dom: panels, lists to choose from, sentences. */
import { h } from '../../dom';

export type Child = Node | string | null | undefined | false;

/** Replaces what the element holds. */
export function fill(element: Element, ...children: Child[]): void {
  element.replaceChildren(
    ...children.filter((child): child is Node | string => child !== null && child !== undefined && child !== false),
  );
}

export interface Picker {
  element: HTMLElement;
  /** Other choices, one of them chosen; does not call `pick`. */
  set(options: readonly { value: string; text: string }[], value: string): void;
}

/** A drop-down list. */
export function picker(label: string, title: string, pick: (value: string) => void): Picker {
  const list = h('select', { title, 'aria-label': label, onchange: () => pick(list.value) });
  return {
    element: h('label', { class: 'control' }, h('span', { class: 'control-label' }, label), list),
    set(options, value) {
      const isSame =
        list.options.length === options.length &&
        options.every((option, at) => list.options[at]?.value === option.value);
      if (!isSame) fill(list, ...options.map((option) => h('option', { value: option.value }, option.text)));
      list.value = value;
    },
  };
}

/** A sentence where a picture cannot be; `commands` in it stand out. */
export function note(text: string, kind: 'empty' | 'busy' | 'error' | 'aside' = 'empty'): HTMLElement {
  return h(
    'p',
    { class: `vb-note vb-${kind}`, role: kind === 'error' ? 'alert' : 'status' },
    kind === 'busy' && h('span', { class: 'spinner', 'aria-hidden': 'true' }),
    h('span', {}, ...text.split('`').map((part, at) => (at % 2 === 1 ? h('code', {}, part) : part))),
  );
}

/** A titled box; the definition of its numbers stands under the title. */
export function panel(title: string, definition: string, ...children: Child[]): HTMLElement {
  return h(
    'section',
    { class: 'vb-panel' },
    h('h2', {}, title),
    definition !== '' && h('p', { class: 'vb-definition' }, definition),
    ...children,
  );
}

export interface Figure {
  value: string;
  name: string;
  title?: string;
}

/** A row of large numbers. */
export function figures(...of: Figure[]): HTMLElement {
  return h(
    'div',
    { class: 'vb-figures' },
    ...of.map((one) => h('div', { title: one.title }, h('b', {}, one.value), h('span', {}, one.name))),
  );
}

/** Squares and names of the series of a chart. */
export function key(of: readonly { colour: string; name: string; title?: string }[]): HTMLElement {
  return h(
    'div',
    { class: 'vb-key' },
    ...of.map((one) => {
      const square = h('i', { class: 'swatch' });
      square.style.background = one.colour;
      return h('span', { title: one.title }, square, one.name);
    }),
  );
}
