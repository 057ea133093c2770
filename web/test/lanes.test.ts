import assert from 'node:assert/strict';
import { test } from 'node:test';
import { hasDevices, laneFacts, laneSentence, spanLinesOf, under } from '../src/lanetext';
import { batchesOf, isIn } from '../src/evalindex';
import { copiesOf, placesOf } from '../src/views/parts/places';
import { filterParams, NO_FILTER } from '../src/state';
import type { Devices } from '../src/views/parts/results';
import type { EvalBrief, Info, Lane, LaneEval, LanesHeader, LaneWork } from '../src/generated/index';

const lane = (change: Partial<Lane>): Lane => ({
  kind: 'device',
  device: 'CUDA0',
  evals: 0,
  timed_evals: 0,
  measured_evals: 0,
  span_nanos: 0,
  gap_nanos: 0,
  copies: 0,
  bytes: 0,
  ...change,
});
const evaluation: LaneEval = {
  lane: 1,
  eval: 3,
  phase: 'generate',
  token: 7,
  begin: 100,
  end: 1100,
  times: 'kernels',
  kernels: 2,
  kernels_begin: 200,
  kernels_end: 1000,
  gap_nanos: 400,
};
const work = (begin: number, end: number): LaneWork => ({
  lane: 1,
  eval: 3,
  step: 0,
  kernel: 'mul_mat_vec_q',
  op: 'MUL_MAT',
  name: 'Qcur-0',
  begin,
  end,
});
const header: LanesHeader = {
  t0: 0,
  t1: 2000,
  w: 10,
  lanes: [lane({ kind: 'processor', device: 'CPU' }), lane({}), lane({ kind: 'to_device' })],
  spans: {
    evals: [
      evaluation,
      {
        ...evaluation,
        eval: 4,
        begin: 1200,
        end: 1900,
        times: 'evaluation',
        kernels: 0,
        kernels_begin: null,
        kernels_end: null,
        gap_nanos: null,
      },
    ],
    work: [work(200, 400), work(800, 1000)],
    copies: [{ lane: 2, eval: 3, tensor: 'inp_pos', component: 'input', bytes: 4, begin: 50, end: 60, is_async: true }],
  },
};

test('a kernel, the gap between two, and an evaluation without them are told apart', () => {
  assert.equal(under(header, 1, 300, 5)?.kind, 'work');
  assert.equal(under(header, 1, 150, 5)?.kind, 'eval');
  assert.equal(under(header, 1, 1150, 5), null);
  assert.equal(under(header, 2, 62, 5)?.kind, 'copy');
  assert.equal(under(header, 2, 90, 5), null);
  const gap = under(header, 1, 500, 5);
  assert.equal(gap?.kind, 'gap');
  const said = spanLinesOf({ raster: { header, values: new Float32Array() } }, lane({}), gap, { x: 500, y: 1.5 });
  assert.equal(said.title, 'no kernel ran');
  assert.deepEqual(said.lines[0], ['this gap', '400 ns']);
  assert.ok(said.lines.some((line) => line[0] === 'no kernel ran' && line[1]?.startsWith('50.0 %')));
});

test('a copy says its tensor, its bytes and that its own time is not known', () => {
  const hit = under(header, 2, 55, 5);
  const said = spanLinesOf({ raster: { header, values: new Float32Array() } }, lane({ kind: 'to_device' }), hit, {
    x: 55,
    y: 2.5,
  });
  assert.equal(said.title, 'inp_pos');
  assert.deepEqual(said.lines[0], ['copied', '4 B (4 bytes)']);
  assert.ok(said.lines.includes('how long the bytes themselves took is not known'));
});

test('what was not measured is said, and is never a share', () => {
  assert.equal(laneSentence(evaluation), null);
  assert.equal(laneSentence({ ...evaluation, times: 'evaluation' }), 'node times not measured');
  assert.match(laneSentence({ ...evaluation, times: 'call' }) ?? '', /not measured/);
  const none = laneFacts([lane({ evals: 5, timed_evals: 3 })]);
  assert.equal(none.gaps, null);
  assert.equal(none.untimed, 'node times not measured: 3 of 5 evaluations');
  assert.equal(none.asked, 'only the call is known: 2 of 5 evaluations');
  const some = laneFacts([lane({ evals: 5, timed_evals: 5, measured_evals: 2, span_nanos: 1000, gap_nanos: 250 })]);
  assert.equal(some.gaps, 'between kernels: 25.0 % of the time in 2 of 5 evaluations');
});

test('a run of the processor alone has no lanes, and its filter no device', () => {
  assert.equal(hasDevices({ devices: ['CPU'] } as Info), false);
  assert.equal(hasDevices({ devices: ['CPU', 'Vulkan0'] } as Info), true);
  assert.deepEqual(filterParams({ ...NO_FILTER, device: ['CUDA0'] }), [['device', 'CUDA0']]);
});

test('parts of one graph are one token above the lanes', () => {
  const part = (number: number, first_token: number): EvalBrief => ({
    eval: number,
    begin: number * 10,
    end: number * 10 + 8,
    first_token,
    tokens: 1,
    phase: 'generate',
  });
  const batches = batchesOf([part(0, 0), part(1, 0), part(2, 1)]);
  assert.deepEqual(
    batches.map(({ begin, end }) => [begin, end]),
    [
      [0, 18],
      [20, 28],
    ],
  );
  assert.ok(batches[0] && isIn(batches[0], 1) && !isIn(batches[0], 2) && !isIn(batches[0], null));
});

const devices: Devices = {
  devices: [
    {
      device: 'CUDA0',
      description: 'a card',
      memory_bytes: 1000,
      memory: [{ kind: 'weight', component: 'ffn', tensors: 2, bytes: 300 }],
      copies: [
        { phase: 'load', tensor: 'w', kind: 'weight', way: 'host_to_device', calls: 1, bytes: 300 },
        { phase: 'generate', tensor: 'inp_pos', kind: 'input', way: 'host_to_device', calls: 10, bytes: 40 },
        { phase: 'generate', tensor: 'result', kind: 'activation', way: 'device_to_host', calls: 10, bytes: 400 },
      ],
    },
  ],
  host_memory: [
    { buffer_type: 'CPU_Mapped', kind: 'weight', component: 'ffn', tensors: 1, bytes: 20 },
    { buffer_type: 'CPU_Mapped', kind: 'weight', component: 'embedding', tensors: 1, bytes: 30 },
    { buffer_type: 'CUDA_Host', kind: 'input', component: 'input', tensors: 1, bytes: 5 },
  ],
  passes: [{ phase: 'generate', passes: 10, tokens: 10 }],
};

test('each memory has its bytes, and the host’s are told apart by their buffers', () => {
  assert.deepEqual(
    placesOf(devices).map(({ name, bytes, of }) => [name, bytes, of]),
    [
      ['CUDA0', 300, 1000],
      ['host, mapped files', 50, null],
      ['host, pinned', 5, null],
    ],
  );
});

test('copies are those of an average generated token, most bytes first', () => {
  const copies = copiesOf(devices);
  assert.equal(copies?.unit, 'token');
  assert.deepEqual(
    copies?.copied.map(({ name, bytes, calls }) => [name, bytes, calls]),
    [
      ['result from CUDA0', 40, 1],
      ['inp_pos to CUDA0', 4, 1],
    ],
  );
  assert.equal(copiesOf({ ...devices, passes: [] }), null);
});
