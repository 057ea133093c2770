/** The views, in the order of their keys. */
import type { View } from './view';
import { attention } from './views/attention';
import { compare } from './views/compare';
import { disk } from './views/disk';
import { estimate } from './views/estimate';
import { experts } from './views/experts';
import { flame } from './views/flame';
import { heatmaps } from './views/heatmaps';
import { map } from './views/map';
import { memory } from './views/memory';
import { playback } from './views/playback';
import { structure } from './views/structure';
import { table } from './views/table';
import { timeline } from './views/timeline';
import { why } from './views/why';

export function allViews(): View[] {
  return [
    map(),
    playback(),
    timeline(),
    heatmaps(),
    experts(),
    attention(),
    memory(),
    flame(),
    table(),
    compare(),
    disk(),
    why(),
  ];
}

/** Of a model without a run. */
export function modelViews(): View[] {
  return [estimate(), structure()];
}
