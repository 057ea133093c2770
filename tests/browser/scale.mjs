/**
 * How the viewer holds up on a large run: `node scale.mjs TENSORSCOPE RUN [MOVES [why]]`;
 * with `why`, the requests of every move that missed its bar.
 *
 * Prints the time from navigation to the first view drawn, how long random pans
 * and zooms take from the input event to the frame that shows the answer (its
 * request included), and the memory of tab and server, next to the bars of
 * issue 6. A benchmark, not a test: it needs a generated run and a quiet machine.
 */
import { launch, openPage, rendererBytes, Server, settled } from './chromium.mjs';

const BARS = { paintMillis: 2000, moveMillis: 100, serverBytes: 2e9, tabBytes: 500e6 };
const VIEWS = [
  ['map', '#view=map'],
  ['map, Hilbert', '#view=map&map.order=hilbert'],
  ['timeline', '#view=timeline'],
  ['token × layer', '#view=heatmaps&heatmaps.rows=layer'],
  ['token × tensor', '#view=heatmaps&heatmaps.rows=tensor'],
  ['token × expert', '#view=heatmaps&heatmaps.rows=expert'],
];
/** After an input: long enough for the slowest timer of the page and its request. */
const WATCH_MILLIS = 450;

let seed = 1;
const [program, run, moves = '200', why] = process.argv.slice(2);
if (!run) {
  console.error('usage: node scale.mjs TENSORSCOPE RUN [MOVES [why]]');
  process.exit(2);
}
const begin = performance.now();
const server = await Server.start(program, ['view', '--no-open', run]);
console.log(`server ready after ${((performance.now() - begin) / 1000).toFixed(1)} s, ${mb(server.residentBytes())}`);
const browser = await launch(['--enable-precise-memory-info']);
const page = await openPage(browser, { size: { width: 1600, height: 1000 } });
await page.addInitScript(watchFrames);
const info = await server.json('api/0/info');
console.log(`${info.totals.accesses.toLocaleString('en')} accesses, ${info.totals.tokens.toLocaleString('en')} tokens, ${info.tensors.length} weights, ${info.experts} experts`);

const views = VIEWS.filter(([name]) => name !== 'token × expert' || info.experts > 0);
const paints = [];
for (const [name, hash] of views) {
  await page.goto('about:blank');
  await page.goto(server.address + hash);
  await settled(page, new URLSearchParams(hash.slice(1)).get('view'));
  const paint = await page.evaluate(() => window.watch.painted);
  paints.push(paint);
  console.log(`first paint of ${name.padEnd(15)} ${paint.toFixed(0).padStart(6)} ms`);
}
row('first meaningful paint, first load', paints[0], BARS.paintMillis, 'ms');
row('first meaningful paint, slowest view', Math.max(...paints), BARS.paintMillis, 'ms');

const answers = [];
const frames = [];
for (const [name, hash] of views) {
  await page.goto('about:blank');
  await page.goto(server.address + hash);
  await settled(page, new URLSearchParams(hash.slice(1)).get('view'));
  const own = [];
  for (let at = 0; at < Math.ceil(Number(moves) / views.length); at++) {
    const took = await measured(() => move(at));
    if (!took) continue;
    own.push(took.answer);
    if (took.answer > BARS.moveMillis && why) console.log(`  ${took.answer.toFixed(0)} ms: ${took.requests.join('; ')}`);
    frames.push(took.frame);
  }
  answers.push(...own);
  console.log(`${name.padEnd(15)} ${own.length} moves: answered in ${quantile(own, 0.5).toFixed(0)} ms median, ${quantile(own, 0.95).toFixed(0)} ms p95, ${Math.max(...own).toFixed(0)} ms at most`);
}
row('next frame after a move, p95', quantile(frames, 0.95), BARS.moveMillis, 'ms');
row('move answered from the server, p95', quantile(answers, 0.95), BARS.moveMillis, 'ms');
row('server, resident', server.residentBytes(), BARS.serverBytes, 'MB');
const session = await page.context().newCDPSession(page);
await session.send('Performance.enable');
const { metrics } = await session.send('Performance.getMetrics');
const heap = metrics.find((metric) => metric.name === 'JSHeapUsedSize').value;
row('tab, JavaScript heap', heap, BARS.tabBytes, 'MB');
row('tab, resident (the whole renderer process)', rendererBytes(), BARS.tabBytes, 'MB');
if (page.complaints.length) console.log(page.complaints.join('\n'));
await browser.close();
await server.stop();

