/** The SQL box answers as `tensorscope sql`, and every view can be saved. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { visit } from '../chromium.mjs';
import { parseCsv } from '../harness.mjs';
import { look } from '../png.mjs';
import { VIEWS } from './views.mjs';

export async function facts(bench, server, { moe }) {
  await bench.fact('the SQL box answers as `tensorscope sql`', async (t) => {
    const page = await t.page();
    const query = "SELECT op, COUNT(*) AS executions, MIN(layer) AS first_layer FROM nodes GROUP BY op ORDER BY op";
    await visit(page, server, '#view=table');
    await page.keyboard.press('q');
    await page.keyboard.type(query);
    await page.keyboard.press('Control+Enter');
    await page.waitForFunction(() => / rows in /.test(document.querySelector('.view-sql-message').textContent));
    const shown = await page.locator('main [role=row]:has([role=cell])').evaluateAll((rows) =>
      rows.map((row) => [...row.querySelectorAll('[role=cell]')].map((cell) => cell.innerText.trim())));
    const asked = bench.sql(moe, query).map((row) => row.map((cell) => cell || '–'));
    assert.deepEqual(shown, asked);
    await page.waitForFunction(() => location.hash.includes('table.sql='));
  });
  await bench.fact('a wrong query shows what is wrong', async (t) => {
    t.expect(/Failed to load resource: the server responded with a status of 400/);
    const page = await t.page();
    await visit(page, server, `#view=table&table.rows=sql&table.sql=${encodeURIComponent('SELECT nonsense FROM accesses')}`);
    const message = await page.innerText('.view-sql-message [role=alert]');
    assert.match(message, /nonsense/);
    await page.fill('.view-sql', 'DROP TABLE accesses');
    // Its own refusal, not what is left of the one before; the console must not hear of it later.
    const refused = page.waitForEvent('console', (message) => message.text().includes('status of 400'));
    await page.click('.view-primary');
    await refused;
    await page.waitForFunction(() => {
      const text = document.querySelector('.view-sql-message [role=alert]')?.textContent ?? '';
      return !text.includes('nonsense') && /DROP|DDL|only|not/i.test(text);
    });
    assert.ok(Number(bench.sql(moe, 'SELECT COUNT(*) FROM accesses')[0][0]) > 0);
  });
  for (const view of VIEWS) {
    await bench.fact(`${view} is saved as PNG, SVG and CSV`, async (t) => {
      const page = await t.page();
      await visit(page, server, `#view=${view}`);
      const png = look(await save(page, 'PNG'));
      assert.ok(png.colours >= 4, `the PNG shows something: ${png.colours} colours`);
      const svg = (await save(page, 'SVG')).toString('utf8');
      const parsed = await page.evaluate((text) => {
        const document = new DOMParser().parseFromString(text, 'image/svg+xml');
        return { root: document.documentElement.tagName, error: document.querySelector('parsererror')?.textContent, marks: document.querySelectorAll('*').length };
      }, svg);
      assert.equal(parsed.error, undefined);
      assert.equal(parsed.root, 'svg');
      const rows = parseCsv((await save(page, 'CSV')).toString('utf8'));
      assert.ok(rows.length > 3 && rows[0].length > 1, `${rows.length} rows of ${rows[0]?.length}`);
      t.note(`${parsed.marks} marks, ${rows.length - 1} rows`);
    });
  }
}

async function save(page, kind) {
  const [download] = await Promise.all([page.waitForEvent('download', { timeout: 10_000 }), page.click(`.exports button:text-is("${kind}")`)]);
  assert.match(download.suggestedFilename(), new RegExp(`^moe-\\w+\\.${kind.toLowerCase()}$`));
  return readFileSync(await download.path());
}
