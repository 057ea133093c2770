/**
 * Logs of the kernel for a run that has none, as if it had run with memory for
 * half of its model: `log/faults`, `log/io` and `log/residency`, byte by byte as
 * crates/kernelio/src/kernel_log describes them. What is read follows the run's own
 * accesses; which page is dropped is pseudo-random, so that every run differs from
 * every other and none from itself.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

export const PAGE = 4096;
const CHUNK_PAGES = 4;
const CHUNK = PAGE * CHUNK_PAGES;
/** Chunks that a read may bring in at once. */
const MOST_AHEAD = 8;
const NO_FILE = 0xffffffff;

/** Writes the three logs below `run`, and says what they hold. */
export function writeKernelLogs(run, { accesses, evals, modelBytes, share = 0.5 }) {
  const pages = Math.ceil(modelBytes / PAGE);
  const chunks = Math.ceil(modelBytes / CHUNK);
  const made = { faults: [], reads: [], samples: [], pages, modelBytes };
  const random = randomNumbers(7);
  const resident = new Uint8Array(chunks);
  const order = [];
  const begin = evals[0].begin;
  // What is no business of the model: other files, writes, its own header.
  for (let i = 0; i < 3; i++) made.faults.push({ nanos: begin + 1000 + i, offset: null, isMajor: true });
  made.reads.push({ issued: begin + 2000, completed: begin + 9000, offset: null, bytes: 1 << 16, kind: 'R' });
  made.reads.push({ issued: begin + 3000, completed: begin + 9000, offset: 8 * PAGE, bytes: 1 << 14, kind: 'WS' });
  made.reads.push({ issued: begin - 5000, completed: begin - 100, offset: 0, bytes: PAGE, kind: 'R' });
  const touch = (chunk, nanos) => {
    if (resident[chunk]) {
      if (random() < 0.02) made.faults.push({ nanos, offset: chunk * CHUNK, isMajor: false });
      return;
    }
    let end = chunk + 1;
    while (end < chunks && end - chunk < MOST_AHEAD && !resident[end] && random() < 0.7) end += 1;
    const bytes = Math.min(modelBytes, end * CHUNK) - chunk * CHUNK;
    made.faults.push({ nanos, offset: chunk * CHUNK + PAGE * Math.floor(random() * 2), isMajor: true });
    made.reads.push({ issued: nanos, completed: nanos + 4000 + Math.floor(bytes / 8), offset: chunk * CHUNK, bytes, kind: end > chunk + 1 ? 'RA' : 'R' });
    for (let one = chunk; one < end; one++) {
      resident[one] = 1;
      order.push(one);
    }
    while (order.length > chunks * share) {
      const [dropped] = order.splice(Math.floor(random() * order.length * 0.6), 1);
      resident[dropped] = 0;
    }
  };
  let at = 0;
  for (const one of evals) {
    for (; at < accesses.length && accesses[at].eval === one.eval; at++) {
      const { offset, bytes, begin: from, end: to } = accesses[at];
      const first = Math.floor(offset / CHUNK);
      const last = Math.floor((offset + bytes - 1) / CHUNK);
      for (let chunk = first; chunk <= last; chunk++) touch(chunk, from + 1 + Math.floor(((to - from - 1) * (chunk - first)) / (last - first + 1)));
    }
    const bits = new Uint8Array(pages);
    for (let page = 0; page < pages; page++) bits[page] = resident[Math.floor(page / CHUNK_PAGES)];
    made.samples.push({ nanos: one.end, token: one.lastToken, bits });
  }
  writeFileSync(join(run, 'log/faults'), header('TSFAULTS', 48, made.faults.map(faultRecord)));
  writeFileSync(join(run, 'log/io'), header('TSBLOCK\0', 80, made.reads.map(ioRecord)));
  writeFileSync(join(run, 'log/residency'), header('TSRESID\0', 8, made.samples.map(sampleWords)));
  return made;
}

function header(magic, recordBytes, bodies) {
  const head = Buffer.alloc(16);
  head.write(magic, 'latin1');
  head.writeUInt32LE(1, 8);
  head.writeUInt32LE(recordBytes, 12);
  return Buffer.concat([head, ...bodies]);
}

function faultRecord({ nanos, offset, isMajor }) {
  const out = Buffer.alloc(48);
  out.writeBigUInt64LE(BigInt(nanos), 0);
  out.writeBigUInt64LE(BigInt(offset ?? 0), 24);
  out.writeUInt32LE(1, 32);
  out.writeUInt32LE(1, 36);
  out.writeUInt32LE(offset === null ? NO_FILE : 0, 40);
  out.writeUInt8(isMajor ? 1 : 0, 46);
  return out;
}

function ioRecord({ issued, completed, offset, bytes, kind }, request) {
  const out = Buffer.alloc(80);
  out.writeBigUInt64LE(BigInt(issued), 0);
  out.writeBigUInt64LE(BigInt(completed), 8);
  out.writeBigUInt64LE(BigInt(offset ?? 0), 24);
  out.writeBigUInt64LE(BigInt(request), 32);
  out.writeUInt32LE(8, 40);
  out.writeUInt32LE(bytes, 48);
  out.writeUInt32LE(bytes, 56);
  out.writeUInt32LE(offset === null ? NO_FILE : 0, 60);
  out.write(kind, 72, 'latin1');
  return out;
}

/** Runs and bits by turns: a reader must know both. */
function sampleWords({ nanos, token, bits }, at) {
  const words = [];
  if (at % 2) {
    for (let first = 0; first < bits.length; first += 64) {
      let word = 0n;
      for (let bit = 0; bit < 64 && first + bit < bits.length; bit++) if (bits[first + bit]) word |= 1n << BigInt(bit);
      words.push(word);
    }
  } else {
    for (let page = 0; page < bits.length; page++) {
      const first = page;
      while (page < bits.length && bits[page]) page += 1;
      if (page > first) words.push(BigInt(first) | (BigInt(page - first) << 32n));
    }
  }
  const how = at % 2 ? 2n : 0n;
  const head = [BigInt(nanos), BigInt(token), (how << 32n) | (12n << 48n), BigInt(bits.length) | (BigInt(words.length) << 32n)];
  const out = Buffer.alloc(8 * (head.length + words.length));
  [...head, ...words].forEach((word, i) => out.writeBigUInt64LE(word, 8 * i));
  return out;
}

/** The same numbers for the same seed: mulberry32. */
function randomNumbers(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}
