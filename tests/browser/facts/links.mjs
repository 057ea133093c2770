/** A link reproduces a view: the same pixels, the same numbers. */
import assert from 'node:assert/strict';
import { settled, visit } from '../chromium.mjs';
import { decode } from '../png.mjs';
import { shownTable } from './filters.mjs';

const LINKS = [
  '#run=0&view=map&layer=1,2&map.metric=bytes&map.order=hilbert',
  '#run=0&view=playback&eval=7&step=40',
  '#run=0&view=timeline&t=1000000-9000000&o=1000000-4000000',
  '#run=0&view=heatmaps&tokens=5-12&heatmaps.rows=tensor&heatmaps.x=2-20',
  '#run=0&view=experts&phase=generate',
  '#run=0&view=flame&component=expert&flame.by=nanos',
  '#run=2&view=table&tokens=3-9&table.rows=op',
];
/** Pixels: Chromium smooths round corners in two ways, as it likes. */
const MOST_DIFFERENT = 40;

export async function facts(bench, server) {
  for (const link of LINKS) {
    const view = new URLSearchParams(link.slice(1)).get('view');
    await bench.fact(`a link restores ${view}`, async (t) => {
      const [first, second] = [await t.page(), await t.page()];
      await visit(first, server, link);
      const address = first.url();
      assert.equal(new URL(address).hash, link, 'the page keeps the link as it is');
      await visit(second, server, new URL(address).hash);
      const [a, b] = [await picture(first), await picture(second)];
      assert.ok(difference(a, b) <= MOST_DIFFERENT, `both pages show the same pixels: ${difference(a, b)} differ`);
      await visit(second, server, `#view=${view}`);
      assert.ok(difference(a, await picture(second)) > 100 * MOST_DIFFERENT, 'without the state the page looks different');
    });
  }
  await bench.fact('what is clicked stands in the address, and the back button takes it back', async (t) => {
    const page = await t.page({ size: { width: 1280, height: 2400 } });
    await visit(page, server, '#run=0&view=table');
    const before = await shownTable(page);
    await page.click('.filterbar button[data-value=prompt]');
    await page.waitForFunction(() => location.hash.includes('phase=prompt'));
    await settled(page, 'table');
    assert.notDeepEqual(await shownTable(page), before);
    await page.goBack();
    await page.waitForFunction(() => !location.hash.includes('phase=prompt'));
    await settled(page, 'table');
    assert.deepEqual(await shownTable(page), before);
  });
  await bench.fact('a link with nonsense in it opens a page that works', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=map&run=0&layer=x,99999&tokens=9-&t=b&zzz.q=%3Cb%3E&expert=-1&__proto__.x=1');
    assert.match(await page.innerText('main, .status-summary'), /./);
    await page.goto('about:blank');
    await page.goto(`${server.address}#view=nonsense`);
    await settled(page, 'map');
  });
}

async function picture(page) {
  return decode(await page.screenshot());
}

function difference(a, b) {
  let count = 0;
  for (let at = 0; at < a.pixels.length; at += a.channels) {
    if (a.pixels.compare(b.pixels, at, at + a.channels, at, at + a.channels) !== 0) count += 1;
  }
  return count;
}
