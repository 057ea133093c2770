import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { ModelFacts } from '../src/generated/server';
import type { Estimate, Kv, Memory } from '../src/views/parts/answer';
import { batchSentences, kvBytes, kvCurve, mostContext, thinned, windowTokens } from '../src/views/parts/curves';
import { diskSentence, mostShown, takenText, verdict } from '../src/views/parts/estimate-panels';
import { changed, commandLine, contextSteps, nearestStep, questionOf, triedBy } from '../src/views/parts/question';

const model: ModelFacts = {
  name: 'm',
  path: 'my models/m.gguf',
  architecture: 'llama',
  size_bytes: 1,
  tensor_bytes: 1,
  parameters: 1,
  active_parameters: 1,
  bits_per_parameter: 8,
  max_context: 3000,
  layers: 2,
  embedding_length: 8,
  vocabulary: null,
  experts: 0,
  experts_used: 0,
  machines: [
    { name: 'H200', kind: 'gpu', memory_bytes: 1 },
    { name: 'EPYC', kind: 'cpu', memory_bytes: 1 },
  ],
};

test('a question is the options in the address, and a context that the model can have', () => {
  assert.deepEqual(questionOf({}, model), { 'ctx-size': '3000' });
  assert.deepEqual(questionOf({}, { ...model, max_context: null }), { 'ctx-size': '4096' });
  const opt = {
    'estimate.parallel': '4',
    'estimate.attention': '',
    'estimate.machines': '/etc/passwd',
    'map.order': 'x',
  };
  assert.deepEqual(questionOf(opt, model), { 'ctx-size': '3000', parallel: '4', attention: '' });
  const layers = (machine: string) =>
    questionOf({ 'estimate.gpu-layers': '7', 'estimate.machine': machine }, model)['gpu-layers'];
  assert.deepEqual(['H200', 'EPYC', 'this'].map(layers), ['7', undefined, undefined]);
});

test('what is usual does not stand in the address', () => {
  const opt = { 'estimate.parallel': '4', 'structure.layer': '2' };
  assert.deepEqual(changed(opt, { parallel: '1', 'ctx-size': '512' }), {
    'structure.layer': '2',
    'estimate.ctx-size': '512',
  });
  assert.deepEqual(changed(opt, { parallel: null }), { 'structure.layer': '2' });
});

test('the command says the same, quoted for a shell', () => {
  assert.equal(
    commandLine(model.path, { 'ctx-size': '512', parallel: '1', machine: 'H100 SXM', attention: '', draft: '5:0.8' }),
    "tensorscope estimate 'my models/m.gguf' -c 512 --machine 'H100 SXM' --draft 5:0.8 --attention",
  );
  assert.equal(commandLine("-it's.gguf", {}), "tensorscope estimate './-it'\\''s.gguf'");
});

test('a way to make it fit is tried as options', () => {
  assert.deepEqual(triedBy('--ubatch-size 64 --flash-attn on --shapes --unknown 3'), {
    'ubatch-size': '64',
    'flash-attn': 'on',
    shapes: '',
  });
  assert.deepEqual(triedBy('weights in q4_K (llama-quantize)'), { versus: 'q4_K' });
  assert.equal(triedBy('tensorscope run --memory 20M'), null);
});

test('the slider doubles, and ends at what the sequences can have together', () => {
  assert.deepEqual(contextSteps(model, 1), [512, 1024, 2048, 3000]);
  assert.deepEqual(contextSteps(model, 2), [512, 1024, 2048, 4096, 6000]);
  assert.deepEqual(contextSteps({ ...model, max_context: 100 }, 1), [100]);
  assert.equal(nearestStep([512, 1024, 2048], 1100), 1);
  assert.equal(nearestStep([512, 1024, 2048], 1e9), 2);
});

