/** Panning the biggest heatmap is smooth: frames per second, next to a page that draws next to nothing. */
import assert from 'node:assert/strict';
import { visit } from '../chromium.mjs';

const LEAST_FRAMES = 50;
/** Of the control page's rate: on a busy machine no page reaches 50. */
const LEAST_SHARE = 0.8;
const SECONDS = 2;

export async function facts(bench, server) {
  await bench.fact('panning the biggest heatmap is smooth', async (t) => {
    const page = await t.page({ size: { width: 1600, height: 1000 } });
    const control = await t.page({ size: { width: 1600, height: 1000 }, locale: 'en-CA' });
    await control.goto('about:blank');
    await control.setContent('<canvas width=1600 height=1000></canvas>');
    await visit(page, server, '#run=3&view=heatmaps&heatmaps.rows=tensor&heatmaps.x=20-120');
    // One after the other, twice: what else the machine does falls on both.
    const rates = { page: [], control: [] };
    for (let round = 0; round < 2; round++) {
      await control.bringToFront();
      rates.control.push(await rate(control, false));
      await page.bringToFront();
      rates.page.push(await rate(page, true));
    }
    const [own, other] = [Math.max(...rates.page), Math.max(...rates.control)];
    t.note(`${own.toFixed(1)} frames/s, control page ${other.toFixed(1)}`);
    assert.ok(own >= LEAST_FRAMES || own >= LEAST_SHARE * other, `${own.toFixed(1)} frames/s; the control page has ${other.toFixed(1)}`);
  });
}

/** Frames per second, while the pointer drags the plot to and fro if there is one. */
async function rate(page, drags) {
  const counted = page.evaluate((seconds) => new Promise((resolve) => {
    const canvas = document.querySelector('canvas');
    // The viewer has its own canvas and a title; the control page has neither.
    const pen = document.title ? null : canvas.getContext('2d');
    let frames = 0;
    const begin = performance.now();
    const frame = (now) => {
      frames += 1;
      if (pen) pen.fillRect(frames % 1000, 10, 20, 20);
      if (now - begin < seconds * 1000) requestAnimationFrame(frame);
      else resolve(frames / ((now - begin) / 1000));
    };
    requestAnimationFrame(frame);
  }), SECONDS);
  if (drags) {
    await page.mouse.move(800, 500);
    await page.mouse.down();
    const end = performance.now() + SECONDS * 1000;
    for (let at = 0; performance.now() < end; at++) await page.mouse.move(800 + 250 * Math.sin(at / 20), 500);
    await page.mouse.up();
  }
  return counted;
}
