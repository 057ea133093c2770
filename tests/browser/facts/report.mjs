/** The HTML report: one file that opens by itself, at once. */
import assert from 'node:assert/strict';
import { statSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { look } from '../png.mjs';

const MOST_BYTES = 5e6;
/** The bar is one second; machines that test are busy with other things. */
const MOST_MILLIS = 3000;

export async function facts(bench, server, { long, dense }) {
  const reports = Object.entries({ long, dense }).map(([name, run]) => {
    const path = join(bench.folder, `${name}.html`);
    bench.tensorscope('report', run, '--html', '-o', path);
    return [name, path];
  });
  await bench.fact('the report of 10^5 accesses is at most 5 MB', async (t) => {
    const [[accesses]] = bench.sql(long, 'SELECT COUNT(*) FROM accesses');
    assert.ok(Number(accesses) >= 1e5, `${accesses} accesses`);
    const { size } = statSync(reports[0][1]);
    t.note(`${Number(accesses).toLocaleString('en')} accesses, ${(size / 1e6).toFixed(2)} MB`);
    assert.ok(size <= MOST_BYTES, `${size} bytes`);
  });
  for (const [name, path] of reports) {
    for (const scheme of ['dark', 'light']) {
      await bench.fact(`the ${name} report opens from file:// at once (${scheme})`, async (t) => {
        t.isMarked = true;
        const page = await t.page({ scheme, locale: 'de-DE' });
        const asked = [];
        page.on('request', (request) => asked.push(request.url()));
        await page.goto(pathToFileURL(path).href, { waitUntil: 'load' });
        const { ready, loaded } = await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => {
          const [entry] = performance.getEntriesByType('navigation');
          resolve({ ready: entry.domContentLoadedEventEnd, loaded: performance.now() });
        }))));
        t.note(`ready after ${ready.toFixed(0)} ms, painted after ${loaded.toFixed(0)} ms`);
        assert.ok(ready <= MOST_MILLIS, `ready after ${ready} ms`);
        assert.deepEqual(asked.filter((url) => !url.startsWith('data:')), [pathToFileURL(path).href], 'it is one file');
        const plots = await page.evaluate(() => [...document.querySelectorAll('svg, canvas, img')].filter((one) => one.getBoundingClientRect().width > 200).length);
        assert.ok(plots >= 8, `${plots} plots`);
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth + 1), 'nothing lies beside the page');
        const seen = look(await page.screenshot());
        assert.ok(seen.colours > 50, `${seen.colours} colours`);
        const colour = await page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number));
        const isDark = colour.slice(0, 3).every((part) => part < 80) && colour[3] !== 0;
        assert.equal(isDark, scheme === 'dark', `background ${colour}`);
      });
    }
  }
}
