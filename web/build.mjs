// Bundles src/ into dist/{app.js,app.css,index.html}, which are committed and
// embedded in the program. The output depends on nothing but the sources and
// the pinned versions: no hashes, dates or absolute paths.
import { copyFile, mkdir } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const here = dirname(fileURLToPath(import.meta.url));
const out = resolve(here, process.env.TENSORSCOPE_WEB_OUT ?? 'dist');

await mkdir(out, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { app: 'src/main.ts' },
  outdir: out,
  bundle: true,
  minify: true,
  format: 'iife',
  target: ['es2022'],
  charset: 'utf8',
  // Licences of bundled libraries stay in the file that is shipped.
  legalComments: 'eof',
  logLevel: 'warning',
});
await copyFile(join(here, 'src/index.html'), join(out, 'index.html'));
