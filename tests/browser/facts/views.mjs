/** Every view draws the demo run, in the dark and in the light; runs can be compared. */
import assert from 'node:assert/strict';
import { settled, visit } from '../chromium.mjs';
import { look } from '../png.mjs';

export const VIEWS = ['map', 'playback', 'timeline', 'heatmaps', 'experts', 'attention', 'memory', 'flame', 'table', 'compare'];
/** Views whose data are elements of the page, and which. */
const ROWS = { table: '[role=row]', compare: '.view-bar, .view-bars > *' };
const MORE = [
  ['map, Hilbert order', '#view=map&map.order=hilbert'],
  ['map by recency', '#view=map&map.metric=recency'],
  ['map by residency', '#view=map&map.metric=residency'],
  ['heatmap of tensors', '#view=heatmaps&heatmaps.rows=tensor'],
  ['heatmap of experts', '#view=heatmaps&heatmaps.rows=expert'],
  ['heatmap of time', '#view=heatmaps&heatmaps.metric=nanos'],
  ['flame graph of time', '#view=flame&flame.by=nanos'],
];

export async function facts(bench, server) {
  for (const scheme of ['dark', 'light']) {
    for (const view of VIEWS) {
      await bench.fact(`${view} draws the demo run (${scheme})`, async (t) => {
        const page = await t.page({ scheme });
        await visit(page, server, `#view=${view}`);
        await isDrawn(page, view);
        const colour = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
        const [red] = colour.match(/\d+/g).map(Number);
        assert.ok(scheme === 'dark' ? red < 80 : red > 180, `the background is ${scheme}, not ${colour}`);
      });
    }
  }
  await bench.fact('every way to draw the map, the heatmap and the flame graph draws something', async (t) => {
    const page = await t.page();
    for (const [name, hash] of MORE) {
      await visit(page, server, hash);
      await isDrawn(page, new URLSearchParams(hash.slice(1)).get('view'), name);
    }
  });
  await bench.fact('every view draws a dense run, or says that it has no experts', async (t) => {
    const page = await t.page();
    for (const view of VIEWS) {
      await visit(page, server, `#run=1&view=${view}`);
      if (view === 'experts') assert.match(await page.innerText('main'), /no experts/);
      else await isDrawn(page, view);
    }
  });
  await bench.fact('compare shows two runs as a difference and side by side', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=compare&compare.a=0&compare.b=1');
    const difference = await page.innerText('main');
    for (const words of ['moe', 'dense', 'bytes per token', 'B more than A']) assert.ok(difference.includes(words), `${words}: is there`);
    await page.click('button[data-value=both]');
    await settled(page, 'compare');
    await isDrawn(page, 'compare');
    assert.notEqual(await page.innerText('main'), difference);
    await visit(page, server, '#view=compare&compare.a=0&compare.b=2');
    const { experts } = await server.json('api/compare?a=0&b=2');
    assert.equal(experts.length, 6, 'runs of one model are compared by their experts');
    const overlap = `overlap ${experts[0].jaccard.toFixed(2)}`;
    assert.ok((await page.innerText('main')).includes(overlap), overlap);
  });
  await bench.fact('switching the run shows the other run', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=table');
    await page.selectOption('select.run-name', '1');
    await page.waitForFunction(() => document.querySelector('.model')?.textContent === 'Shakespeare Dense');
    await settled(page, 'table');
    const names = await page.locator('[role=row] [role=cell]:first-child').allInnerTexts();
    assert.ok(names.includes('ffn') && !names.includes('expert'), names.join());
    assert.match(page.url(), /run=1/);
  });
}

/** No cover lies over the view, its canvases hold data in colour, or its rows are there. */
async function isDrawn(page, view, name = view) {
  const cover = page.locator('.cover:not([hidden]), .view-error');
  assert.deepEqual(await cover.allInnerTexts(), [], `nothing covers ${name}`);
  if (ROWS[view]) assert.ok(await page.locator(`main ${ROWS[view]}`).count() >= 3, `${name} has rows`);
  const { hues, drawn } = look(await page.locator('main').screenshot());
  // Controls and text alone have two or three hues.
  assert.ok(view === 'table' || (hues >= 8 && drawn > 0.05), `${name} is not blank: ${hues} hues, ${drawn.toFixed(3)} drawn`);
  for (const canvas of await page.locator('main canvas').all()) {
    const box = await canvas.boundingBox();
    if (!box || box.width < 40 || box.height < 40) continue;
    const isInSight = box.y >= 0 && box.y + box.height <= page.viewportSize().height;
    if (!isInSight) continue;
    const seen = look(await page.screenshot({ clip: box }));
    assert.ok(seen.hues >= 1 && seen.drawn > 0.02, `a canvas of ${name} is not blank: ${seen.hues} hues, ${seen.drawn.toFixed(3)} drawn`);
  }
}
