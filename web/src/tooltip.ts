/** One tooltip for the whole page, beside the pointer, never over it. */

/** A line of text, or a name and its value. */
export type TooltipLine = string | [string, string];

export class Tooltip {
  private readonly box: HTMLElement;

  constructor(parent: HTMLElement) {
    this.box = document.createElement('div');
    this.box.className = 'tooltip';
    this.box.setAttribute('role', 'tooltip');
    this.box.hidden = true;
    parent.append(this.box);
  }

  /** At a point of the window (clientX, clientY); `title` may carry a colour swatch. */
  show(x: number, y: number, title: string, lines: readonly TooltipLine[], swatch?: string): void {
    const head = document.createElement('div');
    head.className = 'tooltip-title';
    if (swatch) {
      const square = document.createElement('span');
      square.className = 'swatch';
      square.style.background = swatch;
      head.append(square);
    }
    head.append(title);
    const grid = document.createElement('div');
    grid.className = 'tooltip-grid';
    for (const line of lines) {
      const [name, value] = typeof line === 'string' ? [null, line] : line;
      const right = document.createElement('span');
      right.textContent = value;
      if (name === null) {
        right.className = 'wide';
      } else {
        const left = document.createElement('span');
        left.className = 'name';
        left.textContent = name;
        grid.append(left);
      }
      grid.append(right);
    }
    this.box.replaceChildren(head, grid);
    this.box.hidden = false;
    const { width, height } = this.box.getBoundingClientRect();
    const left = x + 16 + width > innerWidth - 4 ? x - 16 - width : x + 16;
    const top = y + 16 + height > innerHeight - 4 ? y - 12 - height : y + 16;
    this.box.style.transform = `translate(${Math.max(4, Math.round(left))}px, ${Math.max(4, Math.round(top))}px)`;
  }

  hide(): void {
    if (!this.box.hidden) this.box.hidden = true;
  }
}
