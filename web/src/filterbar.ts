/** The one bar that governs all views: menus and a token range, and a chip for everything that is set. */
import type { App } from './view';
import { h, segmented } from './dom';
import * as format from './format';
import { menu, type MenuItem } from './menu';
import { isFiltered, NO_FILTER, range, type Filter } from './state';

export interface FilterBar {
  element: HTMLElement;
  update(): void;
  /** Where typing a filter begins. */
  focus(): void;
}

export function filterBar(app: App): FilterBar {
  const phase = segmented(
    'phase',
    [
      { value: '', text: 'all' },
      { value: 'prompt', text: 'prompt' },
      { value: 'generate', text: 'generate' },
    ],
    (value) => app.setFilter({ phase: value || null }),
  );

  const tokens = h('input', {
    type: 'text',
    class: 'tokens-input',
    placeholder: 'all',
    'aria-label': 'token range, for example 3-20',
    title: 'token numbers, for example 3-20',
    spellcheck: 'false',
    autocomplete: 'off',
    inputmode: 'numeric',
    onchange: () => commitTokens(),
  });
  tokens.addEventListener('keydown', (event) => {
    if (event.key === 'Enter') commitTokens();
    if (event.key === 'Escape') {
      tokens.value = app.state.filter.tokens?.join('-') ?? '';
      tokens.blur();
    }
    event.stopPropagation();
  });
  function commitTokens(): void {
    const wanted = range(tokens.value);
    const isBad = tokens.value.trim() !== '' && !wanted;
    tokens.setAttribute('aria-invalid', String(isBad));
    if (!isBad) app.setFilter({ tokens: wanted });
  }

  const layer = menu('layer', (chosen) =>
    app.setFilter({ layer: chosen.map((v) => (v === 'none' ? null : Number(v))) }),
  );
  const component = menu('component', (chosen) => app.setFilter({ component: chosen }));
  const op = menu('op', (chosen) => app.setFilter({ op: chosen }));
  const expert = menu('expert', (chosen) => app.setFilter({ expert: chosen.map(Number) }));
  const device = menu('device', (chosen) => app.setFilter({ device: chosen }));
  const chips = h('div', { class: 'chips', role: 'group', 'aria-label': 'active filters' });
  const clear = h(
    'button',
    { type: 'button', class: 'quiet', title: 'clear the filter (Esc)', onclick: () => app.setFilter(NO_FILTER) },
    'clear',
  );

  const element = h(
    'div',
    { class: 'filterbar', role: 'search', 'aria-label': 'filter of all views' },
    phase.element,
    h('label', { class: 'control' }, h('span', { class: 'control-label' }, 'tokens'), tokens),
    layer.element,
    component.element,
    op.element,
    expert.element,
    device.element,
    chips,
    clear,
  );

  function update(): void {
    const { filter } = app.state;
    const { info, colours } = app;
    phase.set(filter.phase ?? '');
    if (document.activeElement !== tokens) tokens.value = filter.tokens?.join('-') ?? '';
    tokens.placeholder = info.totals.tokens > 0 ? `0-${info.totals.tokens - 1}` : 'all';
    const layers: MenuItem[] = info.layers.map((l) => ({
      value: String(l ?? 'none'),
      text: l === null ? 'no layer' : String(l),
    }));
    layer.set(
      layers,
      filter.layer.map((l) => String(l ?? 'none')),
    );
    component.set(
      info.components.map((c) => ({ value: c, text: c, colour: colours.component(c) })),
      filter.component,
    );
    op.set(
      info.ops.map((o) => ({ value: o, text: o, colour: colours.op(o) })),
      filter.op,
    );
    expert.set(
      Array.from({ length: info.experts }, (_, e) => ({ value: String(e), text: String(e) })),
      filter.expert.map(String),
    );
    expert.element.hidden = info.experts === 0;
    device.set(
      info.devices.map((name) => ({ value: name, text: name })),
      filter.device,
    );
    // Of a run of the processor alone there is nothing to choose.
    device.element.hidden = info.devices.length < 2 && filter.device.length === 0;
    chips.replaceChildren(...chipsOf(filter));
    clear.hidden = !isFiltered(filter);
  }

  function chipsOf(filter: Filter): HTMLElement[] {
    const chip = (name: string, value: string, change: Partial<Filter>, colour?: string) => {
      const element = h(
        'button',
        {
          type: 'button',
          class: 'chip',
          'aria-label': `remove filter ${name} ${value}`,
          title: 'remove',
          onclick: () => app.setFilter(change),
        },
        h('span', { class: 'chip-name' }, name),
        h('span', {}, value),
        h('span', { class: 'chip-x', 'aria-hidden': 'true' }, '×'),
      );
      if (colour) element.style.borderColor = colour;
      return element;
    };
    const out: HTMLElement[] = [];
    if (filter.phase) out.push(chip('phase', filter.phase, { phase: null }));
    if (filter.tokens) {
      const [a, b] = filter.tokens;
      out.push(chip('tokens', a === b ? String(a) : `${a}–${b}`, { tokens: null }));
    }
    const many = <T>(
      name: string,
      values: T[],
      text: (v: T) => string,
      change: (rest: T[]) => Partial<Filter>,
      colour?: (v: T) => string,
    ) => {
      // One chip for many values keeps the bar on one line.
      if (values.length > 3) out.push(chip(name, `${values.length} chosen`, change([])));
      else
        for (const value of values)
          out.push(chip(name, text(value), change(values.filter((v) => v !== value)), colour?.(value)));
    };
    many(
      'layer',
      filter.layer,
      (l) => (l === null ? 'none' : String(l)),
      (rest) => ({ layer: rest }),
    );
    many('component', filter.component, String, (rest) => ({ component: rest }), app.colours.component);
    many('op', filter.op, String, (rest) => ({ op: rest }), app.colours.op);
    many('expert', filter.expert, format.integer, (rest) => ({ expert: rest }));
    many('device', filter.device, String, (rest) => ({ device: rest }));
    return out;
  }

  return {
    element,
    update,
    focus: () => {
      tokens.focus();
      tokens.select();
    },
  };
}
