/** Small helpers to build the page. Texts become text nodes: nothing here parses HTML. */

export type Child = Node | string | null | undefined | false;
type Attributes = Record<string, string | number | boolean | null | undefined | ((event: never) => void)>;

/**
 * An element: `class`, `aria-…` and the like as attributes, `onclick` and other
 * functions as listeners; null, undefined and false leave an attribute out.
 */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') element.addEventListener(name.slice(2), value as EventListener);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  element.append(...children.filter((c): c is Node | string => c !== null && c !== undefined && c !== false));
  return element;
}

/** A row of controls above a view. */
export function toolbar(...children: Child[]): HTMLElement {
  return h('div', { class: 'toolbar' }, ...children);
}

export interface Segmented {
  element: HTMLElement;
  /** Shows which value holds, without calling `pick`; options can be switched off. */
  set(value: string, disabled?: readonly string[]): void;
}

/** A few exclusive choices side by side; a radio group for assistive technology. */
export function segmented(
  label: string,
  options: readonly { value: string; text: string; title?: string }[],
  pick: (value: string) => void,
): Segmented {
  const buttons = options.map((option) =>
    h(
      'button',
      {
        type: 'button',
        role: 'radio',
        'aria-checked': 'false',
        title: option.title,
        'data-value': option.value,
        onclick: () => pick(option.value),
      },
      option.text,
    ),
  );
  const group = h('div', { class: 'segmented', role: 'radiogroup', 'aria-label': label }, ...buttons);
  group.addEventListener('keydown', (event) => {
    const step = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
    if (!step) return;
    const usable = buttons.filter((button) => !button.disabled);
    const at = usable.indexOf(document.activeElement as HTMLButtonElement);
    const next = usable[(at + step + usable.length) % usable.length];
    next?.focus();
    next?.click();
    event.preventDefault();
    event.stopPropagation();
  });
  return {
    element: h('div', { class: 'control' }, h('span', { class: 'control-label' }, label), group),
    set(value, disabled = []) {
      for (const button of buttons) {
        const own = button.dataset['value'] as string;
        button.setAttribute('aria-checked', String(own === value));
        button.disabled = disabled.includes(own);
      }
    },
  };
}

export interface Toggles {
  element: HTMLElement;
  /** Shows which are on, without calling `flip`. */
  set(on: readonly string[]): void;
}

/** Choices side by side, each on or off by itself. */
export function toggles(
  label: string,
  options: readonly { value: string; text: string; title?: string; colour?: string }[],
  flip: (value: string) => void,
): Toggles {
  const buttons = options.map((option) => {
    const swatch = option.colour !== undefined && h('i', { class: 'swatch' });
    if (swatch) swatch.style.background = option.colour ?? '';
    return h(
      'button',
      {
        type: 'button',
        'aria-pressed': 'false',
        title: option.title,
        'data-value': option.value,
        onclick: () => flip(option.value),
      },
      swatch,
      option.text,
    );
  });
  const group = h('div', { class: 'segmented', role: 'group', 'aria-label': label }, ...buttons);
  return {
    element: h('div', { class: 'control' }, h('span', { class: 'control-label' }, label), group),
    set(on) {
      for (const button of buttons)
        button.setAttribute('aria-pressed', String(on.includes(button.dataset['value'] as string)));
    },
  };
}

/** What lies over a view that has nothing to draw. */
export class Cover {
  private readonly box: HTMLElement;

  /** `host` must be positioned (class `stage` is). */
  constructor(private readonly host: HTMLElement) {
    this.box = h('div', { class: 'cover', role: 'status' });
    this.box.hidden = true;
  }

  busy(text = 'computing…'): void {
    this.put('busy', text);
  }
  empty(text = 'no access passes this filter'): void {
    this.put('empty', text, 'press Esc to clear the filter');
  }
  error(text: string): void {
    this.put('error', text);
  }
  clear(): void {
    this.box.hidden = true;
  }

  private put(kind: string, text: string, hint?: string): void {
    if (!this.box.isConnected) this.host.append(this.box);
    this.box.dataset['kind'] = kind;
    const lines: Node[] = [
      h(
        'div',
        { class: 'cover-text' },
        kind === 'busy' && h('span', { class: 'spinner', 'aria-hidden': 'true' }),
        text,
      ),
    ];
    if (hint) lines.push(h('div', { class: 'cover-hint' }, hint));
    this.box.replaceChildren(...lines);
    this.box.hidden = false;
  }
}

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

/** A text with its `commands` as code. */
export function withCode(text: string): Child[] {
  return text.split('`').map((part, at) => (at % 2 === 1 ? h('code', {}, part) : part));
}

/** A sentence where a picture cannot be; `commands` in it stand out. */
export function note(text: string, kind: 'empty' | 'busy' | 'error' | 'aside' = 'empty'): HTMLElement {
  return h(
    'p',
    { class: `view-note view-${kind}`, role: kind === 'error' ? 'alert' : 'status' },
    kind === 'busy' && h('span', { class: 'spinner', 'aria-hidden': 'true' }),
    h('span', {}, ...withCode(text)),
  );
}

/** A titled box; the definition of its numbers stands under the title. */
export function panel(title: string, definition: string, ...children: Child[]): HTMLElement {
  return h(
    'section',
    { class: 'view-panel' },
    h('h2', {}, title),
    definition !== '' && h('p', { class: 'view-definition' }, definition),
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
    { class: 'view-figures' },
    ...of.map((one) => h('div', { title: one.title }, h('b', {}, one.value), h('span', {}, one.name))),
  );
}

/** Squares and names of the series of a chart. */
export function key(of: readonly { colour: string; name: string; title?: string }[]): HTMLElement {
  return h(
    'div',
    { class: 'view-key' },
    ...of.map((one) => {
      const square = h('i', { class: 'swatch' });
      square.style.background = one.colour;
      return h('span', { title: one.title }, square, one.name);
    }),
  );
}
