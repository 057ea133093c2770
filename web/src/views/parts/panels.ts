/**
 * A view made of panels that scroll. Each panel asks for its own data: one that
 * waits or fails does not hold up the others.
 */
import { isAbort } from '../../api';
import { fill, h, note } from '../../dom';
import type { App } from '../../view';
import { snapshot } from './snapshot';

export class Panels {
  readonly element = h('div', { class: 'view-panels' });
  private readonly closers: (() => void)[] = [];

  constructor(
    root: HTMLElement,
    private readonly app: App,
    ...above: HTMLElement[]
  ) {
    root.append(...above, this.element);
  }

  /** Something to take down with the view. */
  keep<T extends { destroy(): void }>(thing: T): T {
    this.closers.push(() => thing.destroy());
    return thing;
  }

  destroy(): void {
    for (const close of this.closers) close();
    this.closers.length = 0;
    this.app.tooltip.hide();
  }

  picture(): HTMLCanvasElement {
    return snapshot(this.element, this.app.colours.ground);
  }
}

/** The place of a panel that shows what it waits for, what it has, or why it has nothing. */
export class Slot {
  readonly element: HTMLElement;
  private readonly status = h('div');
  private round = 0;

  /** `waiting` empty: the shell says that the view waits. */
  constructor(
    private readonly content: HTMLElement,
    private readonly waiting = 'computing…',
  ) {
    this.element = h('div', { class: 'view-slot' }, this.status, content);
  }

  /** Awaits and shows; a sentence from `show` stands instead of the content. */
  async fill<T>(answer: Promise<T>, show: (value: T) => string | null | void): Promise<void> {
    const round = ++this.round;
    // Answers that come at once should not flicker.
    const patience = setTimeout(
      () => this.round === round && this.waiting !== '' && this.say(note(this.waiting, 'busy')),
      120,
    );
    try {
      const value = await answer;
      if (this.round !== round) return;
      this.content.hidden = false;
      const sentence = show(value);
      if (sentence) this.say(note(sentence, 'empty'));
      else fill(this.status);
    } catch (error) {
      if (this.round !== round || isAbort(error)) return;
      this.say(note(error instanceof Error ? error.message : String(error), 'error'));
    } finally {
      clearTimeout(patience);
    }
  }

  say(what: HTMLElement): void {
    this.content.hidden = true;
    fill(this.status, what);
  }
}
