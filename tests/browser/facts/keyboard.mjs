/** Everything that the mouse does, keys do. */
import assert from 'node:assert/strict';
import { settled, visit } from '../chromium.mjs';
import { VIEWS } from './views.mjs';

export async function facts(bench, server) {
  await bench.fact('keys 1 to 9 and 0 open the views', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=flame');
    for (const [at, view] of VIEWS.entries()) {
      await page.keyboard.press(String((at + 1) % 10));
      await settled(page, view);
      assert.equal(await page.getAttribute(`[role=tab][data-view=${view}]`, 'aria-selected'), 'true', view);
    }
  });
  await bench.fact('Space plays and pauses, arrows step by node and by token', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=playback&eval=3&step=10');
    const place = async () => {
      // The address follows at most five times a second.
      await page.waitForTimeout(300);
      const state = new URLSearchParams(new URL(page.url()).hash.slice(1));
      return [Number(state.get('eval')), Number(state.get('step'))];
    };
    await page.keyboard.press('ArrowRight');
    assert.deepEqual(await place(), [3, 11]);
    await page.keyboard.press('ArrowLeft');
    await page.keyboard.press('ArrowLeft');
    assert.deepEqual(await place(), [3, 9]);
    await page.keyboard.press('Shift+ArrowRight');
    assert.deepEqual(await place(), [4, 0]);
    await page.keyboard.press('End');
    assert.deepEqual(await place(), [47, 0]);
    await page.keyboard.press('Home');
    assert.deepEqual(await place(), [0, 0]);
    await page.keyboard.press(' ');
    await page.waitForFunction(() => /pause/.test(document.querySelector('.play').textContent));
    await page.waitForFunction(() => Number(document.querySelector('.scrub input[aria-label=token]').value) >= 1);
    await page.keyboard.press(' ');
    await page.waitForFunction(() => /▶/.test(document.querySelector('.play').textContent));
    const stopped = await place();
    assert.deepEqual(await place(), stopped, 'paused means that nothing moves');
  });
  await bench.fact('arrows, + and − move and zoom a plot', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=timeline');
    for (const key of ['+', '+', 'ArrowRight']) await page.keyboard.press(key);
    await page.waitForFunction(() => /[#&]t=\d+-\d+/.test(location.hash));
    await page.keyboard.press('Home');
    await page.waitForFunction(() => !/[#&]t=\d+-\d+/.test(location.hash));
  });
  await bench.fact('? shows the keys and Esc closes them', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=playback');
    await page.keyboard.press('?');
    await page.waitForSelector('[role=dialog]:visible');
    const text = await page.innerText('[role=dialog]');
    for (const words of ['Views', 'Compare', 'play or pause', 'clear the filter']) assert.ok(text.includes(words), words);
    await page.keyboard.press('Escape');
    assert.equal(await page.locator('[role=dialog]:visible').count(), 0);
  });
  await bench.fact('/ begins a filter, Enter sets it, Esc clears it', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=table');
    await page.keyboard.press('/');
    await page.keyboard.type('3-20');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => location.hash.includes('tokens=3-20'));
    // The first leaves the box, the second clears the filter.
    await page.keyboard.press('Escape');
    await page.keyboard.press('Escape');
    await page.waitForFunction(() => !location.hash.includes('tokens'));
  });
  await bench.fact('menus of the filter bar work without a mouse', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=table');
    await page.focus('[data-filter=expert]');
    await page.keyboard.press('Enter');
    await page.keyboard.press('ArrowDown');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => location.hash.includes('expert=1'));
    await page.keyboard.press('Escape');
    assert.equal(await page.evaluate(() => document.activeElement.dataset.filter), 'expert', 'the focus is back on the button');
  });
  await bench.fact('t changes the theme, and the next page remembers it', async (t) => {
    t.isMarked = true;
    const page = await t.page({ scheme: 'dark', locale: 'en-GB' });
    await visit(page, server, '#view=map');
    await page.keyboard.press('t');
    await page.waitForFunction(() => document.documentElement.dataset.theme === 'light');
    await visit(page, server, '#view=map');
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), 'light');
  });
}
