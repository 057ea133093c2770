/**
 * What must hold of the viewer and the HTML report, in a real browser:
 * `node facts.mjs TENSORSCOPE FOLDER [WORDS]`. FOLDER must not hold anything
 * yet; WORDS chooses the facts that contain them.
 */
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Bench } from './harness.mjs';
import * as dense from './facts/dense.mjs';
import * as devices from './facts/devices.mjs';
import * as exporting from './facts/exporting.mjs';
import * as filters from './facts/filters.mjs';
import * as kernel from './facts/kernel.mjs';
import * as keyboard from './facts/keyboard.mjs';
import * as links from './facts/links.mjs';
import * as live from './facts/live.mjs';
import * as model from './facts/model.mjs';
import * as report from './facts/report.mjs';
import * as security from './facts/security.mjs';
import * as speed from './facts/speed.mjs';
import * as views from './facts/views.mjs';
import * as why from './facts/why.mjs';

const [program, folder, wanted] = process.argv.slice(2);
if (!folder) {
  console.error('usage: node facts.mjs TENSORSCOPE FOLDER [WORDS]');
  process.exit(2);
}
const models = join(fileURLToPath(new URL('.', import.meta.url)), '../../models');
const moeModel = join(models, 'shakespeare-moe.gguf');
const bench = new Bench(resolve(program), resolve(folder), wanted);
const runs = {
  moeModel,
  moe: bench.record('moe', '-m', moeModel, '-p', 'ROMEO:\n', '-n', '48'),
  dense: bench.record('dense', '-m', join(models, 'shakespeare-dense.gguf'), '-p', 'ROMEO:\n', '-n', '48'),
  // As the moe run, with another prompt.
  other: bench.record('other', '-m', moeModel, '-p', 'First Citizen:\nBefore we proceed', '-n', '48'),
  // Some 10^5 accesses.
  long: bench.record('long', '-m', moeModel, '-p', 'ROMEO:\n', '-n', '210', '--ignore-eos'),
};
await bench.start();
const server = await bench.serve(runs.moe, runs.dense, runs.other, runs.long);
for (const section of [views, dense, devices, filters, links, keyboard, exporting, why, kernel, security, report, model, speed, live]) {
  await section.facts(bench, server, runs);
}
await bench.end();
if (bench.late.length) console.log(`    at the second try: ${bench.late.filter((fact) => !bench.failed.includes(fact)).join('; ')}`);
console.log(`    ${bench.passed} facts hold${bench.failed.length ? `, ${bench.failed.length} do not: ${bench.failed.join('; ')}` : ''}`);
process.exitCode = bench.failed.length || !bench.passed ? 1 : 0;
