import { h, show } from './dom.ts';
import type { Snapshot } from './model.ts';
import { canInterrupt, interruptKernel } from './server.ts';

const KEEP_S = 1800;
const SURE_MS = 4000;
const PATIENCE_MS = 5000; // after that a button that was not answered can be pressed again

/**
 * Interrupt, Keep, Stop. They send a message where the kernel hears it while a cell blocks; else Interrupt goes through
 * the server, and the others give way to a sentence: a button that does nothing is worse than none.
 */
export class Buttons {
  private readonly interrupt = this.button('interrupt', 'Interrupt', 'Stop the cell; the GPUs stay for a while');
  private readonly keep = this.button('keep', 'Keep 30 min', 'Keep the GPUs for another 30 minutes');
  private readonly stop = this.button('stop', 'Stop', 'End the cluster and give the GPUs back now');
  private readonly sentence = h('span', { class: 'aic-dim aic-no-line', 'data-testid': 'no-line' });
  readonly root = h('div', { class: 'aic-buttons' }, this.sentence, this.interrupt, this.keep, this.stop);
  private heard = true;
  private sureUntil = 0;

  constructor(
    private readonly send: (message: { event: string; seconds?: number }) => void,
    private readonly kernel: () => string | null,
    private readonly say: (text: string) => void
  ) {
    this.interrupt.addEventListener('click', () => {
      this.wait(this.interrupt, this.interrupt.dataset['label'] === 'Cancel' ? 'Cancelling…' : 'Interrupting…');
      if (this.heard) this.send({ event: 'interrupt' });
      else void this.throughServer();
    });
    this.keep.addEventListener('click', () => {
      this.wait(this.keep, 'Keeping…');
      this.send({ event: 'keep', seconds: KEEP_S });
    });
    this.stop.addEventListener('click', () => {
      this.askThenStop();
    });
  }

  update(snapshot: Snapshot): void {
    this.heard = snapshot.line !== 'none';
    const server = canInterrupt(this.kernel());
    show(this.interrupt, snapshot.can_interrupt && (this.heard || server));
    show(this.keep, snapshot.can_keep && this.heard);
    const waits = snapshot.state === 'submitted' || snapshot.state === 'queued';
    this.relabel(this.interrupt, waits ? 'Cancel' : 'Interrupt', waits ? 'Take the request out of the queue' : 'Stop the cell; the GPUs stay for a while');
    show(this.stop, snapshot.can_stop && this.heard && !(waits && snapshot.can_interrupt)); // while waiting, Cancel does it
    this.sentence.textContent = server || !snapshot.can_interrupt ? `to stop: jupyter aicluster stop ${snapshot.name}` : `press ■, or jupyter aicluster stop ${snapshot.name}`;
    show(this.sentence, snapshot.can_stop && !this.heard);
  }

  /** The state moved on: whatever was pressed was answered. */
  ready(): void {
    for (const button of [this.interrupt, this.keep, this.stop]) this.reset(button);
  }

  private askThenStop(): void {
    if (performance.now() < this.sureUntil) {
      this.sureUntil = 0;
      this.wait(this.stop, 'Stopping…');
      this.send({ event: 'stop' });
      return;
    }
    this.sureUntil = performance.now() + SURE_MS;
    this.stop.textContent = 'Give back now?';
    this.stop.classList.add('aic-sure');
    setTimeout(() => {
      if (!this.stop.disabled) this.reset(this.stop);
    }, SURE_MS);
  }

  private async throughServer(): Promise<void> {
    try {
      await interruptKernel(this.kernel() ?? '');
    } catch (error) {
      this.say(`Interrupt did not work: ${error instanceof Error ? error.message : String(error)}. Press ■ in the toolbar.`);
      this.reset(this.interrupt);
    }
  }

  private wait(button: HTMLButtonElement, text: string): void {
    button.disabled = true;
    button.textContent = text;
    setTimeout(() => {
      this.reset(button);
    }, PATIENCE_MS);
  }

  private reset(button: HTMLButtonElement): void {
    button.disabled = false;
    button.textContent = button.dataset['label'] ?? '';
    button.classList.remove('aic-sure');
  }

  private relabel(button: HTMLButtonElement, label: string, title: string): void {
    button.dataset['label'] = label;
    button.title = title;
    if (!button.disabled) button.textContent = label;
  }

  private button(name: string, label: string, title: string): HTMLButtonElement {
    return h('button', { type: 'button', class: 'aic-button', title, 'data-testid': name, 'data-label': label }, label);
  }
}
