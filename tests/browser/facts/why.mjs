/** Why: stacks that add up, causes as `diagnose` ranks them, and what was not recorded. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { settled, visit } from '../chromium.mjs';
import { parseCsv } from '../harness.mjs';
import { look } from '../png.mjs';

/** The demo run was recorded without --cpu. */
export async function facts(bench, server, { moe, moeModel }) {
  const why = await server.json('api/0/why');
  const report = join(bench.folder, 'why.html');
  bench.tensorscope('report', moe, '--html', '-o', report);

  for (const scheme of ['dark', 'light']) {
    await bench.fact(`why draws the demo run (${scheme})`, async (t) => {
      const page = await t.page({ scheme });
      await visit(page, server, '#view=why');
      assert.deepEqual(await page.locator('.cover:not([hidden]), .view-error').allInnerTexts(), []);
      const { drawn } = look(await page.locator('main').screenshot());
      assert.ok(drawn > 0.02, `it is not blank: ${drawn.toFixed(3)} drawn`);
      const [red] = (await page.evaluate(() => getComputedStyle(document.body).backgroundColor)).match(/\d+/g).map(Number);
      assert.ok(scheme === 'dark' ? red < 80 : red > 180, `${red}`);
    });
  }
  await bench.fact('why: the stack of each phase adds up to 100 %, on the screen and in numbers', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=why');
    assert.deepEqual(await page.locator('.why-stacks .view-bar-name').allInnerTexts(), why.phases.map((phase) => phase.name));
    const tracks = await page.locator('.why-stacks .view-track').evaluateAll((all) =>
      all.map((track) => [...track.children].reduce((sum, part) => sum + parseFloat(part.style.width), 0)));
    assert.ok(tracks.length >= 2, `${tracks.length} stacks`);
    for (const width of tracks) assert.ok(Math.abs(width - 100) < 0.01, `${width} % wide`);
    for (const [at] of why.phases.entries()) {
      const cells = await page.locator(`.why-parts tbody td:nth-child(${2 + 2 * at})`).allInnerTexts();
      const sum = cells.filter((cell) => cell !== '–').reduce((all, cell) => all + parseFloat(cell), 0);
      // Each is rounded to a tenth.
      assert.ok(Math.abs(sum - 100) <= 0.06 * cells.length, `${cells.join(' + ')} = ${sum}`);
    }
  });
  await bench.fact('why: causes stand as `diagnose` ranks them, the first with its title, action and gain', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=why');
    const shown = await page.locator('.why-title').allInnerTexts();
    assert.deepEqual(shown, why.causes.map((cause) => cause.title));
    const text = await page.innerText('main');
    const [first] = why.causes;
    t.note(first ? `${why.causes.length} causes: ${first.title}` : 'no cause');
    if (!first) return assert.match(text, /No cause found/);
    const card = await page.locator('.why-cause').first().innerText();
    for (const words of [first.title, `${first.phase}, `]) assert.ok(card.includes(words), `${words} in ${card}`);
    if (first.action && !first.action.includes('`')) assert.ok(card.includes(first.action), first.action);
    if (first.gain_percent !== null) assert.match(card, /[+-]\d+ % speed expected \([+-]\d+ to [+-]\d+ %\)/);
  });
  await bench.fact('why: a run without --cpu says what is missing and how to record it', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=why');
    assert.match(await page.innerText('.why-missing'), /record with --cpu/);
    assert.ok(why.missing.length > 0);
    const lacking = await page.locator('.why-lacking li').count();
    assert.equal(lacking, why.not_evaluated.length);
    t.note(`${lacking} rules lack an input`);
  });
  await bench.fact('why: w opens it, the phase of the filter picks a stack, a link restores both', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=map');
    await page.keyboard.press('w');
    await settled(page, 'why');
    await page.click('.filterbar button[data-value=generate]');
    await page.waitForFunction(() => location.hash.includes('phase=generate'));
    await settled(page, 'why');
    assert.deepEqual(await page.locator('.why-stacks .view-bar-name').allInnerTexts(), ['generate']);
    const text = await page.innerText('main');
    await visit(page, server, new URL(page.url()).hash);
    assert.equal(await page.innerText('main'), text);
  });
  await bench.fact('why: evidence opens by click and by key, and its query runs in the table', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=why');
    if (why.causes.length === 0) return t.note('no cause, no evidence');
    assert.equal(await page.locator('.why-evidence:visible').count(), 0);
    await page.locator('.why-fold').first().click();
    await page.waitForFunction(() => location.hash.includes('why.open='));
    assert.equal(await page.locator('.why-evidence:visible').count(), 1);
    // Closed again: where it is the only one, all are open, and the key closes them.
    await page.locator('.why-fold').first().click();
    await page.waitForFunction(() => !location.hash.includes('why.open='));
    await page.locator('main h2').first().click();
    await page.keyboard.press('e');
    await page.waitForFunction(() => location.hash.includes('why.open=all'));
    await settled(page, 'why');
    assert.equal(await page.locator('.why-evidence:visible').count(), why.causes.length);
    const asks = page.locator('.why-query:visible');
    if ((await asks.count()) === 0) return t.note('no query');
    const query = await asks.first().locator('code').innerText();
    await asks.first().locator('button:text-is("show in Table")').click();
    await settled(page, 'table');
    await page.waitForFunction(() => / rows in /.test(document.querySelector('.view-sql-message').textContent));
    assert.equal(await page.inputValue('.view-sql'), query);
    assert.ok(bench.sql(moe, query).length >= 1, 'the program answers it, too');
  });
  await bench.fact('why: what is shown is saved as PNG, SVG and CSV', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=why');
    const png = look(await saved(page, 'PNG'));
    assert.ok(png.colours >= 4, `${png.colours} colours`);
    assert.match((await saved(page, 'SVG')).toString('utf8'), /^<svg|^<\?xml/);
    const rows = parseCsv((await saved(page, 'CSV')).toString('utf8')).slice(1);
    const parts = rows.filter(([row, phase]) => row === 'part' && phase === 'generate');
    const sum = parts.reduce((all, row) => all + Number(row[4]), 0);
    assert.ok(Math.abs(sum - 1) < 1e-6, `the parts of generate are ${sum}`);
    assert.equal(rows.filter(([row]) => row === 'cause').length, why.causes.length);
  });
  await bench.fact('why: without measured ceilings the roofline says how to get them', async (t) => {
    assert.equal(await server.json('api/0/roofline'), null);
    const page = await t.page();
    await visit(page, server, '#view=why');
    assert.match(await page.innerText('main'), /tensorscope diagnose RUN/);
    assert.equal(await page.locator('.why-roofline canvas:visible').count(), 0);
  });
  await roofline(bench, moe, moeModel);
  await bench.fact('why: the report says the same, in the same colours', async (t) => {
    const { diagnosis } = JSON.parse(bench.tensorscope('report', moe, '--json'));
    assert.deepEqual(diagnosis.phases, why.phases);
    const page = await t.page({ scheme: 'light' });
    await visit(page, server, '#view=why');
    const seen = await page.locator('.why-stacks .view-part').evaluateAll((parts) => parts.map((part) => getComputedStyle(part).backgroundColor));
    await page.goto(pathToFileURL(report).href);
    const section = page.locator('#why');
    const filled = await section.locator('.stack rect').evaluateAll((parts) => parts.map((part) => getComputedStyle(part).fill));
    assert.deepEqual(filled, seen);
    const titles = await section.locator('.causes .cause').allInnerTexts();
    assert.deepEqual(titles.map((title) => title.toLowerCase().split(' generate, ')[0].split(' prompt, ')[0]), why.causes.map((cause) => cause.title.toLowerCase()));
  });
}

