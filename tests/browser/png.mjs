/** The PNG files that browsers write (8 bits, not interlaced): what is in them, and the same picture in fewer bytes. */
import { deflateSync, inflateSync } from 'node:zlib';

const SIGNATURE = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);
const CHANNELS = { 0: 1, 2: 3, 4: 2, 6: 4 };

export function decode(bytes) {
  if (!bytes.subarray(0, 8).equals(SIGNATURE)) throw new Error('not a PNG: the signature is missing');
  let header = null;
  const data = [];
  for (let at = 8; at + 12 <= bytes.length; ) {
    const length = bytes.readUInt32BE(at);
    const kind = bytes.toString('latin1', at + 4, at + 8);
    const body = bytes.subarray(at + 8, at + 8 + length);
    if (kind === 'IHDR') header = { width: body.readUInt32BE(0), height: body.readUInt32BE(4), bits: body[8], colour: body[9], interlace: body[12] };
    if (kind === 'IDAT') data.push(body);
    at += 12 + length;
  }
  const channels = CHANNELS[header?.colour];
  if (header?.bits !== 8 || !channels || header.interlace) throw new Error('a kind of PNG that no browser writes');
  return { width: header.width, height: header.height, channels, pixels: unfilter(inflateSync(Buffer.concat(data)), header, channels) };
}

function unfilter(raw, { width, height }, channels) {
  const stride = width * channels;
  const out = Buffer.alloc(stride * height);
  for (let y = 0; y < height; y++) {
    const from = y * (stride + 1) + 1;
    const filter = raw[from - 1];
    for (let x = 0, at = y * stride; x < stride; x++, at++) {
      const left = x >= channels ? out[at - channels] : 0;
      const up = y > 0 ? out[at - stride] : 0;
      let predicted = 0;
      if (filter === 1) predicted = left;
      else if (filter === 2) predicted = up;
      else if (filter === 3) predicted = (left + up) >> 1;
      else if (filter === 4) predicted = paeth(left, up, x >= channels && y > 0 ? out[at - stride - channels] : 0);
      out[at] = raw[from + x] + predicted;
    }
  }
  return out;
}

function paeth(a, b, c) {
  const pa = Math.abs(b - c);
  const pb = Math.abs(a - c);
  const pc = Math.abs(a + b - 2 * c);
  return pa <= pb && pa <= pc ? a : pb <= pc ? b : c;
}

/**
 * What is in a picture: how many colours that are not grey (text is drawn in
 * many greys, data in hues), and which share of it is not background.
 */
export function look(bytes) {
  const { channels, pixels } = decode(bytes);
  const counts = new Map();
  for (let at = 0; at < pixels.length; at += channels) {
    const colour = channels < 3 ? pixels[at] * 0x010101 : (pixels[at] << 16) | (pixels[at + 1] << 8) | pixels[at + 2];
    counts.set(colour, (counts.get(colour) ?? 0) + 1);
  }
  const background = Math.max(...counts.values());
  const hues = [...counts.keys()].filter((colour) => {
    const parts = [colour >> 16, (colour >> 8) & 255, colour & 255];
    return Math.max(...parts) - Math.min(...parts) > 40;
  }).length;
  return { colours: counts.size, hues, drawn: 1 - background / (pixels.length / channels) };
}

/**
 * The same picture in fewer bytes: areas of one colour deflate best without a filter, which browsers do not try.
 * A step of 2 rounds colours to even numbers, which no eye sees.
 */
export function packed(bytes, step = 1) {
  const { width, height, channels, pixels } = decode(bytes);
  const stride = width * channels;
  if (step > 1) for (let at = 0; at < pixels.length; at++) pixels[at] -= pixels[at] % step;
  const raw = Buffer.alloc((stride + 1) * height);
  for (let y = 0; y < height; y++) pixels.copy(raw, y * (stride + 1) + 1, y * stride, (y + 1) * stride);
  const out = Buffer.concat([
    SIGNATURE, bytes.subarray(8, 33), chunk('IDAT', deflateSync(raw, { level: 9, memLevel: 9 })), chunk('IEND', Buffer.alloc(0)),
  ]);
  return out.length < bytes.length ? out : bytes;
}

function chunk(kind, body) {
  const out = Buffer.alloc(12 + body.length);
  out.writeUInt32BE(body.length, 0);
  out.write(kind, 4, 'latin1');
  body.copy(out, 8);
  out.writeUInt32BE(crc(out.subarray(4, 8 + body.length)), 8 + body.length);
  return out;
}

function crc(bytes) {
  let state = 0xffffffff;
  for (const byte of bytes) {
    state ^= byte;
    for (let bit = 0; bit < 8; bit++) state = (state >>> 1) ^ (state & 1 ? 0xedb88320 : 0);
  }
  return (state ^ 0xffffffff) >>> 0;
}
