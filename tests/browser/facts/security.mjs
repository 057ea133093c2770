/** Nobody but the user gets in, and nothing that a model says is run. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { request } from 'node:http';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { idle, visit } from '../chromium.mjs';
import { ALARM, hostileModel, hostileName, renameTensors } from '../hostile.mjs';
import { VIEWS } from './views.mjs';

export async function facts(bench, server, { moeModel }) {
  const { port, pathname: token } = new URL(server.address);
  await bench.fact('without the right token there is nothing', async () => {
    for (const path of ['/', '/api/runs', '/app.js', token.replace(/[0-9a-f]/, (digit) => (digit === '0' ? '1' : '0')), `${token.slice(0, -2)}/api/runs`]) {
      const { status, body } = await get(port, path);
      assert.deepEqual([status, body], [404, ''], path);
    }
    assert.ok(token.length >= 34, 'the token has 128 bits or more');
  });
  await bench.fact('paths do not lead out of the page', async () => {
    for (const path of ['../../../../etc/passwd', '..%2f..%2f..%2fetc%2fpasswd', '%2e%2e/%2e%2e/etc/passwd', 'api/..%2f..%2fetc/passwd', '/etc/passwd', 'api/0/../../../etc/passwd']) {
      const { status, body } = await get(port, token + path);
      assert.ok(status >= 400 && !body.includes('root:'), `${path}: ${status}`);
    }
  });
  await bench.fact('the server listens on loopback alone', async () => {
    const hex = Number(port).toString(16).toUpperCase().padStart(4, '0');
    const listening = ['/proc/net/tcp', '/proc/net/tcp6'].flatMap((file) => readFileSync(file, 'utf8').split('\n'))
      .map((line) => line.trim().split(/\s+/)).filter((words) => words[3] === '0A' && words[1]?.endsWith(`:${hex}`));
    assert.deepEqual(listening.map((words) => words[1]), [`0100007F:${hex}`]);
  });
  await bench.fact('a page of another name or site gets no answer', async () => {
    const { status } = await get(port, `${token}api/runs`, { host: `evil.example:${port}` });
    assert.ok(status >= 400, `Host evil.example: ${status}`);
    const { headers } = await get(port, `${token}api/runs`, { origin: 'http://evil.example' });
    assert.equal(headers['access-control-allow-origin'], undefined);
    // A form of another site can post, but not with this header.
    const posted = await get(port, `${token}api/0/sql`, { 'content-type': 'text/plain' }, 'SELECT 1');
    assert.ok(posted.status >= 400, `POST without the header: ${posted.status}`);
  });
  await bench.fact('the content-security policy allows the page itself and nothing else', async () => {
    for (const path of ['', 'app.js', 'app.css', 'api/runs']) {
      const { status, headers } = await get(port, token + path);
      assert.equal(status, 200, path);
      const policy = headers['content-security-policy'] ?? '';
      for (const rule of ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"]) assert.ok(policy.includes(rule), `${path}: ${rule}`);
      assert.ok(!/unsafe|\*|https?:/.test(policy), `${path}: ${policy}`);
      assert.equal(headers['x-content-type-options'], 'nosniff', path);
    }
  });

  const model = join(bench.folder, 'hostile.gguf');
  hostileModel(moeModel, model);
  const plain = bench.record('hostile-plain', '-m', model, '-p', 'ROMEO:<img src=x onerror=h()>', '-n', '24');
  // The folder's name is text from outside, too.
  const run = join(bench.folder, '<img src=x onerror=h()>');
  renameTensors(model, plain, run);
  const name = hostileName('attn_norm.weight');
  assert.equal(name, '<svg onload=h()>');
  await bench.fact('a hostile model is shown as text in every view, and nothing of it runs', async (t) => {
    t.isMarked = true;
    const page = await hostilePage(t, 'dark');
    await page.goto('about:blank');
    await page.setContent(`<svg onload=${ALARM}()></svg>`);
    assert.ok(await page.evaluate(() => window.wasHit), 'the alarm works');
    const hostile = await bench.serve(run, plain);
    for (const hash of [...VIEWS.map((view) => `#view=${view}`), '#view=heatmaps&heatmaps.rows=tensor', '#view=table&table.rows=tensor', `#view=table&table.rows=sql&table.sql=${encodeURIComponent('SELECT text FROM tokens')}`]) {
      await visit(page, hostile, hash);
      await idle(page, 100);
      await hover(page);
      await isUnharmed(page, hash);
    }
    const texts = [];
    for (const hash of ['#view=table&table.rows=tensor', `#view=table&table.rows=sql&table.sql=${encodeURIComponent('SELECT text FROM tokens')}`, '#view=playback&eval=10']) {
      await visit(page, hostile, hash);
      texts.push(await page.innerText('body'));
    }
    const all = texts.join('\n');
    for (const text of [`blk.0.${name}`, '</script><script>h()</script><img src=x onerror=h()>"\'><svg onload=h()>', '</script><script>h()</script>', '<img·src=x·onerror=h()>']) {
      assert.ok(all.includes(text), `the page shows ${text}`);
    }
  });
  for (const scheme of ['dark', 'light']) {
    await bench.fact(`the report of a hostile model is text, and nothing of it runs (${scheme})`, async (t) => {
      t.isMarked = true;
      const page = await hostilePage(t, scheme);
      const report = join(bench.folder, `hostile-${scheme}.html`);
      bench.tensorscope('report', run, '--html', '-o', report);
      await page.goto(pathToFileURL(report).href);
      await hover(page);
      await isUnharmed(page, 'report');
      const text = await page.evaluate(() => document.documentElement.textContent);
      for (const shown of [name, '<img src=x onerror=h()>']) assert.ok(text.includes(shown), `the report shows ${shown}`);
    });
  }
}

/** A page in which every attack of the model would be heard. */
async function hostilePage(t, scheme) {
  const page = await t.page({ scheme, locale: 'en-US' });
  await page.addInitScript((alarm) => {
    window[alarm] = () => { window.wasHit = true; };
  }, ALARM);
  return page;
}

/** Tooltips are made from names as well. */
async function hover(page) {
  const { width, height } = page.viewportSize();
  for (const [x, y] of [[0.3, 0.35], [0.3, 0.6], [0.6, 0.8]]) await page.mouse.move(width * x, height * y);
}

async function isUnharmed(page, where) {
  const found = await page.evaluate(() => ({
    wasHit: window.wasHit === true,
    handlers: [...document.querySelectorAll('*')].filter((one) => [...one.attributes].some(({ name }) => /^on/i.test(name))).map((one) => one.outerHTML.slice(0, 200)),
    images: [...document.querySelectorAll('img')].filter((one) => one.getAttribute('src') === 'x').length,
  }));
  assert.deepEqual(found, { wasHit: false, handlers: [], images: 0 }, where);
}

/** A request with its path as it stands, which `fetch` would tidy up. */
function get(port, path, headers = {}, body = null) {
  return new Promise((resolve, reject) => {
    const asked = request({ host: '127.0.0.1', port, path, headers, method: body === null ? 'GET' : 'POST' }, (response) => {
      let text = '';
      response.on('data', (chunk) => { text += chunk; });
      response.on('end', () => resolve({ status: response.statusCode, headers: response.headers, body: text }));
    });
    asked.on('error', reject);
    asked.end(body);
  });
}
