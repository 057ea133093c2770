/** A model without a run, as views that know runs see it. */
import * as format from './format';
import type { Info } from './generated/index';
import type { ModelFacts, ModelStructure } from './generated/server';

/** Its files and tensors, and nothing that a run would add. */
export function infoOf(facts: ModelFacts, structure: ModelStructure): Info {
  const layers = [...new Set(structure.tensors.map(({ layer }) => layer))];
  return {
    name: structure.files[0]?.name ?? facts.path,
    live: false,
    version: 0,
    model: {
      name: facts.name,
      architecture: facts.architecture,
      size_bytes: facts.size_bytes,
      layers: facts.layers,
      experts: facts.experts,
      experts_used: facts.experts_used,
      files: structure.files,
    },
    totals: { evals: 0, tokens: 0, nodes: 0, accesses: 0, bytes: 0, duration_nanos: 0 },
    phases: [],
    // Ascending, what belongs to no layer last.
    layers: layers.sort((a, b) => (a ?? Number.MAX_VALUE) - (b ?? Number.MAX_VALUE)),
    components: [...new Set(structure.tensors.map(({ component }) => component))].sort(),
    ops: [],
    experts: facts.experts,
    tensors: structure.tensors.map((tensor) => ({
      tensor: null,
      name: tensor.name,
      layer: tensor.layer,
      component: tensor.component,
      role: tensor.role,
      type: tensor.type,
      begin: tensor.begin,
      size_bytes: tensor.size_bytes,
      experts: tensor.experts,
    })),
    missing: [],
    devices: [],
    kernel: { faults: false, io: false, residency: false },
  };
}

/** What it is, on the status line. */
export function modelText(model: ModelFacts): string {
  const active =
    model.active_parameters === model.parameters ? '' : ` (${format.count(model.active_parameters)} for a token)`;
  return [
    `${format.count(model.parameters)} parameters${active}`,
    `${format.bytes(model.tensor_bytes)} of tensors`,
    `${model.bits_per_parameter.toFixed(2)} bits a parameter`,
    model.max_context === null ? '' : `trained for ${format.integer(model.max_context)} tokens`,
  ]
    .filter((part) => part !== '')
    .join(' · ');
}
