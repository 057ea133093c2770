/** What the page shows under a filter is what SQL says over the tables of the run. */
import assert from 'node:assert/strict';
import { settled, visit } from '../chromium.mjs';

const FILTERS = [
  {},
  { phase: 'prompt' },
  { tokens: '3-20' },
  { layer: '0,5,none' },
  { component: 'attention,kv_cache' },
  { op: 'MUL_MAT_ID,RMS_NORM+MUL' },
  { expert: '3,7' },
  { phase: 'generate', tokens: '2-30', layer: '2,3', component: 'expert,router', op: 'MUL_MAT_ID', expert: '1,2,5' },
];

export async function facts(bench, server, { moe }) {
  for (const filter of FILTERS) {
    const params = Object.entries(filter).map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join('&');
    await bench.fact(`tables agree with SQL, filter ${params || 'none'}`, async (t) => {
      // Tall: only rows in sight are elements.
      const page = await t.page({ size: { width: 1280, height: 2400 } });
      for (const [rows, columns, query] of tables(filter)) {
        await visit(page, server, `#view=table&table.rows=${rows}&${params}`);
        const shown = (await shownTable(page)).map((row) => columns.map((at) => row[at]).join('|'));
        const asked = bench.sql(moe, query).map((row) => row.map((cell) => cell || '–').join('|'));
        assert.ok(asked.length > 0, `the filter leaves something of the ${rows}s`);
        assert.deepEqual(shown.sort(), asked.sort(), `${rows}s`);
      }
    });
  }
  await bench.fact('the status line counts what SQL counts', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=table&tokens=3-20&component=attention');
    const where = whereOf({ tokens: '3-20', component: 'attention' });
    const [[accesses, evals]] = bench.sql(moe, `SELECT COUNT(*), COUNT(DISTINCT eval) FROM accesses WHERE ${where}`);
    const text = await page.innerText('.status-summary');
    assert.ok(text.includes(`${evals} evals`), text);
    assert.ok(text.includes(`${Number(accesses).toLocaleString('en')} accesses`), text);
  });
  await bench.fact('the filter bar sets the filter that a link holds', async (t) => {
    const page = await t.page({ size: { width: 1280, height: 2400 } });
    await visit(page, server, '#view=table');
    await page.click('[data-filter=layer]');
    await page.click('.menu-item[data-value="2"]');
    await page.keyboard.press('Escape');
    await page.click('.filterbar button[data-value=generate]');
    await page.fill('.tokens-input', '5-9');
    await page.keyboard.press('Enter');
    await settled(page, 'table');
    assert.match(page.url(), /phase=generate&tokens=5-9&layer=2$/);
    const shown = (await shownTable(page)).map((row) => row.slice(0, 3).join('|'));
    const where = whereOf({ phase: 'generate', tokens: '5-9', layer: '2' });
    const asked = bench.sql(moe, `SELECT COALESCE(component, kind), COUNT(*), SUM(bytes) FROM accesses WHERE ${where} GROUP BY 1`);
    assert.deepEqual(shown.sort(), asked.map((row) => row.join('|')).sort());
  });
  await bench.fact('token × layer shows the bytes that SQL gives each token', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=heatmaps&heatmaps.rows=layer&heatmaps.metric=bytes');
    const asked = new Map(bench.sql(moe, `
      SELECT t.token, s.layer, s.bytes / e.tokens
      FROM tokens t JOIN evals e ON t.eval = e.eval
      JOIN (SELECT eval, layer, CAST(SUM(bytes) AS DOUBLE) AS bytes FROM accesses GROUP BY eval, layer) s ON s.eval = t.eval
      `).map(([token, layer, bytes]) => [`${token} ${layer || 'none'}`, Number(bytes)]));
    const layers = ['0', '1', '2', '3', '4', '5', 'none'];
    await sameCells(page, { tokens: asked.size / layers.length, rows: layers, spots: [[0, 0], [1, 6], [20, 3], [49, 5]] }, asked);
  });
  await bench.fact('token × expert shows the choices that SQL gives each token', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=heatmaps&heatmaps.rows=expert&heatmaps.metric=accesses');
    const [[tokens]] = bench.sql(moe, 'SELECT COUNT(*) FROM tokens');
    const rows = Array.from({ length: 48 }, (_, at) => `${at >> 3} ${at & 7}`);
    const asked = new Map(rows.flatMap((row) => Array.from({ length: Number(tokens) }, (_, token) => [`${token} ${row}`, 0])));
    for (const [token, layer, expert] of bench.sql(moe, 'SELECT token, layer, expert FROM routing')) asked.set(`${token} ${layer} ${expert}`, 1);
    const chosen = [...asked].filter(([, value]) => value === 1).map(([key]) => key.split(' ').map(Number));
    const spots = [chosen[3], chosen[200]].map(([token, layer, expert]) => [token, layer * 8 + expert]);
    await sameCells(page, { tokens: Number(tokens), rows, spots: [...spots, [30, 2]] }, asked);
  });
  await bench.fact('a click on the map filters by the tensor that lies there', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=map');
    const box = await page.locator('main canvas.overlay, main canvas').last().boundingBox();
    await page.mouse.move(box.x + box.width * 0.4, box.y + box.height * 0.5);
    const name = await page.innerText('.tooltip-title');
    await page.mouse.click(box.x + box.width * 0.4, box.y + box.height * 0.5);
    await page.waitForFunction(() => document.querySelectorAll('.chip').length > 0);
    const [[layer, component]] = bench.sql(moe, `SELECT layer, component FROM tensors WHERE name = '${name}'`);
    const state = new URLSearchParams(new URL(page.url()).hash.slice(1));
    assert.deepEqual([state.get('layer'), state.get('component')], [layer || 'none', component], name);
  });
}

