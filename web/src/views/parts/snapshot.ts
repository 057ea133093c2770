/**
 * A picture of a part of the page: boxes, canvases and texts drawn where they
 * stand. For views that are made of elements as much as of canvases, so that
 * `exportCanvas` shows what the screen shows, scrolled-off parts included.
 */

const SCALE = 2;
/** Browsers refuse larger canvases. */
const MAX_PIXELS = 16_000;

export function snapshot(root: HTMLElement, background: string): HTMLCanvasElement {
  const origin = root.getBoundingClientRect();
  const width = Math.max(1, root.scrollWidth);
  const height = Math.max(1, root.scrollHeight);
  const scale = Math.min(SCALE, MAX_PIXELS / Math.max(width, height));
  const canvas = document.createElement('canvas');
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext('2d');
  if (!pen) return canvas;
  pen.scale(scale, scale);
  pen.fillStyle = background;
  pen.fillRect(0, 0, width, height);
  pen.translate(root.scrollLeft - origin.left, root.scrollTop - origin.top);
  children(pen, root, getComputedStyle(root));
  return canvas;
}

function draw(pen: CanvasRenderingContext2D, element: Element): void {
  const style = getComputedStyle(element);
  if (style.display === 'none' || style.visibility === 'hidden' || style.opacity === '0') return;
  const box = element.getBoundingClientRect();
  // An inline element that wraps has a box on each line.
  for (const part of element.getClientRects()) boxOf(pen, part, style);
  if (element instanceof HTMLCanvasElement) {
    if (element.width > 0 && element.height > 0) {
      pen.imageSmoothingEnabled = style.imageRendering !== 'pixelated';
      pen.drawImage(element, box.left, box.top, box.width, box.height);
    }
    return;
  }
  if (element instanceof HTMLInputElement && element.type === 'range') return slider(pen, element, box, style);
  if (element instanceof HTMLInputElement || element instanceof HTMLTextAreaElement) {
    textAt(pen, element.value, box.left + 8, box.top + 4, style);
    return;
  }
  if (element instanceof HTMLSelectElement) {
    textAt(pen, element.selectedOptions[0]?.textContent ?? '', box.left + 8, box.top + 4, style);
    return;
  }
  const clips = style.overflowX !== 'visible' || style.overflowY !== 'visible';
  if (clips) {
    pen.save();
    pen.beginPath();
    pen.rect(box.left, box.top, box.width, box.height);
    pen.clip();
  }
  children(pen, element, style);
  if (clips) pen.restore();
}

function children(pen: CanvasRenderingContext2D, element: Element, style: CSSStyleDeclaration): void {
  for (const child of element.childNodes) {
    if (child instanceof Element) draw(pen, child);
    else if (child instanceof Text) texts(pen, child, style);
  }
}

function slider(
  pen: CanvasRenderingContext2D,
  element: HTMLInputElement,
  box: DOMRect,
  style: CSSStyleDeclaration,
): void {
  const [least, most] = [Number(element.min), Number(element.max)];
  const middle = box.top + box.height / 2;
  const at = box.left + 8 + ((box.width - 16) * (Number(element.value) - least)) / (most - least || 1);
  pen.fillStyle = style.accentColor === 'auto' ? style.color : style.accentColor;
  pen.fillRect(box.left, middle - 2, at - box.left, 4);
  pen.globalAlpha = 0.25;
  pen.fillRect(at, middle - 2, box.right - at, 4);
  pen.globalAlpha = 1;
  pen.beginPath();
  pen.arc(at, middle, 7, 0, 2 * Math.PI);
  pen.fill();
}

function boxOf(pen: CanvasRenderingContext2D, box: DOMRect, style: CSSStyleDeclaration): void {
  if (box.width === 0 || box.height === 0) return;
  const radius = Math.min(Number.parseFloat(style.borderTopLeftRadius) || 0, box.height / 2, box.width / 2);
  if (style.backgroundColor !== 'rgba(0, 0, 0, 0)') {
    pen.fillStyle = style.backgroundColor;
    pen.beginPath();
    pen.roundRect(box.left, box.top, box.width, box.height, radius);
    pen.fill();
  }
  const border = Number.parseFloat(style.borderTopWidth) || 0;
  const bottom = Number.parseFloat(style.borderBottomWidth) || 0;
  if (border > 0) {
    pen.strokeStyle = style.borderTopColor;
    pen.lineWidth = border;
    pen.beginPath();
    pen.roundRect(box.left + border / 2, box.top + border / 2, box.width - border, box.height - border, radius);
    pen.stroke();
  } else if (bottom > 0) {
    pen.fillStyle = style.borderBottomColor;
    pen.fillRect(box.left, box.bottom - bottom, box.width, bottom);
  }
}

/** Each line of a text node where the browser broke it. */
function texts(pen: CanvasRenderingContext2D, node: Text, style: CSSStyleDeclaration): void {
  const text = node.data;
  if (text.trim() === '') return;
  const range = document.createRange();
  let begin = 0;
  let top = Number.NaN;
  const flush = (end: number): void => {
    range.setStart(node, begin);
    range.setEnd(node, end);
    const box = range.getBoundingClientRect();
    if (box.width > 0) textAt(pen, text.slice(begin, end), box.left, box.top + (box.height - size(style)) / 2, style);
    begin = end;
  };
  range.selectNodeContents(node);
  if (range.getClientRects().length <= 1) return flush(text.length);
  for (let at = 0; at < text.length; at++) {
    range.setStart(node, at);
    range.setEnd(node, at + 1);
    const box = range.getClientRects()[0];
    if (!box || box.width === 0) continue;
    if (!Number.isNaN(top) && Math.abs(box.top - top) > 3) flush(at);
    top = box.top;
  }
  flush(text.length);
}

function textAt(pen: CanvasRenderingContext2D, text: string, x: number, y: number, style: CSSStyleDeclaration): void {
  pen.fillStyle = style.color;
  pen.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  pen.textBaseline = 'top';
  pen.textAlign = 'left';
  const shown = style.textTransform === 'uppercase' ? text.toUpperCase() : text;
  pen.letterSpacing = style.letterSpacing === 'normal' ? '0px' : style.letterSpacing;
  pen.fillText(shown.replace(/\s+/g, ' '), x, y);
  pen.letterSpacing = '0px';
}

function size(style: CSSStyleDeclaration): number {
  return Number.parseFloat(style.fontSize) || 13;
}
