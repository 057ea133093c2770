/**
 * Pictures of the viewer for the documentation:
 * `node screenshots.mjs TENSORSCOPE FOLDER RUN… [--ceilings FILE]`, all that
 * follows the folder as `tensorscope view` takes it.
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { launch, openPage, Server, visit } from './chromium.mjs';
import { packed } from './png.mjs';

const SIZE = { width: 1600, height: 1000 };
/** Documentation is read in a browser: no picture takes longer than its page. */
const MOST_BYTES = 250_000;
/** Name, address, scheme, and where the pointer is. */
const PICTURES = [
  ['map', '#view=map', 'dark', [980, 560]],
  ['map-light', '#view=map&map.order=hilbert', 'light'],
  ['playback', '#view=playback&eval=24&step=101', 'dark'],
  ['timeline', '#view=timeline', 'dark'],
  ['heatmaps', '#view=heatmaps&heatmaps.rows=expert&heatmaps.metric=weight', 'dark', [867, 743]],
  ['heatmaps-light', '#view=heatmaps&heatmaps.rows=tensor', 'light'],
  ['experts', '#view=experts', 'dark'],
  ['memory', '#view=memory', 'light'],
  ['flame', '#view=flame', 'dark'],
];

const [program, folder, ...runs] = process.argv.slice(2);
if (runs.length === 0) {
  console.error('usage: node screenshots.mjs TENSORSCOPE FOLDER RUN… [--ceilings FILE]');
  process.exit(2);
}
mkdirSync(folder, { recursive: true });
const server = await Server.start(program, ['view', '--no-open', ...runs]);
const browser = await launch();
for (const [name, hash, scheme, pointer] of PICTURES) {
  const page = await openPage(browser, { scheme, size: SIZE });
  await visit(page, server, hash);
  if (pointer) await page.mouse.move(...pointer);
  // What the pointer brings up is asked for.
  await page.waitForTimeout(300);
  const taken = await page.screenshot();
  const exact = packed(taken);
  const picture = exact.length <= MOST_BYTES ? exact : packed(taken, 2);
  const path = join(folder, `viewer-${name}.png`);
  writeFileSync(path, picture);
  console.log(`${path}: ${picture.length} bytes${picture.length > MOST_BYTES ? ', TOO LARGE' : ''} ${page.complaints.join('; ')}`);
  if (picture.length > MOST_BYTES || page.complaints.length > 0) process.exitCode = 1;
  await page.context().close();
}
await browser.close();
await server.stop();
