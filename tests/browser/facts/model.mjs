/** A model without a run: its estimate says what `tensorscope estimate` says, its structure is its file. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { idle, settled, visit } from '../chromium.mjs';
import { parseCsv } from '../harness.mjs';
import { ALARM, hostileModel, hostileName, renameInModel } from '../hostile.mjs';
import { look } from '../png.mjs';

/** Of the table: what is measured here would be another number each time. */
const MACHINE = 'H200 SXM 141GB';
const ON_MACHINE = `estimate.machine=${encodeURIComponent(MACHINE)}`;

export async function facts(bench, _server, { moeModel }) {
  const server = await bench.serve(moeModel);
  const estimate = (...flags) => JSON.parse(bench.tensorscope('estimate', moeModel, '--machine', MACHINE, '--json', ...flags));

  for (const scheme of ['dark', 'light']) {
    for (const width of [1280, 700]) {
      await bench.fact(`a model draws its estimate and its structure (${scheme}, ${width} wide)`, async (t) => {
        const page = await t.page({ scheme, size: { width, height: 800 } });
        for (const [view, hash] of [['estimate', `&${ON_MACHINE}&estimate.latency=50ms&estimate.versus=q4_K&estimate.draft=5:0.8`], ['structure', '&structure.layer=2']]) {
          await visit(page, server, `#view=${view}${hash}`);
          assert.deepEqual(await page.locator('.cover:not([hidden]), .view-error').allInnerTexts(), [], `nothing covers ${view}`);
          const picture = await page.screenshot({ path: join(bench.folder, `model-${view}-${scheme}-${width}.png`) });
          const { hues, drawn } = look(picture);
          assert.ok(hues >= 6 && drawn > 0.03, `${view} is not blank: ${hues} hues, ${drawn.toFixed(3)} drawn`);
          const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
          assert.ok(wide <= 0, `${view} is ${wide} pixels too wide`);
        }
      });
    }
  }
  await bench.fact('numbers of a model’s page are those of `tensorscope estimate --json`', async (t) => {
    const page = await t.page();
    for (const [hash, ...flags] of [
      ['estimate.ctx-size=512', '-c', '512'],
      ['estimate.ctx-size=8192&estimate.parallel=4&estimate.memory=20M', '-c', '8192', '--parallel', '4', '--memory', '20M'],
      ['estimate.ctx-size=2048&estimate.cache-type-k=q8_0&estimate.prompt-tokens=100&estimate.ubatch-size=64', '-c', '2048', '--cache-type-k', 'q8_0', '--prompt-tokens', '100', '--ubatch-size', '64'],
    ]) {
      await visit(page, server, `#view=estimate&${ON_MACHINE}&${hash}`);
      assertSame(await shown(page), estimate(...flags));
      // The command that the page shows prints the same.
      const command = await page.innerText('.est-command');
      const printed = execFileSync('sh', ['-c', `${command.replace('tensorscope', `'${bench.program}'`)} --json`], { encoding: 'utf8' });
      assert.deepEqual(JSON.parse(printed), estimate(...flags));
    }
  });
  await bench.fact('draft and another weight type of a model are shown when asked', async (t) => {
    const page = await t.page();
    await visit(page, server, `#view=estimate&${ON_MACHINE}&estimate.ctx-size=512`);
    assert.equal(await page.locator('.view-panel:visible', { hasText: /Speculation|Another weight/ }).count(), 0);
    await page.fill('[aria-label="tokens of a draft"]', '5');
    await page.keyboard.press('Enter');
    await page.selectOption('[aria-label*="weights of another type"]', 'q4_K');
    await page.waitForFunction(() => /estimate.draft=5%3A0.8.*estimate.versus=q4_K/.test(location.hash));
    await settled(page, 'estimate');
    const said = estimate('-c', '512', '--draft', '5:0.8', '--versus', 'q4_K');
    const text = await page.innerText('.est-results');
    assert.ok(text.includes(`${said.draft.speed_up.toFixed(2)}×`), 'the speed-up');
    const cells = (title) => {
      const panel = page.locator('.view-panel:visible', { hasText: title });
      return panel.locator('.est-table tbody tr td:last-child').allInnerTexts();
    };
    assert.deepEqual(await cells('Another weight type'), said.versus.rows.map(({ ratio }) => `${ratio.toFixed(2)}×`));
    const room = said.kv_types.map((one) => one.max_sequences.toLocaleString('en-US'));
    assert.deepEqual(await cells('KV memory, by type'), room);
    assert.equal(await page.locator('.view-panel:visible', { hasText: 'Training' }).count(), 0);
    await page.fill('[aria-label^="Training on so many GPUs"]', '8');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => location.hash.includes('estimate.train=8'));
    await settled(page, 'estimate');
    const { train } = estimate('-c', '512', '--train', '8');
    const speeds = train.best.map((one) => Math.round(one.tokens_per_second).toLocaleString('en-US'));
    assert.deepEqual(await cells('Training'), speeds);
  });
  await bench.fact('the slider of a model’s context moves its numbers, and the last position counts', async (t) => {
    const page = await t.page();
    await visit(page, server, `#view=estimate&${ON_MACHINE}&estimate.parallel=4&estimate.ctx-size=512`);
    const before = await shown(page);
    await page.focus('.est-slider input');
    for (const key of ['ArrowRight', 'ArrowRight', 'ArrowLeft', 'ArrowRight', 'ArrowLeft', 'ArrowLeft', 'ArrowRight']) await page.keyboard.press(key);
    await page.waitForFunction(() => location.hash.includes('estimate.ctx-size=1024'));
    await idle(page);
    const after = await shown(page);
    assert.notEqual(after.context, before.context);
    assertSame(after, estimate('-c', '1024', '--parallel', '4'));
    assert.equal(await page.inputValue('[aria-label^="Context size"]'), '1024');
  });
  await bench.fact('a link restores a model’s page, and the back button takes a change back', async (t) => {
    const [first, second] = [await t.page(), await t.page()];
    const link = `#run=0&view=estimate&estimate.ctx-size=1024&estimate.latency=1ms&${ON_MACHINE}&estimate.parallel=2`;
    await visit(first, server, link);
    assert.equal(new URL(first.url()).hash, link, 'the page keeps the link as it is');
    await first.selectOption('[aria-label="Type of the K cache"]', 'q8_0');
    await first.waitForFunction(() => location.hash.includes('estimate.cache-type-k=q8_0'));
    await settled(first, 'estimate');
    await visit(second, server, new URL(first.url()).hash);
    assert.deepEqual(await shown(second), await shown(first));
    assert.equal(await second.innerText('.est-results'), await first.innerText('.est-results'));
    const changed = await shown(first);
    await first.goBack();
    await first.waitForFunction(() => !location.hash.includes('cache-type-k'));
    await settled(first, 'estimate');
    assert.notDeepEqual(await shown(first), changed);
  });
  await bench.fact('a wrong value is said over a model’s results, and put right there', async (t) => {
    t.expect(/Failed to load resource: the server responded with a status of 400/);
    const page = await t.page();
    await visit(page, server, `#view=estimate&${ON_MACHINE}`);
    await page.fill('[aria-label^="Memory that there is"]', 'plenty');
    await page.keyboard.press('Enter');
    const error = page.locator('.est-error [role=alert]');
    await error.waitFor();
    const text = await error.innerText();
    assert.ok(text.includes('plenty') && !text.includes('\n'), text);
    await page.fill('[aria-label^="Memory that there is"]', '1G');
    await page.keyboard.press('Enter');
    await error.waitFor({ state: 'detached' });
    assert.equal(await page.locator('.is-stale').count(), 0);
    assertSame(await shown(page), estimate('-c', '512', '--memory', '1G'));
    // A link may be wrong, too.
    await visit(page, server, '#view=estimate&estimate.machine=abacus');
    assert.match(await error.innerText(), /abacus/);
  });
  await bench.fact('a way to make a model fit makes it fit', async (t) => {
    const page = await t.page();
    await visit(page, server, `#view=estimate&${ON_MACHINE}&estimate.ctx-size=8192&estimate.parallel=4&estimate.memory=20M`);
    assert.match(await page.innerText('.est-verdict'), /^does not fit: .+ too much$/);
    const ways = page.locator('.est-way');
    const said = estimate('-c', '8192', '--parallel', '4', '--memory', '20M').memory.ways;
    assert.deepEqual(await ways.allInnerTexts(), said.map(({ change }) => change));
    await ways.first().click();
    await page.waitForFunction(() => /^fits with/.test(document.querySelector('.est-verdict')?.textContent ?? ''));
    assert.ok((await page.innerText('.est-command')).includes('--ubatch-size 64'));
  });
  await bench.fact('a model’s structure adds up to the tensors of its file', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=structure');
    const { tensors } = JSON.parse(bench.tensorscope('inspect', moeModel, '--json'));
    const all = tensors.reduce((sum, { size_bytes: bytes }) => sum + bytes, 0);
    const sum = async (selector) => {
      const titles = await page.locator(selector).evaluateAll((cells) => cells.map((cell) => cell.title));
      return titles.reduce((total, title) => total + Number(/([\d,]+) bytes/.exec(title)[1].replaceAll(',', '')), 0);
    };
    assert.equal(await sum('.struct-table td:nth-child(2)'), all, 'layers');
    assert.equal(await sum('.struct-table td:nth-child(n + 3)[title]'), all, 'roles');
    assert.equal(await sum('.view-panel:has-text("By component") .view-bar-label'), all, 'components');
    assert.equal(await sum('.view-panel:has-text("By type") .view-bar-label'), all, 'types');
    const [download] = await Promise.all([page.waitForEvent('download'), page.click('button:has-text("CSV")')]);
    const [head, ...rows] = parseCsv(readFileSync(await download.path(), 'utf8'));
    assert.deepEqual(rows.map((row) => [row[head.indexOf('tensor')], Number(row[head.indexOf('file_offset')])]).sort(), tensors.map((one) => [one.tensor_name, one.file_offset]).sort());
  });
  await bench.fact('a model’s views are saved as PNG, SVG and CSV', async (t) => {
    const page = await t.page();
    for (const view of ['estimate', 'structure']) {
      await visit(page, server, `#view=${view}&${ON_MACHINE}`);
      for (const kind of ['PNG', 'SVG', 'CSV']) {
        const [download] = await Promise.all([page.waitForEvent('download'), page.click(`.exports button:text-is("${kind}")`)]);
        assert.equal(download.suggestedFilename(), `shakespeare-moe.gguf-${view}.${kind.toLowerCase()}`);
        const bytes = readFileSync(await download.path());
        if (kind === 'PNG') assert.ok(look(bytes).colours >= 4, `${view} as PNG shows something`);
        if (kind === 'SVG') assert.match(bytes.toString('utf8'), /^<svg[\s\S]*<\/svg>\s*$/);
        if (kind === 'CSV') assert.ok(parseCsv(bytes.toString('utf8')).length > 50, `${view} as CSV has rows`);
      }
    }
  });
  await bench.fact('a layer of a model is picked by row and by map, and stands in the address', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=structure');
    const map = page.locator('canvas.plot.overlay');
    const before = await map.screenshot();
    await page.click('tr[data-layer="3"] button');
    await page.waitForFunction(() => location.hash.includes('structure.layer=3'));
    await settled(page, 'structure');
    assert.equal(await page.getAttribute('tr[data-layer="3"] button', 'aria-pressed'), 'true');
    const picked = await map.screenshot();
    assert.ok(!picked.equals(before), 'the map shows it');
    const again = await t.page();
    await visit(again, server, new URL(page.url()).hash);
    assert.equal(await again.getAttribute('tr[data-layer="3"] button', 'aria-pressed'), 'true');
    // In the middle of the map lies another layer.
    const box = await map.boundingBox();
    await page.mouse.move(box.x + box.width * 0.3, box.y + box.height * 0.75);
    await page.waitForSelector('.tooltip:not([hidden])');
    const tip = await page.innerText('.tooltip');
    for (const words of ['blk.4', 'type', 'shape', 'size', 'begins at']) assert.ok(tip.includes(words), `${words}: ${tip}`);
    await page.mouse.click(box.x + box.width * 0.3, box.y + box.height * 0.75);
    await page.waitForFunction(() => location.hash.includes('structure.layer=4'));
    await page.keyboard.press('Escape');
    await page.waitForFunction(() => !location.hash.includes('structure.layer'));
  });
  await bench.fact('a model’s page is used with the keyboard alone', async (t) => {
    const page = await t.page();
    await visit(page, server, `#view=estimate&${ON_MACHINE}`);
    const unnamed = await page.locator('main input, main select').evaluateAll((all) => all.filter((one) => !one.getAttribute('aria-label')).length);
    assert.equal(unnamed, 0, 'every control has a name');
    const wanted = await page.locator('.est-controls input:visible, .est-controls select:visible').count();
    await page.focus('.tabs [aria-selected=true]');
    const seen = new Set();
    for (let press = 0; press < wanted + 3; press++) {
      await page.keyboard.press('Tab');
      const name = await page.evaluate(() => (document.activeElement.closest('.est-controls') ? document.activeElement.getAttribute('aria-label') : null));
      if (name) seen.add(name);
    }
    assert.equal(seen.size, wanted, [...seen].join('; '));
    await page.focus('[aria-label^="Sequences"]');
    await page.keyboard.press('ArrowUp');
    await page.waitForFunction(() => location.hash.includes('estimate.parallel=2'));
    await settled(page, 'estimate');
    await page.focus('.tabs [aria-selected=true]');
    await page.keyboard.press('2');
    await settled(page, 'structure');
    await page.keyboard.press('?');
    assert.match(await page.innerText('.help'), /Estimate[\s\S]*Structure/);
    await page.keyboard.press('Escape');
    await page.keyboard.press('o');
    await page.waitForFunction(() => location.hash.includes('structure.order=hilbert'));
    await page.keyboard.press('1');
    await settled(page, 'estimate');
    assert.match(page.url(), /estimate.parallel=2/);
  });
  await bench.fact('a hostile model without a run is shown as text, and nothing of it runs', async (t) => {
    t.isMarked = true;
    // llama.cpp is not asked about a model whose tensors have other names.
    const [named, renamed] = ['named', 'renamed'].map((name) => join(bench.folder, `hostile-${name}.gguf`));
    for (const path of [named, renamed]) hostileModel(moeModel, path);
    renameInModel(renamed);
    const page = await t.page();
    await page.addInitScript((name) => (window[name] = () => (window.wasHit = true)), ALARM);
    for (const [path, hash] of [[named, `#view=estimate&${ON_MACHINE}`], [renamed, '#view=structure'], [renamed, '#view=structure&structure.type=%3Cimg%20src%3Dx%20onerror%3Dh()%3E']]) {
      await visit(page, await bench.serve(path), hash);
      assert.ok((await page.innerText('.title')).includes('<script>h()</script>'), 'its name is text');
      if (path === renamed) {
        const map = await page.locator('canvas.plot.overlay').boundingBox();
        await page.mouse.move(map.x + 300, map.y + 35);
        await page.waitForSelector('.tooltip:not([hidden])');
        assert.ok((await page.innerText('.tooltip')).includes(hostileName('token_embd.weight')), 'its tensors are text');
      }
      assert.equal(await page.evaluate(() => window.wasHit ?? false), false, hash);
    }
  });
}