/** The same run, by a server that was told what this machine gives. */
async function roofline(bench, moe, model) {
  const ceilings = join(bench.folder, 'ceilings.json');
  bench.tensorscope('bench', 'ceilings', '-m', model, '-o', ceilings);
  const server = await bench.serve(moe, '--ceilings', ceilings);
  const chart = await server.json('api/0/roofline');
  await bench.fact('why: the roofline draws every class below its roofs, and a pointer reads one', async (t) => {
    assert.ok(chart.memory.length >= 1 && chart.compute.length >= 1 && chart.points.length >= 5, JSON.stringify(chart).slice(0, 200));
    const page = await t.page();
    await visit(page, server, '#view=why');
    const canvas = page.locator('.why-roofline canvas');
    await canvas.scrollIntoViewIfNeeded();
    const { colours, drawn } = look(await canvas.screenshot());
    assert.ok(colours >= 6 && drawn > 0.02, `${colours} colours, ${drawn.toFixed(3)} drawn`);
    const rows = await page.locator('.why-classes tbody th').allInnerTexts();
    assert.deepEqual(rows, chart.points.slice(0, rows.length).map((point) => point.name));
    // Somewhere on the picture is a point: the pointer goes over it in a grid.
    const box = await canvas.boundingBox();
    let said = '';
    for (let x = 70; x < box.width && !said; x += 6) {
      for (let y = 20; y < box.height - 40 && !said; y += 6) {
        await page.mouse.move(box.x + x, box.y + y);
        said = await page.locator('.tooltip:visible').allInnerTexts().then((all) => all.join(''));
      }
    }
    assert.match(said, /of the roof/);
    assert.ok(chart.points.some((point) => said.includes(point.name)), said);
  });
  await bench.fact('why: phase and tokens at once choose classes of the roofline, a link keeps the choice, CSV has it', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=why&phase=generate');
    const phases = await page.locator('.why-classes tbody td:nth-child(2)').allInnerTexts();
    assert.ok(phases.length > 0 && phases.every((phase) => phase === 'generate'), phases.join());
    await visit(page, server, '#view=why');
    const batch = Math.max(...chart.points.map((point) => point.batch));
    await page.click(`.why-roofline .segmented button[data-value="${batch}"]`);
    await page.waitForFunction(() => location.hash.includes('why.batch='));
    await settled(page, 'why');
    const expect = chart.points.filter((point) => point.batch === batch).map((point) => point.name);
    assert.deepEqual(await page.locator('.why-classes tbody th').allInnerTexts(), expect.slice(0, 24));
    await visit(page, server, new URL(page.url()).hash);
    assert.deepEqual(await page.locator('.why-classes tbody th').allInnerTexts(), expect.slice(0, 24));
    const rows = parseCsv((await saved(page, 'CSV')).toString('utf8'));
    assert.equal(rows.filter(([row]) => row === 'roofline').length, expect.length);
    assert.ok(rows.every((row) => row.length === rows[0].length));
  });
}

async function saved(page, kind) {
  const [download] = await Promise.all([page.waitForEvent('download', { timeout: 10_000 }), page.click(`.exports button:text-is("${kind}")`)]);
  return readFileSync(await download.path());
}
