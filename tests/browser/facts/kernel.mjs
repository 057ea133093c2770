/** Page faults, disk reads and resident pages are shown as the logs hold them; without the logs nothing is asked for. */
import assert from 'node:assert/strict';
import { cpSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { settled, visit } from '../chromium.mjs';
import { parseCsv } from '../harness.mjs';
import { PAGE, writeKernelLogs } from '../kernel_logs.mjs';
import { decode } from '../png.mjs';

export async function facts(bench, _server, { moe, moeModel }) {
  if (bench.wanted && !bench.wanted.includes('kernel')) return;
  const run = join(bench.folder, 'kernel');
  cpSync(moe, run, { recursive: true });
  const logs = fakeLogs(bench, moe, moeModel, run);
  const server = await bench.serve(run, moe);
  const info = await server.json('api/0/info');
  const origin = logs.evals[0].begin;
  const majors = logs.faults.filter((one) => one.isMajor && one.offset !== null);
  const reads = logs.reads.filter((one) => one.kind.startsWith('R') && one.offset !== null);

  for (const [metric, amount] of [
    ['faults', (begin, end) => majors.filter((one) => one.offset >= begin && one.offset < end).length],
    ['disk', (begin, end) => sum(reads, (one) => overlap(one.offset, one.offset + one.bytes, begin, end))],
    ['residency', (begin, end) => residentBytes(logs.samples.at(-1), begin, end) / (end - begin)],
  ]) {
    await bench.fact(`kernel: the map by ${metric} shows what the log holds`, async (t) => {
      const page = await t.page();
      await visit(page, server, `#view=map&map.metric=${metric}`);
      assert.equal(await page.locator('.cover:not([hidden])').count(), 0, 'nothing covers the map');
      const rows = (await saved(page, 'CSV')).slice(1);
      assert.ok(rows.length > 1000, `${rows.length} cells`);
      for (const [, begin, end, value] of rows) {
        const expected = amount(Number(begin), Number(end));
        assert.ok(Math.abs(Number(value) - expected) <= 1e-3 + expected * 1e-4, `bytes ${begin} to ${end}: ${value}, the log has ${expected}`);
      }
      t.note(`${rows.length} cells`);
    });
  }
  await bench.fact('kernel: the cell under the pointer says its faults, and brighter cells have more', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=map&map.metric=faults');
    const rows = (await saved(page, 'CSV')).slice(1).map((row) => Number(row[3]));
    const box = await page.locator('main canvas.overlay').boundingBox();
    // As map.ts places its content.
    const inner = { x: box.x + 84, y: box.y + 30, width: box.width - 84 - 232, height: box.height - 64 };
    const columns = Math.max(8, Math.floor(inner.width / 9));
    const rowsInFile = info.model.size_bytes / (Math.ceil(info.model.size_bytes / rows.length) * columns);
    const shot = decode(await page.screenshot());
    const most = rows.reduce((best, value, at) => (value > rows[best] ? at : best), 0);
    const least = rows.findIndex((value) => value === 0);
    const light = [];
    for (const cell of [most, least]) {
      const x = inner.x + ((cell % columns) + 0.5) * (inner.width / columns);
      const y = inner.y + (Math.floor(cell / columns) + 0.5) * (inner.height / rowsInFile);
      light.push(sum(pixel(shot, x, y), Number));
      await page.mouse.move(x, y);
      await page.waitForFunction((value) => document.querySelector('.tooltip')?.innerText.includes(value), `major page faults per cell\n${rows[cell]}`);
    }
    assert.ok(light[0] > light[1] + 150, `bright ${light[0]}, dark ${light[1]}`);
  });
  await bench.fact('kernel: the map shows the pages of the selected evaluation, or those of now', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=map&map.metric=residency&eval=5');
    for (const [, begin, end, value] of (await saved(page, 'CSV')).slice(1)) {
      const expected = residentBytes(logs.samples[5], Number(begin), Number(end)) / (Number(end) - Number(begin));
      assert.ok(Math.abs(Number(value) - expected) < 1e-3, `bytes ${begin} to ${end}: ${value}, sampled ${expected}`);
    }
    const asked = page.waitForResponse((one) => one.url().includes('metric=residency') && !one.url().includes('at='));
    await page.click('button[data-value=now]');
    await page.waitForFunction(() => location.hash.includes('map.pages=now'));
    await asked;
    await settled(page, 'map');
    const now = (await saved(page, 'CSV')).slice(1).map((row) => Number(row[3]));
    const told = await getRaster(server, `api/0/map?cells=${now.length}&metric=residency`);
    assert.deepEqual(now.map(Math.fround), [...told.values].slice(0, now.length), 'as the kernel says now');
    // Its model was read a moment ago, but for rows of the embedding that no token needed.
    assert.ok(sum(now, Number) > 0.7 * now.length, 'nearly all is in memory');
  });
  await bench.fact('kernel: the timeline marks the faults and reads of the logs; x and r take them away', async (t) => {
    const asked = [];
    const page = await t.page();
    page.on('response', (response) => response.url().includes('/marks?') && asked.push(response));
    await visit(page, server, '#view=timeline');
    const raster = async (of) => decodeRaster(await asked.findLast((one) => one.url().includes(`of=${of}`)).body());
    const duration = info.totals.duration_nanos;
    const inside = majors.filter((one) => one.nanos >= origin && one.nanos - origin <= duration);
    const faults = await raster('faults');
    assert.equal(faults.header.events, inside.length);
    assert.equal(Math.round(sum(faults.values, Number)), inside.length);
    const bytes = sum(reads.filter((one) => one.completed >= origin), (one) => one.bytes);
    assert.equal((await raster('reads')).header.amount, bytes);
    const canvas = page.locator('main canvas.plot:not(.overlay)').last();
    const seen = async () => colours(decode(await canvas.screenshot()));
    const both = await seen();
    assert.ok(both.red > 200 && both.blue > 200, `both kinds are drawn: ${both.red} red, ${both.blue} blue`);
    await page.keyboard.press('x');
    await page.waitForFunction(() => location.hash.includes('timeline.faults=off'));
    await settled(page, 'timeline');
    const readsAlone = await seen();
    assert.ok(readsAlone.red < 60 && readsAlone.blue > 200, `reads alone: ${readsAlone.red} red, ${readsAlone.blue} blue`);
    await page.click('button[data-value=reads]');
    await page.waitForFunction(() => location.hash.includes('timeline.reads=off'));
    await settled(page, 'timeline');
    assert.ok((await seen()).blue < readsAlone.blue / 4, 'no reads');
    t.note(`${inside.length} faults`);
  });
  await bench.fact('kernel: marks follow window and filter', async () => {
    const [from, to] = [logs.evals[10], logs.evals[12]];
    const window = `t0=${from.begin - origin}&t1=${to.end - origin}&w=100&h=50`;
    const count = async (more) => (await getRaster(server, `api/0/marks?of=faults&${window}${more}`)).header.events;
    const within = majors.filter((one) => one.nanos >= from.begin && one.nanos < to.end);
    assert.equal(await count(''), within.length);
    const layer = (one) => tensorAt(info, one.offset)?.layer ?? null;
    assert.equal(await count('&layer=2'), within.filter((one) => layer(one) === 2).length);
    const token = logs.evals[11];
    const ofToken = within.filter((one) => one.nanos >= token.begin && one.nanos <= token.end);
    assert.equal(await count(`&tokens=${token.lastToken}`), ofToken.length);
    assert.ok(ofToken.length > 0);
  });
  await bench.fact('kernel: playback says what is in memory at a token and how many faults it had', async (t) => {
    const page = await t.page();
    for (const number of [3, 20]) {
      await visit(page, server, `#view=playback&eval=${number}&step=60`);
      const { begin, end, lastToken } = logs.evals[number];
      const sample = logs.samples[number];
      const share = residentBytes(sample, 0, logs.modelBytes) / logs.modelBytes;
      const faults = majors.filter((one) => one.nanos >= begin && one.nanos <= end).length;
      const text = (await page.innerText('.play-kernel')).replace(/\s+/g, ' ');
      assert.match(text, new RegExp(`in memory ${(share * 100).toFixed(1)} % at token ${lastToken}; hatched: missing ?${faults} major faults?`), text);
    }
  });
  await bench.fact('kernel: disk shows factors and sizes of the log, and a click filters by the layer', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=disk');
    const bars = await shownBars(page);
    for (const layer of [0, 1, 2, 3, 4, 5, null]) {
      const tensors = info.tensors.filter((one) => one.layer === layer);
      const size = sum(tensors, (one) => one.size_bytes);
      const read = sum(tensors, (tensor) => sum(reads, (one) => overlap(one.offset, one.offset + one.bytes, tensor.begin, tensor.begin + tensor.size_bytes)));
      const faults = majors.filter((one) => tensorAt({ tensors }, one.offset)).length;
      const name = layer === null ? 'no layer' : `layer ${layer}`;
      assert.ok(bars.get(name)?.startsWith(`${(read / size).toFixed(2)}× · `), `${name}: ${bars.get(name)}, the log has ${read / size}`);
      assert.ok(bars.get(name)?.includes(` · ${faults.toLocaleString('en')} faults · `), `${name}: ${bars.get(name)}, the log has ${faults}`);
    }
    for (let power = 14; power < 18; power++) {
      const of = reads.filter((one) => Math.floor(Math.log2(one.bytes)) === power);
      if (of.length) assert.match(bars.get(`from ${2 ** (power - 10)} KiB`) ?? '', new RegExp(` · ${of.length.toLocaleString('en')} requests?$`));
    }
    await page.click('.view-bar-name:text-is("layer 3")');
    await page.waitForFunction(() => /layer=3/.test(location.hash));
    await settled(page, 'disk');
    const filtered = await shownBars(page);
    assert.equal(filtered.get('layer 3'), bars.get('layer 3'));
    assert.equal(filtered.has('layer 2'), false);
    await page.click('.view-bar-name:text-is("layer 3")');
    await page.waitForFunction(() => !/layer=3/.test(location.hash));
    await page.keyboard.press('m');
    await page.waitForFunction(() => location.hash.includes('disk.measure=faults'));
    const rows = (await saved(page, 'CSV')).slice(1);
    assert.equal(rows.filter(([row]) => row === 'tensor').length, info.tensors.length);
  });
  await bench.fact('kernel: a link restores the view of the disk, and i opens it', async (t) => {
    const page = await t.page();
    await visit(page, server, '#run=0&view=disk&layer=1,2&disk.measure=faults');
    assert.equal(new URL(page.url()).hash, '#run=0&view=disk&layer=1,2&disk.measure=faults');
    const before = await page.innerText('main');
    await page.keyboard.press('1');
    await settled(page, 'map');
    await page.keyboard.press('i');
    await settled(page, 'disk');
    assert.equal(await page.innerText('main'), before);
  });
  await bench.fact('kernel: a run without the logs says how to record them, and nothing is asked', async (t) => {
    const page = await t.page();
    const asked = [];
    page.on('request', (request) => asked.push(request.url()));
    await visit(page, server, '#run=1&view=disk');
    assert.match(await page.innerText('main'), /tensorscope record --faults --io --residency/);
    await visit(page, server, '#run=1&view=timeline');
    assert.equal(await page.locator('button[data-value=faults]:visible').count(), 0);
    await visit(page, server, '#run=1&view=playback');
    assert.equal(await page.locator('.play-kernel:visible').count(), 0);
    await visit(page, server, '#run=1&view=map');
    for (const metric of ['faults', 'disk']) assert.ok(await page.isDisabled(`button[data-value=${metric}]`), metric);
    assert.deepEqual(asked.filter((url) => /\/(marks|disk)\b|metric=(faults|disk)|residency&at/.test(url)), []);
  });
}

