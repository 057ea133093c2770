/** Panels of an estimate that are tables: caches by type, attention's bytes, dimensions, training. */
import { h, note } from '../../dom';
import * as format from '../../format';
import type { AttentionBytes, Fit, KvType, Training } from './answer';

function table(heads: string[], rows: string[][]): HTMLElement {
  return h(
    'table',
    { class: 'est-table' },
    h('thead', {}, h('tr', {}, ...heads.map((head) => h('th', { scope: 'col' }, head)))),
    h('tbody', {}, ...rows.map((row) => h('tr', {}, ...row.map((cell) => h('td', {}, cell))))),
  );
}

/** What a sequence's cache takes in several types, and how many have room. */
export function kvTypesPanel(types: KvType[]): HTMLElement[] {
  const rows = types.map((one) => [
    one.type,
    format.bytes(one.bytes_per_token),
    format.bytes(one.bytes_per_sequence),
    format.integer(one.max_sequences),
  ]);
  return [table(['type', 'a token', 'a sequence', 'sequences with room'], rows)];
}

export function attentionPanel(attention: AttentionBytes): HTMLElement[] {
  const { crossover_tokens: from } = attention;
  return [
    table(
      ['attention', 'moved in a layer'],
      [
        ['standard', format.bytes(attention.standard.bytes)],
        [`block by block, in ${format.bytes(attention.sram_bytes)}`, format.bytes(attention.block_wise.bytes)],
      ],
    ),
    note(
      `A prompt of ${format.integer(attention.tokens)} tokens. Block by block moves less ${from === null ? 'at no length' : `from ${format.integer(from)} tokens on`}.`,
      'aside',
    ),
  ];
}

/** Dimensions that leave units of the machine empty. */
export function shapesPanel(fits: Fit[]): HTMLElement[] {
  if (fits.length === 0) return [note('The table does not say how wide the units of this machine are.', 'aside')];
  const odd = fits.filter((one) => !one.fits);
  if (odd.length === 0) return [note('Every dimension fills the units of the machine.', 'aside')];
  const rows = odd.map((one) => [
    one.dimension,
    format.integer(one.number),
    `a multiple of ${format.integer(one.multiple_of)}`,
    `${one.padding_percent.toFixed(2)} %`,
  ]);
  return [table(['dimension', 'is', 'fills units as', 'padding'], rows)];
}

export function trainPanel(train: Training): HTMLElement[] {
  const rows = train.best.map(({ outcome, tokens_per_second }) => {
    const { layout, memory, bubble } = outcome;
    return [
      `${layout.tensor} × ${layout.pipeline} × ${layout.data}`,
      layout.zero,
      layout.recompute,
      format.bytes(memory.bytes),
      format.percent(bubble),
      format.integer(Math.round(tokens_per_second)),
    ];
  });
  const counted = `${format.integer(train.fitting)} of ${format.integer(train.examined)} layouts fit.`;
  if (rows.length === 0) return [note(`None fits. ${counted}`, 'aside')];
  const heads = ['tensor × pipeline × data', 'ZeRO', 'recomputed', 'on a GPU', 'bubble', 'tokens/s'];
  return [table(heads, rows), note(counted, 'aside')];
}
