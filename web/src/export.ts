/** Saving a view as a file: PNG and SVG as it looks now, CSV of the values behind it. */
import { svgDocument, SvgPen } from './canvas';
import type { App, View } from './view';

export type ExportKind = 'png' | 'svg' | 'csv';

export async function exportAs(kind: ExportKind, view: View, app: App): Promise<void> {
  const blob = await content(kind, view, app);
  if (!blob) throw new Error(`this view has nothing to save as ${kind.toUpperCase()}`);
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = `${app.info.name.replace(/[^\w.-]+/g, '_') || 'run'}-${view.id}.${kind}`;
  link.click();
  // A busy browser begins the download late.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function content(kind: ExportKind, view: View, app: App): Promise<Blob | null> {
  if (kind === 'csv') return view.exportCsv ? new Blob([view.exportCsv()], { type: 'text/csv' }) : null;
  if (kind === 'svg' && view.exportSvg) return new Blob([view.exportSvg()], { type: 'image/svg+xml' });
  const canvas = view.exportCanvas?.();
  if (!canvas) return null;
  if (kind === 'svg') {
    const pen = new SvgPen();
    const ratio = devicePixelRatio || 1;
    const [width, height] = [canvas.width / ratio, canvas.height / ratio];
    pen.image(canvas, 0, 0, width, height);
    const text = svgDocument([{ width, height, body: pen.parts.join('') }], app.colours.ground);
    return new Blob([text], { type: 'image/svg+xml' });
  }
  return pngOf(canvas);
}

/**
 * Not `toBlob`: Chromium encodes there only while the page is idle, and when it
 * never is, gives up waiting after 1 s or even 6.7 s. Encoding itself takes 50 ms.
 */
function pngOf(canvas: HTMLCanvasElement): Blob {
  const [, base64 = ''] = canvas.toDataURL('image/png').split(',');
  return new Blob([Uint8Array.from(atob(base64), (c) => c.charCodeAt(0))], { type: 'image/png' });
}
