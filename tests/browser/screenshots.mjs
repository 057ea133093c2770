/**
 * Pictures of the viewer for the documentation:
 * `node screenshots.mjs TENSORSCOPE RUN FOLDER [NAME…]`.
 */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { idle, launch, openPage, Server, visit } from './chromium.mjs';

const SIZE = { width: 1600, height: 1000 };
/** Name, address, scheme, and what to do once it is drawn. */
const PICTURES = [
  ['map', '#view=map', 'dark', (page) => page.mouse.move(760, 420)],
  ['map-light', '#view=map', 'light'],
  ['playback', '#view=playback&eval=24&step=70', 'dark'],
  ['timeline', '#view=timeline', 'dark'],
  ['heatmaps', '#view=heatmaps&heatmaps.rows=expert', 'dark', (page) => page.mouse.move(700, 500)],
  ['heatmaps-light', '#view=heatmaps&heatmaps.rows=tensor', 'light'],
  ['experts', '#view=experts', 'dark'],
  ['attention', '#view=attention', 'dark'],
  ['memory', '#view=memory', 'light'],
  ['flame', '#view=flame', 'dark'],
  ['table', '#view=table&table.rows=tensor', 'dark'],
  ['compare', '#view=compare', 'dark'],
];

const [program, run, folder, ...names] = process.argv.slice(2);
if (!folder) {
  console.error('usage: node screenshots.mjs TENSORSCOPE RUN[,RUN] FOLDER [NAME…]');
  process.exit(2);
}
mkdirSync(folder, { recursive: true });
const server = await Server.start(program, ['view', '--no-open', ...run.split(',')]);
const browser = await launch();
for (const [name, hash, scheme, act] of PICTURES) {
  if (names.length > 0 && !names.includes(name)) continue;
  const page = await openPage(browser, { scheme, size: SIZE });
  await visit(page, server, hash);
  await idle(page);
  await act?.(page);
  await page.waitForTimeout(100);
  const path = join(folder, `viewer-${name}.png`);
  await page.screenshot({ path });
  console.log(path, page.complaints.join('; '));
  await page.context().close();
}
await browser.close();
await server.stop();
