/**
 * Disk: what was read from it again and again, by layer and by tensor, and in
 * which sizes; of runs that were recorded with the kernel's logs.
 */
import { figures, fill, h, panel, segmented, toolbar, type Figure, type Segmented } from '../dom';
import * as format from '../format';
import type { Filter, State } from '../state';
import type { Disk as Answer, DiskSums } from '../generated/index';
import type { App, View } from '../view';
import { bars, type Bar } from './parts/bars';
import { csv, type Cell } from '../csv';
import { Panels, Slot } from './parts/panels';

type Measure = 'factor' | 'faults';

const NO_LOGS =
  'Nothing was recorded of the kernel in this run. Record it with `tensorscope record --faults --io --residency`: page faults, reads from the disk, and the pages that are in memory.';
/** Bars of tensors; the CSV has all of them. */
const MAX_TENSORS = 40;

class Disk implements View {
  readonly id = 'disk';
  readonly title = 'Disk';
  readonly key = 'i';
  readonly help: [string, string][] = [
    ['m', 're-read factor or major faults'],
    ['click a name', 'filter all views by that layer, or by layer and component of that tensor; again: no longer'],
  ];
  private app!: App;
  private panels!: Panels;
  private all!: Slot;
  private measures!: Segmented;
  private readonly figures = h('div');
  private readonly layers = h('div');
  private readonly tensors = h('div');
  private readonly sizes = h('div');
  private answer: Answer | null = null;

  mount(root: HTMLElement, app: App): void {
    this.app = app;
    this.answer = null;
    this.measures = segmented(
      'by',
      [
        {
          value: 'factor',
          text: 're-read factor',
          title: 'bytes read from the disk over bytes of the tensor; needs `record --io`',
        },
        {
          value: 'faults',
          text: 'major faults',
          title: 'page faults that waited for the disk; needs `record --faults`',
        },
      ],
      (value) => app.setOpt('disk.measure', value === 'factor' ? null : value),
    );
    this.panels = new Panels(root, app, toolbar(this.measures.element));
    this.all = new Slot(
      h(
        'div',
        { class: 'view-panels-inner' },
        this.figures,
        panel(
          'Read again, by layer',
          'Bytes read from the disk over the size of the tensors: 1× is everything once. Layer, component and expert of the filter are those of the bytes; phase, tokens and op those of the node that ran then.',
          this.layers,
        ),
        panel('Sizes of reads', 'Requests to the disk, from one size to twice that; bars are bytes.', this.sizes),
        panel('Read again, by tensor', `At most ${MAX_TENSORS}, those with most of it; the CSV has all.`, this.tensors),
      ),
      '',
    );
    this.panels.element.append(this.all.element);
  }

  unmount(): void {
    this.panels.destroy();
  }

  async update(state: State): Promise<void> {
    const { kernel } = this.app.info;
    const isThere = kernel.faults || kernel.io || kernel.residency;
    const lacking = [kernel.io ? '' : 'factor', kernel.faults ? '' : 'faults'];
    this.measures.element.hidden = !isThere;
    this.measures.set(this.measure(), lacking);
    const answer = isThere ? this.app.api.disk(state.filter) : Promise.resolve(null);
    await this.all.fill(answer, (found) => {
      this.answer = found;
      if (!found) return NO_LOGS;
      this.draw(found);
      return null;
    });
  }

  onKey(event: KeyboardEvent): boolean {
    const { kernel } = this.app.info;
    if (event.key !== 'm' || !kernel.io || !kernel.faults) return false;
    this.app.setOpt('disk.measure', this.measure() === 'factor' ? 'faults' : null);
    return true;
  }

  exportCanvas(): HTMLCanvasElement {
    return this.panels.picture();
  }

  exportCsv(): string {
    const { answer } = this;
    const sums = (of: DiskSums): Cell[] => [
      of.size_bytes,
      of.read_bytes,
      of.size_bytes > 0 ? of.read_bytes / of.size_bytes : null,
      of.major_faults,
      of.minor_faults,
      answer?.sampled ? of.resident_bytes : null,
    ];
    const rows: Cell[][] = [];
    for (const one of answer?.by_layer ?? [])
      rows.push(['layer', format.layer(one.layer), one.layer, null, ...sums(one)]);
    for (const one of answer?.by_tensor ?? []) rows.push(['tensor', one.name, one.layer, one.component, ...sums(one)]);
    for (const one of answer?.sizes ?? [])
      rows.push(['size', one.from_bytes, null, null, null, one.bytes, null, null, null, null, one.requests]);
    return csv(
      [
        'row',
        'name',
        'layer',
        'component',
        'size_bytes',
        'read_bytes',
        'factor',
        'major_faults',
        'minor_faults',
        'resident_bytes',
        'requests',
      ],
      rows,
    );
  }