/** Exact numbers, which stand in titles. */
async function shown(page) {
  const bytes = async (name) => {
    const title = await page.getAttribute(`.view-panel:has-text("Memory") .view-key span:has-text("${name}")`, 'title');
    return Number(title.replace(/[^\d]/g, ''));
  };
  const seconds = await page.locator('.view-figures div[title$=" s"]').evaluateAll((all) => all.map((one) => Number(one.title.slice(0, -2))));
  return {
    weights: await bytes('weights'),
    context: await bytes('KV cache'),
    compute: await bytes('buffers'),
    verdict: await page.innerText('.est-verdict'),
    prompt: seconds[0],
    token: seconds[1],
    batches: await page.innerText('.view-panel:has-text("Tokens a second") .view-definition'),
  };
}

function assertSame(shown, said) {
  assert.deepEqual(
    [shown.weights, shown.context, shown.compute],
    [said.memory.weight_bytes, said.memory.context_bytes, said.memory.compute_bytes],
  );
  assert.deepEqual([shown.prompt, shown.token], [said.prompt.seconds.likely, said.token.seconds.likely]);
  assert.equal(/^fits/.test(shown.verdict), said.memory.fits, shown.verdict);
  if (said.batch.knee_batch !== null) assert.ok(shown.batches.includes(`Beyond ${said.batch.knee_batch} sequences`), shown.batches);
}
