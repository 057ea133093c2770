/** The flame graph's tree as flat arrays: drawing and searching touch no objects. */
import type { Flame } from '../../generated/index';

export interface Frames {
  count: number;
  /** Begin and width as shares of the root, in the tree's order (parents first). */
  begin: Float64Array;
  width: Float64Array;
  depth: Uint8Array;
  parent: Int32Array;
  value: Float64Array;
  name: string[];
  depths: number;
}

/** Larger children stand left, so that zooming finds the same order again. */
export function layOut(root: Flame): Frames {
  let count = 0;
  const counted: Flame[] = [root];
  for (let node = counted.pop(); node; node = counted.pop()) {
    count++;
    for (const child of node.children ?? []) counted.push(child);
  }
  const frames: Frames = {
    count,
    begin: new Float64Array(count),
    width: new Float64Array(count),
    depth: new Uint8Array(count),
    parent: new Int32Array(count),
    value: new Float64Array(count),
    name: new Array<string>(count),
    depths: 0,
  };
  const total = root.value > 0 ? root.value : 1;
  let next = 0;
  const place = (node: Flame, parent: number, depth: number, begin: number): void => {
    const at = next++;
    frames.begin[at] = begin;
    frames.width[at] = node.value / total;
    frames.depth[at] = depth;
    frames.parent[at] = parent;
    frames.value[at] = node.value;
    frames.name[at] = node.name;
    frames.depths = Math.max(frames.depths, depth + 1);
    let edge = begin;
    const isOrdered = depth === 1; // layers stay in the model's order
    const children = [...(node.children ?? [])];
    if (!isOrdered) children.sort((a, b) => b.value - a.value || (a.name < b.name ? -1 : 1));
    for (const child of children) {
      place(child, at, depth + 1, edge);
      edge += child.value / total;
    }
  };
  place(root, -1, 0, 0);
  return frames;
}

export function pathOf(frames: Frames, at: number): string[] {
  const path: string[] = [];
  for (let node = at; node >= 0; node = frames.parent[node] ?? -1) path.unshift(frames.name[node] ?? '');
  return path;
}

/** The frame with this path of names, or the root. */
export function find(frames: Frames, path: readonly string[]): number {
  let at = 0;
  for (const name of path.slice(1)) {
    let child = -1;
    for (let node = at + 1; node < frames.count && (frames.depth[node] ?? 0) > (frames.depth[at] ?? 0); node++) {
      if (frames.parent[node] === at && frames.name[node] === name) {
        child = node;
        break;
      }
    }
    if (child < 0) return at;
    at = child;
  }
  return at;
}

/** Frames that hold the text, and the value they cover (nested ones once). */
export function search(frames: Frames, text: string): { hits: Uint8Array; count: number; value: number } {
  const wanted = text.trim().toLowerCase();
  const hits = new Uint8Array(frames.count);
  let [count, value] = [0, 0];
  const covered = new Uint8Array(frames.count);
  for (let at = 0; wanted !== '' && at < frames.count; at++) {
    const parent = frames.parent[at] ?? -1;
    if (parent >= 0 && covered[parent]) covered[at] = 1;
    if (!(frames.name[at] ?? '').toLowerCase().includes(wanted)) continue;
    hits[at] = 1;
    count++;
    if (!covered[at]) value += frames.value[at] ?? 0;
    covered[at] = 1;
  }
  return { hits, count, value };
}
