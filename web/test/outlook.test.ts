import assert from 'node:assert/strict';
import { test } from 'node:test';
import { labelOf, strategyName } from '../src/views/parts/outlook';
import type { Strategy } from '../src/views/parts/results';

const strategy = (help: string, reason: string, bytes: number | null = null): Strategy => ({
  strategy: 'stream',
  disk_bytes_per_token: bytes,
  routed_bytes_per_token: 0,
  nanos_per_token: null,
  tokens_per_second: null,
  speedup: null,
  verdict: { help, reason },
});

test('what does not fit is told apart from what does not apply, and both say why', () => {
  const short = labelOf(strategy('does_not_fit', 'does not fit: nothing can be streamed with 4 MiB'));
  assert.deepEqual(short, {
    label: 'does not fit',
    none: 'short',
    title: 'does not fit: nothing can be streamed with 4 MiB; with more memory it would',
  });
  const off = labelOf(strategy('does_not_apply', 'does not apply: the model has no experts'));
  assert.deepEqual(off, {
    label: 'does not apply',
    none: 'off',
    title: 'does not apply: the model has no experts; whatever the memory',
  });
});

test('what reads something has its bytes as a label', () => {
  assert.deepEqual(labelOf(strategy('would_not_help', '', 2 ** 20)), { label: '1 MiB / token' });
});

test('pinning alone has a name', () => {
  assert.equal(strategyName('pin'), 'pin only');
});