/** Kernel logs over a copy of a run, from its own tables. */
export function fakeLogs(bench, run, model, copy) {
  const numbers = (rows) => rows.map((row) => row.map(Number));
  const evals = numbers(bench.sql(run, `
    SELECT e.eval, e.begin_nanos, e.end_nanos, MAX(t.token) FROM evals e JOIN tokens t ON t.eval = e.eval GROUP BY 1, 2, 3 ORDER BY 1`))
    .map(([number, begin, end, lastToken]) => ({ eval: number, begin, end, lastToken }));
  const accesses = numbers(bench.sql(run, `
    SELECT a.eval, n.begin_nanos, n.end_nanos, a.file_offset, a.bytes FROM accesses a JOIN nodes n ON a.eval = n.eval AND a.step = n.step
    WHERE a.kind = 'weight' AND a.direction = 'read' AND a.file_offset IS NOT NULL ORDER BY a.eval, a.step, a.file_offset`))
    .map(([number, begin, end, offset, bytes]) => ({ eval: number, begin, end, offset, bytes }));
  return { evals, ...writeKernelLogs(copy, { accesses, evals, modelBytes: statSync(model).size }) };
}

function tensorAt({ tensors }, offset) {
  return tensors.find((one) => offset >= one.begin && offset < one.begin + one.size_bytes);
}