const kv: Kv = {
  context_tokens: 1000,
  bytes_per_token: 10,
  bytes_per_token_beyond_windows: 4,
  cache_bytes: 100 * 10 + 900 * 4,
  recurrent_bytes: 7,
  window_layers: 3,
};
const memory = {
  budget_bytes: 10_000,
  budgeted_bytes: 6000,
  weight_bytes: 4000,
  context_bytes: 1000,
  compute_bytes: 1000,
  fits: true,
  bytes: 6000,
} as Memory;
const answer = { kv, memory } as Estimate;

test('KV memory bends where windows end', () => {
  assert.equal(windowTokens(kv), 100);
  assert.equal(windowTokens({ ...kv, context_tokens: 50, cache_bytes: 500 }), null);
  assert.equal(
    windowTokens({ ...kv, window_layers: 0, cache_bytes: 10_000, bytes_per_token_beyond_windows: 10 }),
    null,
  );
  assert.equal(kvBytes(kv, 1000, 100), 7 + kv.cache_bytes);
  assert.equal(kvBytes(kv, 50, 100), 7 + 500);
  assert.equal(kvBytes(kv, 50, null), 7 + 500);
  const curve = kvCurve(answer, 2, 2000, 100);
  const points = new Map(curve.lines[0]?.points);
  assert.equal(points.get(2000), 2 * (7 + kv.cache_bytes));
  assert.equal(points.get(200), 2 * (7 + 1000));
});

test('the longest context is the last that has room', () => {
  const most = mostContext(answer, 1, 5000, 100) as number;
  assert.ok(kvBytes(kv, most, 100) <= 5000 && kvBytes(kv, most + 1, 100) > 5000);
  assert.equal(mostContext(answer, 1, 20, 100), 20);
  assert.equal(mostContext({ ...answer, memory: { ...memory, budget_bytes: 5000 } }, 1, 20, 100), null);
});

test('batches are thinned, and their first and last stay', () => {
  const points = Array.from({ length: 256 }, (_, at) => ({ batch: at + 1 }));
  const kept = thinned(points).map(({ batch }) => batch);
  assert.deepEqual([kept[0], kept[1], kept.at(-1)], [1, 2, 256]);
  assert.ok(kept.length < 130);
});

test('what batches give is said in sentences', () => {
  const points = [{ batch: 256 }] as Estimate['batch']['points'];
  assert.deepEqual(batchSentences({ points, knee_batch: 33, best: null, max_batch_that_fits: 0 }, '1ms'), [
    'Beyond 33 sequences throughput hardly grows.',
    'None fits in memory.',
    'No batch that fits stays within 1ms.',
  ]);
  const best = { batch: 8, tokens_per_second: 1 };
  assert.deepEqual(batchSentences({ points, knee_batch: null, best, max_batch_that_fits: 12 }, undefined), [
    'Throughput grows with every batch.',
    'At most 12 fit in memory.',
  ]);
});

test('memory is said with what is left, or missing', () => {
  assert.equal(verdict(memory), 'fits with 3.91 KiB to spare');
  assert.equal(verdict({ ...memory, fits: false, budgeted_bytes: 11_024 }), 'does not fit: 1 KiB too much');
  assert.deepEqual(
    [mostShown(10, 100), mostShown(10, 1000), mostShown(200, 100), mostShown(5, null)],
    [100, 10, 200, 5],
  );
  assert.equal(takenText(1024, 10_240), '1 KiB of 10 KiB');
  assert.equal(takenText(1024, 1_048_576), '1 KiB, 0.098 % of 1 MiB');
});

test('an answer of an older or a newer program is read as far as it goes', () => {
  assert.equal(diskSentence({ memory } as Estimate), null);
  assert.match(diskSentence({ memory: { ...memory, fits: false } } as Estimate) ?? '', /tensorscope plan/);
  assert.equal(
    diskSentence({ memory, disk: { tokens_per_second: 2.5 } } as Estimate),
    'With weights from the disk: 2.5 tokens/s.',
  );
  assert.equal(diskSentence({ memory, disk: {} } as Estimate), null);
});
