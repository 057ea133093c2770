/**
 * A model that attacks whoever looks at it: its name, the texts of its tokens
 * and the names of its tensors are HTML and script.
 *
 * llama.cpp must load the model, so it is recorded with a hostile name and
 * hostile token texts but the usual tensors; these are renamed afterwards, in the model
 * and in the log, to names of the same length. The formats: the GGUF
 * specification, and docs/trace-format.md for the log.
 */
import { cpSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** What must never run: every attack calls it. */
export const ALARM = 'h';
const NAME = `</script><script>h()</script><img src=x onerror=h()>"'><svg onload=h()>`;
const TEXTS = ['<img src=x onerror=h()>', '</script><script>h()</script>', `"'><svg onload=h()>`, '<style>*{display:none}</style>', '\u202e<b>']
  // As the vocabulary writes spaces.
  .map((text) => text.replaceAll(' ', '▁'));
/** What the prompt is made of keeps its text: single characters, bytes, what begins with a capital. */
const SPARED = /^(<.*>|[A-Z].*|.)$/u;
/** Tensors of layers, and outside of them, that get other names. */
const TENSORS = ['attn_norm.weight', 'ffn_norm.weight', 'attn_output.weight', 'output_norm.weight', 'token_embd.weight'];

/** A name of the same length that is markup. */
export function hostileName(name) {
  const attack = ['<img src onerror=h()>', '<svg onload=h()>', '<b>'].find((one) => one.length <= name.length) ?? '';
  return attack.padEnd(name.length, `"'&<>`);
}

/** Copies the model with another name and with other texts of its tokens. */
export function hostileModel(from, to) {
  const file = readFileSync(from);
  const reader = new Gguf(file);
  const tensors = Number(reader.u64(8));
  const keys = Number(reader.u64(16));
  reader.at = 24;
  const out = [file.subarray(0, 24)];
  let alignment = 32;
  for (let key = 0; key < keys; key++) {
    const begin = reader.at;
    const name = reader.text();
    const kind = reader.u32();
    const value = reader.value(kind);
    if (name === 'general.alignment') alignment = value;
    if (name === 'general.name') out.push(text(name), u32(8), text(NAME));
    else if (name === 'tokenizer.ggml.tokens') {
      const texts = value.map((one, at) => (SPARED.test(one) ? one : `${TEXTS[at % TEXTS.length]}${at}`));
      out.push(text(name), u32(9), u32(8), u64(texts.length), ...texts.map(text));
    } else out.push(file.subarray(begin, reader.at));
  }
  const infos = reader.at;
  for (let tensor = 0; tensor < tensors; tensor++) reader.tensor();
  out.push(file.subarray(infos, reader.at));
  const padded = (length) => Math.ceil(length / alignment) * alignment;
  const head = Buffer.concat(out);
  writeFileSync(to, Buffer.concat([head, Buffer.alloc(padded(head.length) - head.length), file.subarray(padded(reader.at))]));
}

/** Renames tensors in the model and in the log of the run; returns the new names. */
export function renameTensors(model, run, to) {
  cpSync(run, to, { recursive: true });
  // What was derived from the log is derived again, from the names there now.
  for (const name of readdirSync(to)) if (!['log', 'metadata.json'].includes(name)) rmSync(join(to, name), { recursive: true });
  renameInModel(model);
  for (const name of readdirSync(join(to, 'log')).filter((one) => one.endsWith('.tslog'))) {
    const path = join(to, 'log', name);
    const log = replaced(readFileSync(path));
    checksum(log);
    writeFileSync(path, log);
  }
  return TENSORS.map(hostileName);
}

/** Renames tensors in the model alone. */
export function renameInModel(model) {
  const renamed = `${model}.renamed`;
  writeFileSync(renamed, replaced(readFileSync(model)));
  renameSync(renamed, model);
}

/** In place of each name one of the same length, after its own length or the `blk.N.` of its layer. */
function replaced(bytes) {
  const out = Buffer.from(bytes);
  for (const name of TENSORS) {
    for (let at = out.indexOf(name); at >= 0; at = out.indexOf(name, at + 1)) out.write(hostileName(name), at, 'latin1');
  }
  return out;
}

/** Makes the checksums of a segment's records right again. */
function checksum(log) {
  const words = new BigUint64Array(log.buffer, log.byteOffset, log.length >> 3);
  for (let at = 8; at < words.length && words[at] >> 32n === 0x54535245n; ) {
    const length = Number(words[at + 1] & 0xffffffffn);
    let state = 0x9e3779b97f4a7c15n;
    for (let word = at; word < at + 2 + length; word++) {
      state = (((state << 23n) | (state >> 41n)) & 0xffffffffffffffffn) ^ words[word];
      state = (state * 0x2545f4914f6cdd1dn) & 0xffffffffffffffffn;
    }
    words[at + 2 + length] = state;
    at += length + 4;
  }
}

class Gguf {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }
  u64(at) {
    return this.bytes.readBigUInt64LE(at);
  }
  u32() {
    this.at += 4;
    return this.bytes.readUInt32LE(this.at - 4);
  }
  long() {
    this.at += 8;
    return Number(this.bytes.readBigUInt64LE(this.at - 8));
  }
  text() {
    const length = this.long();
    this.at += length;
    return this.bytes.toString('utf8', this.at - length, this.at);
  }
  value(kind) {
    if (kind === 8) return this.text();
    if (kind === 9) {
      const of = this.u32();
      return Array.from({ length: this.long() }, () => this.value(of));
    }
    const size = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 }[kind];
    if (!size) throw new Error(`GGUF has no value of kind ${kind}`);
    this.at += size;
    return kind === 4 ? this.bytes.readUInt32LE(this.at - 4) : null;
  }
  tensor() {
    this.text();
    const dimensions = this.u32();
    this.at += 8 * dimensions + 4 + 8;
  }
}

function u32(value) {
  const out = Buffer.alloc(4);
  out.writeUInt32LE(value);
  return out;
}

function u64(value) {
  const out = Buffer.alloc(8);
  out.writeBigUInt64LE(BigInt(value));
  return out;
}

function text(value) {
  const bytes = Buffer.from(value, 'utf8');
  return Buffer.concat([u64(bytes.length), bytes]);
}
