/**
 * Debian's Chromium, driven by playwright-core, and the programs it talks to.
 *
 * Nothing here downloads a browser, and a page that asks for anything outside
 * loopback is refused and remembered.
 */
import { spawn } from 'node:child_process';
import { readFileSync, readdirSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { chromium } from 'playwright-core';

const EXECUTABLE = '/usr/bin/chromium';
/** A bundle to look at instead of the one in the program, which takes minutes to build. */
const BUNDLE = process.env.TENSORSCOPE_WEB_OUT && resolve(process.env.TENSORSCOPE_WEB_OUT);
const FLAGS = [
  // In CI we are root, and Chromium refuses to sandbox root.
  '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
  // Of itself the browser calls home: the machine has no way out, and no test should find one.
  '--disable-background-networking', '--disable-component-update', '--disable-sync',
];

export function launch(more = []) {
  return chromium.launch({ executablePath: EXECUTABLE, headless: true, args: [...FLAGS, ...more] });
}

/** A page that remembers what nobody should see: errors, warnings, and requests to others. */
export async function openPage(browser, { scheme = 'dark', size = { width: 1280, height: 800 }, ...more } = {}) {
  const context = await browser.newContext({ colorScheme: scheme, viewport: size, deviceScaleFactor: 1, ...more });
  const page = await context.newPage();
  page.complaints = [];
  page.strangers = [];
  page.on('console', (message) => {
    if (['error', 'warning', 'assert'].includes(message.type())) page.complaints.push(`console ${message.type()}: ${message.text()}`);
  });
  page.on('pageerror', (error) => page.complaints.push(`page error: ${error.stack ?? error}`));
  page.on('crash', () => page.complaints.push('the tab crashed'));
  await context.route((url) => !isLocal(url.href), (route) => {
    page.strangers.push(route.request().url());
    return route.abort();
  });
  for (const file of BUNDLE ? ['app.js', 'app.css'] : []) {
    await context.route((url) => url.pathname.endsWith(`/${file}`), (route) => route.fulfill({ path: join(BUNDLE, file) }));
  }
  // Observed as well as routed: a request that a route does not see is still one.
  context.on('request', (request) => {
    if (!isLocal(request.url())) page.strangers.push(request.url());
  });
  return page;
}

function isLocal(address) {
  const url = new URL(address);
  return ['data:', 'blob:', 'file:', 'about:'].includes(url.protocol) || url.hostname === '127.0.0.1';
}

/** A running `tensorscope view` or `record --live`: its process and its address. */
export class Server {
  static start(program, args) {
    const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'pipe'] });
    const server = new Server(child);
    // A test that dies must not leave servers behind.
    process.once('exit', () => child.kill('SIGKILL'));
    return new Promise((resolve, reject) => {
      const read = (chunk) => {
        server.said += chunk;
        const found = /http:\/\/127\.0\.0\.1:\d+\/[0-9a-f]+\//.exec(server.said);
        if (found && !server.address) {
          server.address = found[0];
          resolve(server);
        }
      };
      child.stdout.on('data', read);
      child.stderr.on('data', read);
      child.on('error', reject);
      child.on('exit', (code) => reject(new Error(`${program} ${args.join(' ')} ended with ${code}: ${server.said}`)));
    });
  }

  constructor(child) {
    this.child = child;
    this.said = '';
    this.address = '';
  }

  async json(path) {
    const response = await fetch(this.address + path);
    if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
    return response.json();
  }

  residentBytes() {
    return residentBytes(this.child.pid);
  }

  stop() {
    const ended = new Promise((resolve) => this.child.once('exit', resolve));
    this.child.kill('SIGINT');
    return ended;
  }
}

export function residentBytes(pid) {
  const [, kib] = /VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8')) ?? [];
  return Number(kib) * 1024;
}

/** The largest renderer below our browser: the tab. */
export function rendererBytes() {
  let most = 0;
  for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    try {
      const words = readFileSync(`/proc/${pid}/cmdline`, 'utf8');
      if (words.includes('--type=renderer') && isBelow(Number(pid), process.pid)) most = Math.max(most, residentBytes(pid));
    } catch {
      // The process has ended meanwhile.
    }
  }
  return most;
}

function isBelow(pid, ancestor) {
  for (let at = pid; at > 1; ) {
    if (at === ancestor) return true;
    at = Number(/PPid:\s+(\d+)/.exec(readFileSync(`/proc/${at}/status`, 'utf8'))?.[1] ?? 0);
  }
  return false;
}

/** Opens a state of the viewer and waits until it is drawn. */
export async function visit(page, server, hash = '') {
  // Another hash alone would not load the page anew.
  await page.goto('about:blank');
  await page.goto(server.address + hash);
  await settled(page, new URLSearchParams(hash.slice(1)).get('view') ?? 'map');
}

/** Waits until the view has drawn its last answer: no request under way, nothing computing. */
export async function settled(page, view) {
  await page.waitForSelector(`main[data-view="${view}"]`, { timeout: 20_000 });
  await idle(page);
}

/** Until nothing was asked for a while, and what came has been painted. */
export async function idle(page, quietMillis = 250) {
  await page.evaluate((quiet) => new Promise((resolve) => {
    let count = performance.getEntriesByType('resource').length;
    let since = performance.now();
    const look = () => {
      const now = performance.getEntriesByType('resource').length;
      const isBusy = document.querySelector('.cover[data-kind="busy"]:not([hidden]), .progress.is-on, .view-busy') !== null;
      if (now !== count || isBusy) [count, since] = [now, performance.now()];
      if (performance.now() - since < quiet) setTimeout(look, 25);
      else requestAnimationFrame(() => requestAnimationFrame(resolve));
    };
    look();
  }), quietMillis);
}