/** Tables of the page: where they come from, which columns SQL knows, and the query. */
function tables(filter) {
  const where = whereOf(filter);
  const nodes = `
    SELECT COUNT(*) AS nodes, SUM(duration_nanos) AS nanos, GROUPED FROM nodes
    WHERE ${whereOf({ tokens: filter.tokens, layer: filter.layer, op: filter.op })}
    ${filter.phase ? `AND eval IN (SELECT eval FROM evals WHERE phase = '${filter.phase}')` : ''}
    ${filter.component || filter.expert ? `AND eval * 1000000 + step IN (SELECT eval * 1000000 + step FROM accesses WHERE ${where})` : ''}
    GROUP BY GROUPED`;
  const withNodes = (by) => `
    SELECT n.${by}, n.nodes, n.nanos, COALESCE(a.accesses, 0), COALESCE(a.bytes, 0) FROM (${nodes.replaceAll('GROUPED', by)}) n
    LEFT JOIN (SELECT ${by}, COUNT(*) AS accesses, SUM(bytes) AS bytes FROM accesses WHERE ${where} GROUP BY ${by}) a
    ON n.${by} IS NOT DISTINCT FROM a.${by}`;
  return [
    ['component', [0, 1, 2], `SELECT COALESCE(component, kind), COUNT(*), SUM(bytes) FROM accesses WHERE ${where} GROUP BY 1`],
    ['op', [0, 1, 2, 3, 4], withNodes('op')],
    ['layer', [0, 1, 2, 3, 4], withNodes('layer')],
    ['tensor', [0, 4, 5], `SELECT tensor_name, COUNT(*), SUM(bytes) FROM accesses WHERE kind = 'weight' AND ${where} GROUP BY 1`],
  ].filter(([rows]) => rows !== 'tensor' || !String(filter.component ?? 'weights').startsWith('kv'));
}

function whereOf({ phase, tokens, layer, component, op, expert }) {
  const texts = (list) => list.split(',').map((one) => `'${one}'`).join(',');
  const parts = ['true'];
  if (phase) parts.push(`phase = '${phase}'`);
  if (tokens) parts.push(`eval IN (SELECT eval FROM tokens WHERE token BETWEEN ${tokens.replace('-', ' AND ')})`);
  if (layer) {
    const numbers = layer.split(',').filter((one) => one !== 'none');
    parts.push(`(layer IN (${numbers})${layer.includes('none') ? ' OR layer IS NULL' : ''})`);
  }
  if (component) parts.push(`COALESCE(component, kind) IN (${texts(component)})`);
  if (op) parts.push(`op IN (${texts(op)})`);
  if (expert) parts.push(`expert IN (${expert})`);
  return parts.join(' AND ');
}

/** Rows of the table that is shown; numbers exactly, as the tooltip of each cell gives them. */
export function shownTable(page) {
  return page.locator('main [role=row]:has([role=cell])').evaluateAll((rows) =>
    rows.map((row) => [...row.querySelectorAll('[role=cell]')].map((cell) =>
      (cell.classList.contains('view-number') ? cell.title.replace('no value', '–').replaceAll(',', '') : cell.innerText))));
}

/** Hovers some cells of a heatmap and compares what the tooltip says. */
async function sameCells(page, { tokens, rows, spots }, asked) {
  const plot = await page.locator('main canvas.overlay').boundingBox();
  // As heatmaps.ts places its content.
  const inner = { x: plot.x + 150, y: plot.y + 38, width: plot.width - 166, height: plot.height - 130 };
  for (const [token, row] of spots) {
    await page.mouse.move(inner.x + ((token + 0.5) / tokens) * inner.width, inner.y + ((row + 0.5) / rows.length) * inner.height);
    const tip = await page.innerText('.tooltip');
    const [, shown] = /exactly\s+([\d.,e+]+)/.exec(tip) ?? [];
    const expected = asked.get(`${token} ${rows[row]}`);
    assert.match(tip, new RegExp(`token\\s+${token}\\b`), `the cell of token ${token}`);
    assert.ok(Math.abs(Number(shown.replaceAll(',', '')) - expected) <= expected * 1e-6, `token ${token}, row ${rows[row]}: the page says ${shown}, SQL ${expected}`);
  }
}
