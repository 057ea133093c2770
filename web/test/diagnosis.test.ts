import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Diagnosis, PhaseStack, Ranked } from '../src/generated/diagnose';
import { coloursOf } from '../src/colours';
import { TIME_PARTS } from '../src/generated/palette';
import { bySource, CSV_COLUMNS, csvRows, gainText, isQuery, ofPhase, partRows } from '../src/views/parts/diagnosis';

const phase = (name: string, shares: Record<string, number>): PhaseStack => ({
  name,
  evaluations: 1,
  tokens: 1,
  token_nanos: 1e6,
  tokens_per_second: 1000,
  nanos: 1e6,
  stack: Object.entries(shares).map(([part, share]) => ({
    name: part,
    title: `the part ${part}`,
    share,
    nanos: share * 1e6,
  })),
  verdict: '',
});

const cause = (id: string, of: string, more: Partial<Ranked> = {}): Ranked => ({
  phase: of,
  time_share: 0.5,
  id,
  title: id,
  about: 'phase',
  subject: of,
  parent: null,
  share: 0.5,
  healthy: false,
  why: '',
  action: '-t 2',
  apply: null,
  gain_percent: 77,
  gain_percent_low: 46.2,
  gain_percent_high: 96.2,
  refute: null,
  reference: null,
  evidence: [],
  ...more,
});

const diagnosis: Diagnosis = {
  phases: [
    phase('prompt', { below_wall: 0.9, host: 0.1, stolen: 0.0001, unexplained: 0 }),
    phase('generate', { at_wall: 0.5, below_wall: 0.3, host: 0.2, unexplained: 0 }),
  ],
  causes: [cause('a', 'prompt'), cause('b', 'generate'), cause('c', 'matmul_kernel')],
  healthy: [],
  not_evaluated: [{ rule: 'r', title: 't', subject: 'prompt', missing: ['x'] }],
  missing: [],
  subjects: [],
};

test('parts of all phases stand in one table, without those that are next to nothing', () => {
  const rows = partRows(diagnosis.phases);
  assert.deepEqual(
    rows.map((row) => row.name),
    ['below_wall', 'host', 'unexplained', 'at_wall'],
  );
  assert.deepEqual(
    rows.map((row) => row.of.map((part) => part?.share ?? null)),
    [
      [0.9, 0.3],
      [0.1, 0.2],
      [0, 0],
      [null, 0.5],
    ],
  );
});

test('a gain has its interval, or is not said', () => {
  assert.equal(gainText(cause('a', 'prompt')), '+77 % speed expected (+46 to +96 %)');
  assert.equal(gainText(cause('a', 'prompt', { gain_percent_low: -3.2 })), '+77 % speed expected (-3 to +96 %)');
  assert.equal(gainText(cause('a', 'prompt', { gain_percent: null })), null);
});

test('numbers of one query stand together, and only queries can be asked', () => {
  const evidence = [
    ['threads', 'metadata.json: settings'],
    ['stack.host', 'SELECT 1'],
    ['stack.disk', 'SELECT 1'],
    ['other', null],
  ].map(([name, source]) => ({
    name: name as string,
    value: 1,
    unit: 'count' as const,
    text: '1',
    source: source ?? null,
  }));
  const groups = bySource(cause('a', 'prompt', { evidence }));
  assert.deepEqual(
    groups.map((group) => [group.source, group.numbers.map((one) => one.name)]),
    [
      ['metadata.json: settings', ['threads']],
      ['SELECT 1', ['stack.host', 'stack.disk']],
      [null, ['other']],
    ],
  );
  assert.ok(isQuery('SELECT 1') && isQuery('WITH a AS (SELECT 1) SELECT * FROM a'));
  assert.ok(!isQuery('metadata.json: settings') && !isQuery('report.csv:12'));
});

test('the phase of the filter keeps its causes, and those that belong to no phase', () => {
  const found = ofPhase(diagnosis, 'generate');
  assert.deepEqual(
    found.phases.map((one) => one.name),
    ['generate'],
  );
  assert.deepEqual(
    found.causes.map((one) => one.id),
    ['b', 'c'],
  );
  assert.equal(found.not_evaluated.length, 0);
  assert.equal(ofPhase(diagnosis, null), diagnosis);
});

test('every part and every cause is a row of the CSV', () => {
  const rows = csvRows(diagnosis);
  assert.equal(rows.length, 8 + 3);
  for (const row of rows) assert.equal(row.length, CSV_COLUMNS.length);
});

test('every part of a token has a colour of its own, in the dark and in the light', () => {
  for (const theme of ['dark', 'light'] as const) {
    const { timePart } = coloursOf(theme);
    const names = Object.keys(TIME_PARTS);
    assert.ok(names.length >= 12);
    assert.equal(new Set([...names, 'of no rule'].map(timePart)).size, names.length + 1);
  }
});
