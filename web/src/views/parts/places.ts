/**
 * What lies in whose memory, and what is copied between host and devices. Of a run in which
 * only the processor computed there is nothing to say.
 */
import { h, key, panel } from '../../dom';
import * as format from '../../format';
import type { App } from '../../view';
import { bars, type Bar } from './bars';
import type { Devices, MemoryRow } from './results';

/** Copies of more tensors are added up. */
const MOST_COPIES = 14;
/** What ggml's names of the host's buffers mean. */
const HOST_BUFFERS: Record<string, string> = {
  CPU: 'host, allocated',
  CPU_Mapped: 'host, mapped files',
  CPU_REPACK: 'host, repacked',
};
/** `CUDA_Host`: a device copies from it by itself. */
const PINNED = 'host, pinned';

/** One memory, or one kind of buffer in it. */
export interface Place {
  name: string;
  /** In ggml's words. */
  title: string;
  rows: MemoryRow[];
  bytes: number;
  /** All that there is of it, where that is known. */
  of: number | null;
}

/** Copies of one tensor one way. */
export interface Copied {
  name: string;
  kind: string;
  /** In an average pass. */
  bytes: number;
  calls: number;
}

export function placesOf(devices: Devices): Place[] {
  const sum = (rows: readonly MemoryRow[]) => rows.reduce((all, row) => all + row.bytes, 0);
  const places = devices.devices.map((device): Place => {
    const { device: name, description: title, memory: rows, memory_bytes: of } = device;
    return { name, title, rows, bytes: sum(rows), of };
  });
  for (const buffer of new Set(devices.host_memory.map((row) => row.buffer_type))) {
    const rows = devices.host_memory.filter((row) => row.buffer_type === buffer);
    const known = HOST_BUFFERS[buffer] ?? (buffer.endsWith('_Host') ? PINNED : 'host');
    places.push({ name: known, title: buffer, rows, bytes: sum(rows), of: null });
  }
  return places;
}

/** What an average pass that generates copies, most bytes first; null where none generates. */
export function copiesOf(devices: Devices): { copied: Copied[]; unit: string; bytes: number } | null {
  const passes = devices.passes.find((one) => one.phase === 'generate');
  if (!passes || passes.passes === 0) return null;
  const copied = devices.devices.flatMap((device) =>
    device.copies
      .filter((row) => row.phase === 'generate')
      .map((row) => ({
        name: `${row.tensor} ${way(row.way, device.device)}`,
        kind: row.kind,
        bytes: row.bytes / passes.passes,
        calls: row.calls / passes.passes,
      })),
  );
  copied.sort((a, b) => b.bytes - a.bytes);
  const rest = copied.splice(MOST_COPIES);
  if (rest.length > 0)
    copied.push({
      name: `${format.integer(rest.length)} others`,
      kind: 'activation',
      bytes: rest.reduce((sum, one) => sum + one.bytes, 0),
      calls: rest.reduce((sum, one) => sum + one.calls, 0),
    });
  const bytes = copied.reduce((sum, one) => sum + one.bytes, 0);
  return { copied, unit: passes.passes === passes.tokens ? 'token' : 'pass over the model', bytes };
}

function way(of: string, device: string): string {
  if (of === 'host_to_device') return `to ${device}`;
  if (of === 'device_to_host') return `from ${device}`;
  return `between devices (${device})`;
}

export function places(devices: Devices, app: App): HTMLElement[] {
  const all = placesOf(devices);
  const parts = new Map<string, number>();
  for (const row of all.flatMap((place) => place.rows))
    parts.set(row.component, (parts.get(row.component) ?? 0) + row.bytes);
  const { colours } = app;
  const words = (name: string) => name.replaceAll('_', ' ');
  const memory = all.map((place): Bar => ({
    name: place.name,
    label: place.of === null ? format.bytes(place.bytes) : `${format.bytes(place.bytes)} of ${format.bytes(place.of)}`,
    title: place.title,
    parts: place.rows.map((row) => ({
      name: `${words(row.component)}: ${format.bytes(row.bytes)} in ${format.integer(row.tensors)} tensors`,
      value: row.bytes,
      colour: colours.component(row.component),
    })),
  }));
  const named = [...parts].sort((a, b) => b[1] - a[1]);
  const where = panel(
    'What lies where',
    'Bytes of memory in which tensors of the graphs lie, those that share a place once. What no graph touched, a driver’s own memory and other programs are not in it.',
    key(
      named.map(([name, bytes]) => ({
        name: `${words(name)} ${format.bytes(bytes)}`,
        colour: colours.component(name),
      })),
    ),
    bars(memory, { hover: hoverOf(app) }),
  );
  const copies = copiesOf(devices);
  const copied = panel(
    `Copied for each generated ${copies?.unit ?? 'token'}`,
    'Between host and devices, by tensor; those of all layers with one name together.',
    copies === null || copies.copied.length === 0
      ? h('p', { class: 'hint' }, 'No copy was seen while tokens were generated.')
      : bars(
          copies.copied.map((one) => ({
            name: one.name,
            label: `${format.bytes(one.bytes)} in ${format.count(one.calls)} ${one.calls === 1 ? 'copy' : 'copies'}`,
            parts: [{ name: one.kind, value: one.bytes, colour: colours.component(one.kind) }],
          })),
          { isDense: true },
        ),
  );
  return [where, copied];
}

function hoverOf(app: App) {
  return (event: PointerEvent | null, bar: Bar, part: { name: string; colour: string }) => {
    if (!event) return app.tooltip.hide();
    app.tooltip.show(event.clientX, event.clientY, `${bar.name} (${bar.title ?? ''})`, [part.name], part.colour);
  };
}
