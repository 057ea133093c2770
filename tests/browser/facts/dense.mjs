/** What a dense model and many tokens ask of the views: everything is read alike, and often. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { idle, settled, visit } from '../chromium.mjs';

/** A laptop's window, with the browser's own bars. */
const SMALL = { width: 1024, height: 700 };

export async function facts(bench, server) {
  await bench.fact('the map of a dense model shows its components, and names attention', async (t) => {
    const page = await t.page({ size: SMALL });
    await visit(page, server, '#run=1&view=map');
    assert.equal(await chosen(page, 'colour'), 'component');
    const colours = await coloursOf(page.locator('main canvas.plot').first());
    assert.ok(colours.size >= 3, `${colours.size} colours cover a hundredth of the map or more`);
    const text = await drawnText(page);
    for (const words of ['attention', 'ffn', 'in file order']) assert.ok(text.includes(words), `${words}: ${text}`);
    await visit(page, server, '#run=0&view=map');
    assert.equal(await chosen(page, 'colour'), 'accesses', 'of a mixture, what was read');
  });
  await bench.fact('many tokens make no pattern in the timeline, and their strip stays', async (t) => {
    t.expect(/willReadFrequently/);
    const page = await t.page({ size: SMALL });
    const asked = [];
    page.on('request', (request) => asked.push(request.url()));
    await visit(page, server, '#run=3&view=timeline');
    // Some four pixels per token on average, whatever the machine was busy with while it recorded.
    assert.match(await page.innerText('.legend-swatches'), /whole evaluations: zoom in to see inside/);
    for (const name of ['nodes', 'offsets']) assert.ok(asked.some((url) => new RegExp(`/${name}\\?.*even=\\d`).test(url)), name);
    const lanes = page.locator('main canvas.plot').first();
    const { width } = await lanes.boundingBox();
    const strip = await rowOf(lanes, 22, 90, width - 40);
    assert.ok(strip.every((pixel) => pixel !== strip.ground), 'every column has its token');
    const numbers = (await drawnText(page)).split('|token|')[1].split('|').filter((text) => /^\d+$/.test(text));
    assert.ok(numbers.length >= 2, `tokens are numbered: ${numbers}`);
    await page.click('main canvas.overlay', { position: { x: width / 2, y: 60 } });
    await page.waitForFunction(() => /[#&]t=/.test(location.hash));
    await idle(page);
    assert.ok(!(await page.innerText('.legend-swatches')).includes('whole evaluations'), 'one of them shows its inside');
  });
  await bench.fact('playback counts tokens as the filter does', async (t) => {
    const page = await t.page();
    await visit(page, server, '#run=1&view=playback');
    const { totals } = await server.json('api/1/info');
    assert.ok(totals.tokens > totals.evals, 'the prompt was a batch');
    const slider = page.locator('.scrub input[aria-label=token]');
    assert.equal(await slider.getAttribute('max'), String(totals.tokens - 1));
    assert.equal(await page.getAttribute('.tokens-input', 'placeholder'), `0-${totals.tokens - 1}`);
    await slider.fill('20');
    await page.waitForFunction(() => /^token 20 /.test(document.querySelector('.play-facts').textContent));
    assert.equal(await page.locator('.scrub output').first().innerText(), `20 / ${totals.tokens - 1}`);
    // A token of the prompt's batch: the slider stays where it was put.
    await slider.fill('2');
    await page.waitForFunction(() => /^tokens 0–/.test(document.querySelector('.play-facts').textContent));
    await idle(page);
    assert.equal(await slider.inputValue(), '2');
    await page.keyboard.press('End');
    await page.waitForFunction((last) => document.querySelector('.scrub input').value === last, String(totals.tokens - 1));
  });
  await bench.fact('what belongs to no layer leaves the layers of a heatmap their scale', async (t) => {
    t.expect(/willReadFrequently/);
    const page = await t.page();
    await visit(page, server, '#run=0&view=heatmaps&component=norm,output');
    const text = await drawnText(page);
    assert.match(text, /rows of no layer: a scale of their own, to [\d.]+ KiB/);
    assert.match(text, /bytes per token, layers/);
    // The layers reach the end of their scale, not only its begin.
    const canvas = page.locator('main canvas.plot').first();
    const { height } = await canvas.boundingBox();
    const [layer, none] = await Promise.all([38 + 8, height - 92 - 4].map((y) => rowOf(canvas, y, 400, 420)));
    assert.equal(layer[0], none[0], 'both are the last colour');
  });
  await bench.fact('memory shows pinning alone, and what does not fit apart from what does not apply', async (t) => {
    const page = await t.page();
    await visit(page, server, '#run=1&view=memory&memory.budget=1');
    const labels = new Map();
    const names = await page.locator('.view-bars').first().locator('.view-bar-name').allInnerTexts();
    const ends = await page.locator('.view-bars').first().locator('.view-bar-label').all();
    for (const [at, name] of names.entries()) labels.set(name, [await ends[at].innerText(), await ends[at].getAttribute('title')]);
    assert.deepEqual(labels.get('expert cache'), ['does not apply', 'does not apply: the model has no experts; whatever the memory']);
    const [stream, why] = labels.get('stream');
    assert.equal(stream, 'does not fit');
    assert.match(why, /^does not fit: nothing can be streamed with .* for weights of .*; with more memory it would$/);
    assert.ok(labels.has('pin only'), names.join());
    assert.equal(await page.locator('.view-track-short').count() > 0 && await page.locator('.view-track-off').count(), 1);
  });
  await bench.fact('of a dense model the tab of experts is off and says why, and keys pass over it', async (t) => {
    const page = await t.page();
    await visit(page, server, '#run=1&view=heatmaps');
    const tab = page.locator('[role=tab][data-view=experts]');
    assert.equal(await tab.getAttribute('aria-disabled'), 'true');
    assert.match(await tab.getAttribute('title'), /dense model.*no experts/);
    await page.keyboard.press('5');
    await page.waitForSelector('.toast:has-text("no experts")');
    assert.match(page.url(), /view=heatmaps/);
    await page.focus('[role=tab][data-view=heatmaps]');
    await page.keyboard.press('ArrowRight');
    await settled(page, 'attention');
    await page.keyboard.press('ArrowLeft');
    await settled(page, 'heatmaps');
    await visit(page, server, '#run=1&view=experts');
    assert.match(await page.innerText('main'), /is a dense model: every token uses all weights/);
    assert.equal(await tab.getAttribute('aria-selected'), 'true', 'a link is obeyed');
    await page.focus('[role=tab][data-view=experts]');
    await page.keyboard.press('ArrowRight');
    await settled(page, 'attention');
    await page.selectOption('select.run-name', '0');
    await page.waitForFunction(() => document.querySelector('[data-view=experts]').getAttribute('aria-disabled') === 'false');
    await page.keyboard.press('Escape');
    await tab.click();
    await settled(page, 'experts');
  });
  await bench.fact('a map sorted by layer knows where its bytes are', async (t) => {
    const page = await t.page();
    await visit(page, server, '#run=1&view=map&map.order=layers');
    // The shipped models are sorted already, and the choice says so.
    assert.ok(await page.isDisabled('button[data-value=layers]'));
    assert.match(await drawnText(page), /in file order, which is that of the layers/);
  });
}

/** The value that holds in a group of choices. */
function chosen(page, label) {
  return page.locator(`.control:has(.control-label:text-is("${label}")) [aria-checked=true]`).first().getAttribute('data-value');
}

/** Texts of the view's plots, which are drawn: those of the picture that it saves. */
async function drawnText(page) {
  const [download] = await Promise.all([page.waitForEvent('download'), page.click('.exports button:text-is("SVG")')]);
  const svg = readFileSync(await download.path(), 'utf8');
  return [...svg.matchAll(/<text[^>]*>([^<]*)<\/text>/g)].map(([, text]) => text).join('|');
}

/** Colours of a canvas that cover at least a hundredth of it. */
async function coloursOf(canvas) {
  return new Set(await canvas.evaluate((element) => {
    const { data, width, height } = element.getContext('2d').getImageData(0, 0, element.width, element.height);
    const counts = new Map();
    for (const pixel of new Uint32Array(data.buffer)) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
    return [...counts].filter(([, count]) => count > width * height * 0.01).map(([pixel]) => pixel);
  }));
}

/** Pixels of a canvas along a line, and the colour of its ground. */
async function rowOf(canvas, y, from, to) {
  const { row, ground } = await canvas.evaluate((element, [y, from, to]) => {
    const at = (x, y, width) => new Uint32Array(element.getContext('2d').getImageData(x, y, width, 1).data.buffer);
    return { row: [...at(from, Math.round(y), Math.floor(to - from))], ground: at(0, 0, 1)[0] };
  }, [y, from, to]);
  return Object.assign(row, { ground });
}