function residentBytes({ bits }, begin, end) {
  let bytes = 0;
  for (let page = Math.floor(begin / PAGE); page * PAGE < end; page++) if (bits[page]) bytes += overlap(page * PAGE, (page + 1) * PAGE, begin, end);
  return bytes;
}

function overlap(a0, a1, b0, b1) {
  return Math.max(0, Math.min(a1, b1) - Math.max(a0, b0));
}

function sum(list, value) {
  let all = 0;
  for (const one of list) all += value(one);
  return all;
}

function pixel({ pixels, width, channels }, x, y) {
  const at = (Math.floor(y) * width + Math.floor(x)) * channels;
  return [...pixels.subarray(at, at + 3)];
}

/** Pixels in the colours of faults and of reads, more or less strong. */
function colours({ pixels, channels }) {
  const found = { red: 0, blue: 0 };
  for (let at = 0; at < pixels.length; at += channels) {
    const [r, g, b] = pixels.subarray(at, at + 3);
    if (r > 140 && g < 110 && b < 90) found.red += 1;
    if (b > 140 && r < 100 && g > 90 && b > g + 30) found.blue += 1;
  }
  return found;
}

/** Bars of the page: name and label. */
async function shownBars(page) {
  const names = await page.locator('main .view-bar-name').allInnerTexts();
  const labels = await page.locator('main .view-bar-label').allInnerTexts();
  return new Map(names.map((name, at) => [name, labels[at]]));
}

async function saved(page, kind) {
  const [download] = await Promise.all([page.waitForEvent('download', { timeout: 10_000 }), page.click(`.exports button:text-is("${kind}")`)]);
  return parseCsv(readFileSync(await download.path(), 'utf8'));
}

async function getRaster(server, path) {
  const response = await fetch(server.address + path);
  assert.equal(response.status, 200, path);
  return decodeRaster(Buffer.from(await response.arrayBuffer()));
}

function decodeRaster(bytes) {
  const length = bytes.readUInt32LE(0);
  const begin = Math.ceil((4 + length) / 4) * 4;
  const values = new Float32Array((bytes.length - begin) / 4);
  for (let at = 0; at < values.length; at++) values[at] = bytes.readFloatLE(begin + 4 * at);
  return { header: JSON.parse(bytes.subarray(4, 4 + length).toString('utf8')), values };
}
