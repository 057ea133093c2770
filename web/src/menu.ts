/** A button that opens a list of values to pick any number of, with a search box when it is long. */
import { h } from './dom';

export interface MenuItem {
  value: string;
  text: string;
  /** At the right, in grey. */
  note?: string;
  colour?: string;
}

export interface Menu {
  element: HTMLElement;
  set(items: readonly MenuItem[], chosen: readonly string[]): void;
  open(): void;
}

const LONG_LIST = 10;

export function menu(name: string, change: (chosen: string[]) => void): Menu {
  let items: readonly MenuItem[] = [];
  let chosen: readonly string[] = [];
  const label = h('span', {}, name);
  const button = h(
    'button',
    {
      type: 'button',
      class: 'menu-button',
      'aria-haspopup': 'listbox',
      'aria-expanded': 'false',
      'data-filter': name,
      onclick: () => (popup.hidden ? open() : close()),
    },
    label,
    h('span', { class: 'caret', 'aria-hidden': 'true' }),
  );
  const search = h('input', {
    type: 'text',
    class: 'menu-search',
    placeholder: `find a${/^[aeio]/.test(name) ? 'n' : ''} ${name}…`,
    'aria-label': `find ${name}`,
    spellcheck: 'false',
    autocomplete: 'off',
    oninput: () => fill(),
  });
  const list = h('div', { class: 'menu-list', role: 'listbox', 'aria-multiselectable': 'true', 'aria-label': name });
  const popup = h('div', { class: 'menu-popup' }, search, list);
  popup.hidden = true;
  const element = h('div', { class: 'menu' }, button, popup);

  function open(): void {
    popup.hidden = false;
    button.setAttribute('aria-expanded', 'true');
    search.value = '';
    search.hidden = items.length <= LONG_LIST;
    fill();
    (search.hidden ? list.querySelector<HTMLElement>('[role=option]') : search)?.focus();
    document.addEventListener('pointerdown', outside, true);
  }
  function close(): void {
    if (popup.hidden) return;
    popup.hidden = true;
    button.setAttribute('aria-expanded', 'false');
    document.removeEventListener('pointerdown', outside, true);
  }
  function outside(event: Event): void {
    if (!element.contains(event.target as Node)) close();
  }
  function toggle(value: string): void {
    const next = chosen.includes(value) ? chosen.filter((v) => v !== value) : [...chosen, value];
    // In the order of the list, so that equal filters make equal links.
    change(items.map((item) => item.value).filter((v) => next.includes(v)));
  }
  function fill(): void {
    const wanted = search.value.trim().toLowerCase();
    const focused = (document.activeElement as HTMLElement | null)?.dataset['value'];
    list.replaceChildren(
      ...items
        .filter((item) => item.text.toLowerCase().includes(wanted))
        .map((item) => {
          const swatch = item.colour ? h('span', { class: 'swatch' }) : null;
          if (swatch) swatch.style.background = item.colour as string;
          return h(
            'div',
            {
              role: 'option',
              tabindex: 0,
              class: 'menu-item',
              'data-value': item.value,
              'aria-selected': String(chosen.includes(item.value)),
              onclick: () => toggle(item.value),
            },
            h('span', { class: 'tick', 'aria-hidden': 'true' }),
            swatch,
            h('span', { class: 'menu-text' }, item.text),
            item.note ? h('span', { class: 'menu-note' }, item.note) : null,
          );
        }),
    );
    if (focused !== undefined) {
      for (const option of list.children)
        if ((option as HTMLElement).dataset['value'] === focused) (option as HTMLElement).focus();
    }
  }
  element.addEventListener('keydown', (event) => {
    if (popup.hidden) return;
    const options = [...list.children] as HTMLElement[];
    const at = options.indexOf(document.activeElement as HTMLElement);
    if (event.key === 'Escape') {
      close();
      button.focus();
    } else if (event.key === 'ArrowDown') options[Math.min(options.length - 1, at + 1)]?.focus();
    else if (event.key === 'ArrowUp') (at > 0 ? options[at - 1] : search.hidden ? options[0] : search)?.focus();
    else if (event.key === 'Enter' || (event.key === ' ' && at >= 0)) {
      const value = (options[at] ?? options[0])?.dataset['value'];
      if (value !== undefined) toggle(value);
    } else if (event.key === 'Tab') return close();
    else {
      // Typing belongs to the search box, not to the page's keys.
      event.stopPropagation();
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  });
  return {
    element,
    open,
    set(newItems, newChosen) {
      items = newItems;
      chosen = newChosen;
      label.textContent = chosen.length ? `${name} · ${chosen.length}` : name;
      button.classList.toggle('is-on', chosen.length > 0);
      button.disabled = items.length === 0;
      if (!popup.hidden) fill();
    },
  };
}