  /** The other one, where the chosen one was not recorded. */
  private measure(): Measure {
    const { kernel } = this.app.info;
    const wanted: Measure = this.app.state.opt['disk.measure'] === 'faults' ? 'faults' : 'factor';
    if (wanted === 'factor' && !kernel.io && kernel.faults) return 'faults';
    return wanted === 'faults' && !kernel.faults && kernel.io ? 'factor' : wanted;
  }

  private draw(answer: Answer): void {
    const { app } = this;
    fill(this.figures, figures(...numbers(answer)));
    const { filter } = app.state;
    const byLayer = answer.by_layer.map((one) =>
      this.bar(format.layer(one.layer), one, answer, { layer: [one.layer] }, filter),
    );
    fill(this.layers, bars(byLayer, { isDense: byLayer.length > 24 }));
    const most = [...answer.by_tensor].sort((a, b) => this.value(b) - this.value(a)).slice(0, MAX_TENSORS);
    const byTensor = most
      .filter((one) => this.value(one) > 0)
      .map((one) =>
        this.bar(
          one.name,
          one,
          answer,
          { layer: [one.layer], component: [one.component] },
          filter,
          app.colours.component(one.component),
        ),
      );
    fill(
      this.tensors,
      byTensor.length > 0
        ? bars(byTensor, { isDense: true })
        : h('p', { class: 'view-definition' }, 'none of a tensor'),
    );
    const sizes = answer.sizes.map((one): Bar => ({
      name: `from ${format.bytes(one.from_bytes)}`,
      label: `${format.bytes(one.bytes)} · ${format.count(one.requests)} request${one.requests === 1 ? '' : 's'}`,
      parts: [{ name: 'bytes', value: one.bytes, colour: app.colours.disk }],
    }));
    fill(
      this.sizes,
      sizes.length > 0
        ? bars(sizes)
        : h(
            'p',
            { class: 'view-definition' },
            answer.recorded.io ? 'no read passes this filter' : 'needs `record --io`',
          ),
    );
  }

  private value(of: DiskSums): number {
    return this.measure() === 'faults' ? of.major_faults : factor(of);
  }

  private bar(name: string, of: DiskSums, answer: Answer, by: Partial<Filter>, filter: Filter, colour?: string): Bar {
    const { recorded, sampled } = answer;
    const isFaults = this.measure() === 'faults';
    const facts = [
      recorded.io && `${factor(of).toFixed(2)}×`,
      recorded.io && `${format.bytes(of.read_bytes)} of ${format.bytes(of.size_bytes)}`,
      recorded.faults && `${format.count(of.major_faults)} faults`,
      sampled && of.size_bytes > 0 && `${format.percent(of.resident_bytes / of.size_bytes)} in memory`,
    ].filter(Boolean) as string[];
    // What was asked for comes first.
    if (isFaults && recorded.io) facts.unshift(...facts.splice(2, 1));
    const isOn = Object.entries(by).every(([key, value]) => String(filter[key as keyof Filter]) === String(value));
    return {
      name,
      label: facts.join(' · '),
      parts: [
        { name, value: this.value(of), colour: colour ?? (isFaults ? this.app.colours.fault : this.app.colours.disk) },
      ],
      onClick: () => this.app.setFilter(isOn ? { layer: [], component: [] } : { component: [], ...by }),
    };
  }
}

function factor(of: DiskSums): number {
  return of.size_bytes > 0 ? of.read_bytes / of.size_bytes : 0;
}

/** The numbers over all that the filter keeps. */
function numbers({ recorded, total, unowned, elsewhere, samples, sampled }: Answer): Figure[] {
  const out: Figure[] = [];
  if (recorded.io) {
    out.push(
      {
        value: `${factor(total).toFixed(2)}×`,
        name: 're-read factor',
        title: `${format.integer(total.read_bytes)} bytes read of ${format.integer(total.size_bytes)}`,
      },
      {
        value: format.bytes(total.read_bytes),
        name: 'read from the disk',
        title: `besides: ${format.bytes(unowned.read_bytes)} of the files in no tensor, ${format.bytes(elsewhere.read_bytes)} in other files`,
      },
    );
  }
  if (recorded.faults) {
    out.push({
      value: format.count(total.major_faults),
      name: 'major faults in tensors',
      title: `${format.integer(total.minor_faults)} minor ones; besides ${format.integer(unowned.major_faults)} major in no tensor, ${format.integer(elsewhere.major_faults)} elsewhere`,
    });
  }
  if (sampled) {
    out.push({
      value: total.size_bytes > 0 ? format.percent(total.resident_bytes / total.size_bytes) : '–',
      name: `in memory at token ${format.integer(sampled.token)}, the last sample`,
      title: `${format.integer(total.resident_bytes)} bytes; ${format.integer(samples)} samples`,
    });
  }
  return out;
}

export function disk(): View {
  return new Disk();
}
