import { h, setText, show } from '../card/dom.ts';
import { clocked } from '../card/format.ts';
import type { ClusterInfo } from './model.ts';
import { ago, gpusAndPlace, timeLeft } from './words.ts';

const KEEP_S = 1800;
const SOON_S = 60;
const SURE_MS = 4000;
const PATIENCE_MS = 8000; // after that a button whose effect is not seen can be pressed again

/** What a row can ask for. Promises reject with a sentence. */
export interface Acts {
  stop(cluster: ClusterInfo): Promise<void>;
  keep(cluster: ClusterInfo, seconds: number): Promise<void>;
  log(cluster: ClusterInfo): void;
  attach: ((cluster: ClusterInfo) => void) | null; // null: there is no notebook to attach it to
}

/** One cluster. The same elements from its first to its last state, so that focus stays where it is. */
export class Row {
  private readonly name = h('b', { class: 'aic-row-name' });
  private readonly place = h('span', { class: 'aic-dim' });
  private readonly sentence = h('div', { class: 'aic-row-sentence', 'data-testid': 'row-sentence' });
  private readonly left = h('div', { class: 'aic-row-left', 'data-testid': 'time-left' });
  private readonly trouble = h('div', { class: 'aic-row-trouble', role: 'alert' });
  private readonly attach: HTMLButtonElement;
  private readonly log: HTMLButtonElement;
  private readonly keep: HTMLButtonElement;
  private readonly stop: HTMLButtonElement;
  readonly root: HTMLLIElement;
  private sureUntil = 0;
  private failed = ''; // what a button of this row could not do

  constructor(
    private cluster: ClusterInfo,
    private readonly acts: Acts
  ) {
    this.log = button('log', 'Log', 'Open its log in a tab', () => {
      acts.log(this.cluster);
    });
    this.attach = button('attach', 'Attach', 'Put %gpujob attach into the notebook', () => {
      acts.attach?.(this.cluster);
    });
    this.keep = button('keep', 'Keep 30 min', 'Hold the GPUs until nothing has run for 30 minutes', () => {
      void this.act(this.keep, 'Keeping…', acts.keep(this.cluster, KEEP_S));
    });
    this.stop = button('stop', 'Stop', 'End the cluster and give the GPUs back now', () => {
      this.askThenStop();
    });
    this.stop.addEventListener('keydown', event => {
      if (event.key === 'Escape') this.calm();
    });
    this.stop.addEventListener('blur', () => {
      this.calm();
    });
    const head = h('div', { class: 'aic-row-head' }, h('span', { class: 'aic-dot', 'aria-hidden': 'true' }), this.name, this.place);
    const buttons = h('div', { class: 'aic-row-buttons' }, this.log, this.attach, this.keep, this.stop);
    this.root = h('li', { class: 'aic-row', 'data-testid': 'cluster', 'data-uid': cluster.uid });
    this.root.append(head, this.sentence, this.trouble, this.left, buttons);
    this.update(cluster);
  }

  update(cluster: ClusterInfo): void {
    if (answers(this.cluster) !== answers(cluster)) {
      this.failed = '';
      for (const pressed of [this.keep, this.stop]) ready(pressed);
    }
    this.cluster = cluster;
    this.root.dataset['tone'] = cluster.tone;
    this.root.dataset['state'] = cluster.state;
    setText(this.name, cluster.name);
    setText(this.place, gpusAndPlace(cluster));
    const ended = cluster.state === 'ended';
    show(this.keep, cluster.can_keep);
    show(this.stop, cluster.can_stop);
    show(this.attach, this.acts.attach !== null && !ended);
    for (const each of [this.log, this.attach, this.keep, this.stop]) each.setAttribute('aria-label', `${each.dataset['label'] ?? ''}: ${cluster.name}`);
    const trouble = this.failed || cluster.notice || (cluster.tone === 'bad' ? cluster.error : '');
    setText(this.trouble, trouble);
    show(this.trouble, trouble !== '');
  }

  /** Move its clocks. */
  tick(now_s: number): void {
    const { sentence, since_s, time_left, ended_s } = this.cluster;
    setText(this.sentence, clocked({ sentence, since_s, limit_s: null }, now_s));
    const left = ended_s !== null ? ago(now_s - ended_s) : time_left === null ? '' : timeLeft(time_left, now_s);
    setText(this.left, left);
    show(this.left, left !== '');
    this.left.classList.toggle('aic-soon', time_left !== null && time_left.at_s - now_s < SOON_S);
  }

  private askThenStop(): void {
    if (performance.now() < this.sureUntil) {
      this.sureUntil = 0;
      void this.act(this.stop, 'Stopping…', this.acts.stop(this.cluster));
      return;
    }
    this.sureUntil = performance.now() + SURE_MS;
    this.stop.textContent = 'Give back now?';
    this.stop.classList.add('aic-sure');
    this.stop.setAttribute('aria-label', `Give back the GPUs of ${this.cluster.name} now? Press again to confirm`);
    setTimeout(() => {
      this.calm();
    }, SURE_MS);
  }

  private calm(): void {
    this.sureUntil = 0;
    if (!this.stop.disabled) ready(this.stop);
  }

  private async act(pressed: HTMLButtonElement, text: string, done: Promise<void>): Promise<void> {
    pressed.disabled = true;
    pressed.textContent = text;
    pressed.classList.remove('aic-sure');
    try {
      await done;
      setTimeout(() => {
        ready(pressed);
      }, PATIENCE_MS);
    } catch (error) {
      this.failed = `${pressed.dataset['label'] ?? ''} did not work: ${error instanceof Error ? error.message : String(error)}`;
      ready(pressed);
      this.update(this.cluster);
    }
  }
}

/** What changes when a pressed button was answered. */
function answers({ state, can_keep, can_stop, time_left }: ClusterInfo): string {
  return JSON.stringify([state, can_keep, can_stop, time_left?.what, Math.round(time_left?.at_s ?? 0)]);
}

function ready(button: HTMLButtonElement): void {
  button.disabled = false;
  button.textContent = button.dataset['label'] ?? '';
  button.classList.remove('aic-sure');
}

function button(name: string, label: string, title: string, pressed: () => void): HTMLButtonElement {
  const made = h('button', { type: 'button', class: 'aic-button', title, 'data-testid': `row-${name}`, 'data-label': label }, label);
  made.addEventListener('click', pressed);
  return made;
}
