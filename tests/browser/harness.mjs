/**
 * Facts, one after another: each has a sentence, pages of its own, and fails
 * with a picture of what the page showed.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { launch, openPage, Server } from './chromium.mjs';

export class Bench {
  constructor(program, folder, wanted) {
    this.program = program;
    this.folder = folder;
    this.wanted = wanted;
    this.failed = [];
    /** Facts that did not hold at once. */
    this.late = [];
    this.passed = 0;
    this.servers = [];
    /** Pages that no fact uses now, by their options: a new tab takes longer than most facts. */
    this.spare = new Map();
    mkdirSync(join(folder, 'failed'), { recursive: true });
  }

  async start() {
    this.browser = await launch();
  }

  async end() {
    await this.browser.close();
    await Promise.all(this.servers.map((server) => server.stop()));
  }

  /** Runs `check(t)`; `t.page()` opens pages that must stay silent and at home. */
  async fact(sentence, check) {
    if (this.wanted && !sentence.includes(this.wanted)) return;
    // On a machine that others use, too, a page may be late once: what fails is looked at again,
    // on pages of its own, and said.
    const first = await this.attempt(sentence, check);
    if (!first) return;
    this.late.push(sentence);
    console.log(`    again ${sentence}`);
    if (await this.attempt(sentence, check)) this.failed.push(sentence);
  }

  /** What is wrong, or nothing. */
  async attempt(sentence, check) {
    const t = new Fact(this, sentence);
    const begin = performance.now();
    let wrong = '';
    try {
      await check(t);
      for (const page of t.pages) {
        assert.deepEqual(page.complaints.filter((line) => !t.expected.some((known) => known.test(line))), [], 'the console is silent');
        assert.deepEqual(page.strangers, [], 'no request leaves loopback');
      }
      this.passed += 1;
      const noted = t.notes.length ? `: ${t.notes.join(', ')}` : '';
      console.log(`    ok    ${sentence}${noted} (${((performance.now() - begin) / 1000).toFixed(1)} s)`);
    } catch (error) {
      wrong = String(error?.message ?? error);
      console.log(`    FAILED ${sentence}\n${indent(wrong)}`);
      if (!(error instanceof assert.AssertionError)) console.log(indent(String(error?.stack ?? '')));
      for (const [at, page] of t.pages.entries()) {
        const path = join(this.folder, 'failed', `${sentence.replace(/[^a-z0-9]+/gi, '-').slice(0, 80)}-${at}.png`);
        if (page.complaints.length) console.log(indent(page.complaints.join('\n')));
        await page.screenshot({ path }).then(() => console.log(indent(`see ${path}\n    ${page.url()}`)), () => undefined);
      }
    }
    for (const page of t.pages) await this.putBack(page, t, wrong);
    return wrong;
  }

  async openPage(options) {
    const key = JSON.stringify(options ?? {});
    const page = this.spare.get(key)?.pop() ?? (await openPage(this.browser, options));
    page.key = key;
    page.complaints.length = page.strangers.length = 0;
    return page;
  }

  /** A page that a fact has left with a theme, a script or a failure of its own is not used again. */
  async putBack(page, fact, wrong) {
    if (fact.isMarked || wrong) return page.context().close();
    this.spare.set(page.key, [...(this.spare.get(page.key) ?? []), page]);
  }

  /** Serves runs until the end. */
  async serve(...runs) {
    const server = await Server.start(this.program, ['view', '--no-open', ...runs]);
    this.servers.push(server);
    return server;
  }

  tensorscope(...args) {
    return execFileSync(this.program, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'], maxBuffer: 1 << 28 });
  }

  record(name, ...args) {
    const run = join(this.folder, name);
    this.tensorscope('record', '--quiet', '-t', '2', '-o', run, ...args);
    return run;
  }

  /** Rows of a query as arrays of strings, without the heading. */
  sql(run, query) {
    return parseCsv(this.tensorscope('sql', run, query, '--format', 'csv')).slice(1);
  }
}

class Fact {
  constructor(bench, sentence) {
    this.bench = bench;
    this.sentence = sentence;
    /** Set by a fact that leaves traces in its pages. */
    this.isMarked = false;
    this.pages = [];
    this.expected = [];
    this.notes = [];
  }

  async page(options) {
    const page = await this.bench.openPage(options);
    this.pages.push(page);
    return page;
  }

  /** What the console may say in this fact. */
  expect(pattern) {
    this.expected.push(pattern);
  }

  note(text) {
    this.notes.push(text);
  }
}

/** RFC 4180; every line must have as many fields as the first. */
export function parseCsv(text) {
  const rows = [];
  let row = [];
  const field = /(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r?\n|$)/y;
  while (field.lastIndex < text.length) {
    const at = field.lastIndex;
    const found = field.exec(text);
    if (!found) throw new Error(`not CSV at byte ${at}: ${text.slice(at, at + 60)}`);
    row.push(found[1] === undefined ? found[2] : found[1].replaceAll('""', '"'));
    if (found[3] !== ',') {
      rows.push(row);
      row = [];
    }
  }
  const uneven = rows.find((one) => one.length !== rows[0].length);
  if (uneven) throw new Error(`a line of ${uneven.length} fields under a heading of ${rows[0].length}: ${uneven.join(',')}`);
  return rows;
}

function indent(text) {
  return text.split('\n').map((line) => `          ${line}`).join('\n');
}
