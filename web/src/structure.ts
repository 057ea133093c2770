/** What a model's file is made of: sums over its tensors, by layer and role, by type, by component. */
import type { ModelTensor } from './generated/server';

/** What is picked out of the model; an absent key picks all. */
export interface Selection {
  /** Null: what belongs to no layer. */
  layer?: number | null;
  component?: string;
  type?: string;
}

type Told = Pick<ModelTensor, 'layer' | 'component' | 'role' | 'type' | 'size_bytes'>;

export function isSelected(tensor: Pick<Told, 'layer' | 'component' | 'type'>, selection: Selection): boolean {
  return (
    (selection.layer === undefined || selection.layer === tensor.layer) &&
    (selection.component === undefined || selection.component === tensor.component) &&
    (selection.type === undefined || selection.type === tensor.type)
  );
}

export interface Sum {
  name: string;
  bytes: number;
  tensors: number;
}

/** The largest first. */
export function sumsBy(tensors: readonly Told[], key: 'type' | 'component'): Sum[] {
  const sums = new Map<string, Sum>();
  for (const tensor of tensors) {
    const sum = sums.get(tensor[key]) ?? { name: tensor[key], bytes: 0, tensors: 0 };
    sum.bytes += tensor.size_bytes;
    sum.tensors += 1;
    sums.set(tensor[key], sum);
  }
  return [...sums.values()].sort((a, b) => b.bytes - a.bytes);
}

export interface Column {
  component: string;
  role: string;
}

export interface Cell {
  bytes: number;
  /** In the order of the file, each once. */
  types: string[];
}

export interface LayerRow {
  layer: number | null;
  bytes: number;
  /** One for each column; null where the layer has no such tensor. */
  cells: (Cell | null)[];
}

/** Bytes and types of every layer by role: layers ascending, what belongs to none last. */
export function layerTable(tensors: readonly Told[]): { columns: Column[]; rows: LayerRow[] } {
  const columns: Column[] = [];
  const places = new Map<string, number>();
  const inLayers = tensors.filter(({ layer }) => layer !== null);
  const outside = tensors.filter(({ layer }) => layer === null);
  // Components stay together, the largest first; their roles as a layer has them.
  const components = sumsBy(tensors, 'component').map(({ name }) => name);
  for (const component of components) {
    for (const { role } of [...inLayers, ...outside].filter((one) => one.component === component)) {
      const key = `${component} ${role}`;
      if (places.has(key)) continue;
      places.set(key, columns.length);
      columns.push({ component, role });
    }
  }
  const rows = new Map<number | null, LayerRow>();
  for (const { layer, component, role, type, size_bytes: bytes } of tensors) {
    const row = rows.get(layer) ?? { layer, bytes: 0, cells: columns.map(() => null) };
    rows.set(layer, row);
    row.bytes += bytes;
    const at = places.get(`${component} ${role}`) as number;
    const cell = (row.cells[at] ??= { bytes: 0, types: [] });
    cell.bytes += bytes;
    if (!cell.types.includes(type)) cell.types.push(type);
  }
  const rank = ({ layer }: LayerRow) => layer ?? Number.MAX_VALUE;
  return { columns, rows: [...rows.values()].sort((a, b) => rank(a) - rank(b)) };
}

/** Of each cell along a map 1 where what lies in its middle is picked, 0 elsewhere. */
export function selectedCells(
  tensors: readonly (Pick<Told, 'layer' | 'component' | 'type'> & { begin: number })[],
  cells: number,
  cellBytes: number,
  selection: Selection,
): Float32Array {
  const values = new Float32Array(cells);
  let t = -1;
  for (let i = 0; i < cells; i++) {
    const middle = (i + 0.5) * cellBytes;
    while (t + 1 < tensors.length && (tensors[t + 1] as { begin: number }).begin <= middle) t++;
    const tensor = tensors[t];
    values[i] = tensor && isSelected(tensor, selection) ? 1 : 0;
  }
  return values;
}