/** A random pan or zoom, by wheel, keys or a drag. */
async function move(at) {
  const box = await page.locator('main canvas').last().boundingBox();
  const x = box.x + box.width * (0.25 + 0.5 * random());
  const y = box.y + box.height * (0.25 + 0.5 * random());
  await page.mouse.move(x, y);
  const kind = at % 5;
  await page.evaluate(() => window.watch.begin());
  if (kind === 0 || kind === 1) await page.mouse.wheel(0, -120 - 400 * random());
  else if (kind === 2) await page.mouse.wheel(0, 80 + 200 * random());
  else if (kind === 3) await page.keyboard.press(random() < 0.5 ? 'ArrowLeft' : 'ArrowRight');
  else {
    await page.mouse.down();
    await page.mouse.move(x + 300 * (random() - 0.5), y + 100 * (random() - 0.5), { steps: 3 });
    await page.mouse.up();
  }
}

async function measured(act) {
  await act();
  await page.waitForTimeout(WATCH_MILLIS);
  return page.evaluate(() => window.watch.end());
}

/** Runs in the page: when inputs come, when frames of the application end, when answers arrive. */
function watchFrames() {
  const frames = [];
  let input = 0;
  const ask = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (callback) => ask((now) => {
    callback(now);
    frames.push(performance.now());
  });
  const seen = (event) => { input = event.timeStamp; };
  for (const kind of ['wheel', 'keydown', 'pointermove']) addEventListener(kind, seen, { capture: true, passive: true });
  performance.setResourceTimingBufferSize(100_000);
  window.watch = {
    painted: 0,
    begin() {
      input = 0;
      frames.length = 0;
    },
    end() {
      if (!input) return null;
      const asked = performance.getEntriesByType('resource').filter((entry) => entry.startTime >= input);
      const ends = asked.map((entry) => entry.responseEnd);
      const after = (time) => frames.find((frame) => frame > time);
      const frame = after(input);
      if (frame === undefined) return null;
      const answer = ends.length ? (after(Math.max(...ends)) ?? Math.max(...ends)) : frame;
      const requests = asked.map((entry) => {
        const { pathname, search } = new URL(entry.name);
        return `${pathname.split('/').slice(4).join('/')}${search} +${(entry.startTime - input).toFixed(0)} ms for ${entry.duration.toFixed(0)} ms`;
      });
      return { frame: frame - input, answer: answer - input, requests };
    },
  };
  const drawn = () => {
    if (!document.querySelector('main')?.dataset.view) return setTimeout(drawn, 5);
    // The view has its answer; the frame after next shows it.
    ask(() => ask(() => { window.watch.painted = performance.now(); }));
  };
  drawn();
}

/** The same moves every time. */
function random() {
  seed = (seed * 48271) % 2147483647;
  return seed / 2147483647;
}

function quantile(values, share) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? NaN;
}

function mb(bytes) {
  return `${Math.round(bytes / 1e6)} MB`;
}

function row(name, value, bar, unit) {
  const show = (one) => (unit === 'MB' ? mb(one) : `${Math.round(one)} ms`);
  console.log(`${value <= bar ? 'ok ' : 'BAD'} ${name.padEnd(44)} ${show(value).padStart(10)}   bar ${show(bar)}`);
}
