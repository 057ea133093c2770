/** Entry point: asks which runs there are and opens the one that the address names, or the model without a run. */
import 'uplot/dist/uPlot.min.css';
import './generated/palette.css';
import './app.css';
import { Api } from './api';
import { infoOf } from './model';
import { Shell } from './shell';
import { fromHash } from './state';

async function boot(root: HTMLElement): Promise<void> {
  // The page lies at /TOKEN/, and everything it asks for lies below.
  const api = new Api(new URL('.', location.href).href);
  const state = fromHash(location.hash, 'map');
  api.run = state.run;
  try {
    const [runs, model] = await Promise.all([api.runs(), api.model()]);
    const info = model ? infoOf(model, await api.structure()) : await api.info(state.run);
    new Shell(root, api, runs, info, state, model);
  } catch (error) {
    const message = document.createElement('p');
    message.className = 'loading is-error';
    message.setAttribute('role', 'alert');
    message.textContent = error instanceof Error ? error.message : String(error);
    root.replaceChildren(message);
  }
}

void boot(document.getElementById('app') as HTMLElement);
