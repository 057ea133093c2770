/** `record --live`: the page grows while the program runs, and is whole at the end. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { Server, settled } from '../chromium.mjs';

/** Enough that the page sees it grow: some seconds on a small machine. */
const TOKENS = 4000;

/** A fact that did not hold is looked at again: into a folder of its own. */
let attempts = 0;

export async function facts(bench, _server, { moeModel }) {
  await bench.fact('a live run grows in the page and becomes complete', async (t) => {
    t.isMarked = true;
    attempts += 1;
    const folder = join(bench.folder, `live-${attempts}`);
    const page = await t.page({ locale: 'en-AU' });
    const live = await Server.start(bench.program, [
      'record', '-m', moeModel, '-p', 'ROMEO:\n', '-n', String(TOKENS), '-c', String(TOKENS + 16), '--ignore-eos', '-t', '1',
      '-o', folder, '--live',
    ]);
    try {
      await page.goto(`${live.address}#view=heatmaps`);
      await settled(page, 'heatmaps');
      const seen = [];
      const tokens = async () => Number(/([\d,]+) tokens/.exec(await page.innerText('.status-summary'))?.[1].replaceAll(',', '') ?? 0);
      const isLive = () => page.isVisible('button.live');
      assert.ok(await isLive(), 'the page says that the run is live');
      while (await isLive()) {
        const now = await tokens();
        if (now > (seen.at(-1) ?? 0)) seen.push(now);
        await page.waitForTimeout(100);
      }
      const { totals, live: still } = await live.json('api/0/info');
      assert.equal(still, false);
      assert.ok(seen.length >= 1 && seen[0] < totals.tokens, `the page saw ${seen.join(', ')} of ${totals.tokens} tokens while it was live`);
      await page.waitForFunction((all) => document.querySelector('.status-summary').textContent.startsWith(`${all} tokens`), totals.tokens.toLocaleString('en'));
      t.note(`${seen.length} sizes seen, ${totals.tokens} tokens in the end`);
      const [[counted]] = bench.sql(folder, 'SELECT COUNT(*) FROM tokens');
      assert.equal(Number(counted), totals.tokens);
      // Before it finds its server gone.
      await page.goto('about:blank');
    } finally {
      await live.stop();
    }
  });
}
