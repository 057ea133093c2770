/**
 * Lanes of processor, devices and copies. No run here has a device: the page is given what the server says of one
 * (crates/index/tests/device.rs holds that against the log), and a run without is as it was.
 */
import assert from 'node:assert/strict';
import { visit } from '../chromium.mjs';

const LANES = '[aria-label="processor, devices and copies over time"]';
const NANOS = 1_000_000;
const lane = (kind, device, more = {}) => ({
  kind, device, evals: 0, timed_evals: 0, measured_evals: 0, span_nanos: 0, gap_nanos: 0, copies: 0, bytes: 0, ...more,
});
const evaluation = (eval_, begin, end, times, gap = null) => ({
  lane: 1, eval: eval_, phase: 'generate', token: eval_, begin, end, times, kernels: gap === null ? 0 : 2,
  kernels_begin: gap === null ? null : begin, kernels_end: gap === null ? null : end, gap_nanos: gap,
});
const kernel = (begin, end) => ({ lane: 1, eval: 1, step: 0, kernel: 'mul_mat_vec_q', op: 'MUL_MAT', name: 'Qcur-0', begin, end });
/** A device with a gap of 30 %, an evaluation that nobody timed inside, and a copy before both. */
const HEADER = {
  t0: 0, t1: NANOS, w: 100,
  lanes: [
    lane('processor', 'CPU'),
    lane('device', 'CUDA0', { evals: 2, timed_evals: 2, measured_evals: 1, span_nanos: 0.4 * NANOS, gap_nanos: 0.12 * NANOS }),
    lane('to_device', 'CUDA0', { copies: 1, bytes: 4096 }),
  ],
  spans: {
    evals: [evaluation(1, 0.1 * NANOS, 0.5 * NANOS, 'kernels', 0.12 * NANOS), evaluation(2, 0.6 * NANOS, 0.9 * NANOS, 'evaluation')],
    work: [kernel(0.1 * NANOS, 0.2 * NANOS), kernel(0.32 * NANOS, 0.5 * NANOS)],
    copies: [{ lane: 2, eval: 1, tensor: 'inp_embd', component: 'input', bytes: 4096, begin: 0.02 * NANOS, end: 0.08 * NANOS, is_async: true }],
  },
};

export async function facts(bench, server) {
  await bench.fact('a run of the processor alone has neither lanes nor a filter by device', async (t) => {
    const page = await t.page();
    await visit(page, server, '#view=timeline');
    assert.equal(await page.locator(LANES).isVisible(), false);
    assert.equal(await page.locator('[data-filter=device]').isVisible(), false);
  });
  await bench.fact('lanes of a device show its kernels, the gaps between them, and what is copied', async (t) => {
    const page = await t.page({ size: { width: 1280, height: 900 } });
    t.isMarked = true;
    await page.route('**/api/0/info*', async (route) => {
      const info = await (await route.fetch()).json();
      info.totals.duration_nanos = NANOS;
      await route.fulfill({ json: { ...info, devices: ['CPU', 'CUDA0'] } });
    });
    await page.route('**/api/0/lanes*', (route) => route.fulfill({ body: raster(HEADER), contentType: 'application/octet-stream' }));
    await visit(page, server, '#view=timeline');
    assert.equal(await page.locator('[data-filter=device]').isVisible(), true);
    const box = await page.locator(LANES).boundingBox();
    // Margins of the plot: devicelanes.ts and timeline.ts.
    const [left, width, top, height] = [box.x + 84, box.width - 84 - 34, box.y + 22, 24];
    const saysAt = async (time, at) => {
      await page.mouse.move(left + time * width, top + (at + 0.5) * height);
      return page.innerText('.tooltip');
    };
    assert.match(await saysAt(0.15, 1), /MUL_MAT Qcur-0[^]*mul_mat_vec_q[^]*CUDA0/);
    assert.match(await saysAt(0.26, 1), /no kernel ran[^]*this gap[^]*120 µs[^]*30\.0 %/);
    assert.match(await saysAt(0.75, 1), /node times not measured/);
    assert.match(await saysAt(0.05, 2), /inp_embd[^]*4,096 bytes[^]*host to CUDA0/);
  });
}

/** As the server sends a header without values. */
function raster(header) {
  const text = Buffer.from(JSON.stringify(header));
  const body = Buffer.alloc(Math.ceil((4 + text.length) / 4) * 4);
  body.writeUInt32LE(text.length);
  text.copy(body, 4);
  return body;
}
