import { Poll } from '@lumino/polling';
import { Widget } from '@lumino/widgets';

import { h, setText, show } from '../card/dom.ts';
import { size } from '../card/format.ts';
import type { StreamInfo, Streams } from './model.ts';
import type { Server } from './server.ts';
import { MOST_LINES, Tail } from './tail.ts';
import { firstStream, streamLabels } from './words.ts';

const POLL_MS = 1000;
const SLOWEST_MS = 30_000;
const TAIL_BYTES = 200_000; // what is read of a log that is there already, or that has run away from us
const AT_END_PX = 24;

/** One log of one cluster, its newest lines, followed while the end is in sight. */
export class LogView extends Widget {
  private readonly choice = h('select', { class: 'aic-logview-choice', 'aria-label': 'Log of' });
  private readonly filter = h('input', { type: 'search', class: 'aic-logview-filter', placeholder: 'Filter lines', 'aria-label': 'Filter log lines' });
  private readonly follow = h('button', { type: 'button', class: 'aic-button', 'aria-pressed': 'true', title: 'Stay at the newest line' }, 'Follow');
  private readonly facts = h('span', { class: 'aic-dim aic-logview-facts', 'data-testid': 'log-facts' });
  private readonly lines = h('div', { class: 'aic-logview-lines', tabindex: '0', role: 'log', 'aria-live': 'off', 'data-testid': 'log-lines' });
  private readonly tail = new Tail();
  private readonly poll: Poll<void>;
  private streams: StreamInfo[] = [];
  private chosen: Pick<StreamInfo, 'node' | 'stream'> | null = null;
  private byHand = false; // a person chose the stream: it stays
  private attempt = 0;
  private at: number | null = null; // how far it was read; null: not begun
  private following = true;

  constructor(
    private readonly server: Server,
    readonly uid: string,
    readonly name: string
  ) {
    super();
    this.addClass('aic-logview');
    this.lines.setAttribute('aria-label', `Log of ${name}`);
    this.node.append(h('div', { class: 'aic-logview-bar', role: 'toolbar', 'aria-label': `Log of ${name}` }, this.choice, this.filter, this.facts, this.follow), this.lines);
    this.choice.addEventListener('change', () => {
      this.byHand = true;
      this.choose(this.streams[this.choice.selectedIndex] ?? null);
      void this.poll.refresh();
    });
    this.filter.addEventListener('input', () => {
      this.draw();
    });
    this.follow.addEventListener('click', () => {
      this.setFollowing(!this.following);
    });
    this.lines.addEventListener('scroll', () => {
      const atEnd = this.lines.scrollHeight - this.lines.scrollTop - this.lines.clientHeight < AT_END_PX;
      if (atEnd !== this.following) this.setFollowing(atEnd);
    });
    this.poll = new Poll({
      name: `jupyter-aicluster:log-${uid}`,
      factory: () => this.look(),
      frequency: { interval: POLL_MS, backoff: true, max: SLOWEST_MS },
      standby: () => (this.isVisible ? 'when-hidden' : true)
    });
  }

  override dispose(): void {
    this.poll.dispose();
    super.dispose();
  }

  protected override onAfterShow(): void {
    void this.poll.refresh();
    if (this.following) this.toEnd();
  }

  protected override onActivateRequest(): void {
    this.lines.focus();
  }

  private async look(): Promise<void> {
    let said: Streams;
    try {
      said = await this.server.streams(this.uid);
      if (said.attempt !== this.attempt) this.restart(); // all have started again: other files
      this.attempt = said.attempt;
      this.offer(said.streams);
      await this.read();
    } catch (error) {
      setText(this.facts, error instanceof Error ? error.message : String(error));
      throw error;
    }
    if (said.ended && this.streams.every(stream => !this.isChosen(stream) || stream.size <= (this.at ?? 0))) await this.poll.stop();
  }

  private offer(streams: StreamInfo[]): void {
    this.streams = streams;
    const first = firstStream(streams);
    if (first && (this.chosen === null || !this.byHand)) this.choose(first);
    const labels = streamLabels(streams);
    if (labels.join('\n') !== [...this.choice.options].map(option => option.text).join('\n')) {
      this.choice.replaceChildren(...labels.map(label => h('option', {}, label)));
    }
    this.choice.selectedIndex = streams.findIndex(stream => this.isChosen(stream));
    show(this.choice, streams.length > 0);
    if (streams.length === 0) setText(this.facts, 'nothing was written yet');
  }

  private choose(stream: Pick<StreamInfo, 'node' | 'stream'> | null): void {
    if (stream && this.isChosen(stream)) return;
    this.chosen = stream;
    this.restart();
  }

  private restart(): void {
    this.at = null;
    this.tail.restart(false);
    this.draw();
  }

  private isChosen({ node, stream }: Pick<StreamInfo, 'node' | 'stream'>): boolean {
    return this.chosen?.node === node && this.chosen.stream === stream;
  }

  private async read(): Promise<void> {
    const { chosen } = this;
    const there = this.streams.find(stream => this.isChosen(stream));
    if (chosen === null || there === undefined) return;
    if (this.at === null || there.size - this.at > 2 * TAIL_BYTES || there.size < this.at) {
      this.at = Math.max(0, there.size - TAIL_BYTES);
      this.tail.restart(this.at > 0);
    }
    const before = this.at;
    const bytes = await this.server.log(this.uid, chosen.node, chosen.stream, this.at);
    if (this.chosen !== chosen) return; // another one was chosen meanwhile
    this.at += bytes.length;
    this.tail.take(bytes);
    if (bytes.length || before === 0) this.draw();
  }

  private draw(): void {
    const word = this.filter.value.trim().toLowerCase();
    const lines = this.tail.lines();
    const shown = word ? lines.filter(line => line.toLowerCase().includes(word)) : lines;
    this.lines.textContent = shown.join('\n');
    const cut = this.tail.dropped > 0 || (this.at ?? 0) > TAIL_BYTES;
    const parts = [this.at === null ? '' : size(this.at)];
    if (cut) parts.push(`the newest ${lines.length.toLocaleString('en')} lines`);
    if (word) parts.push(`${shown.length.toLocaleString('en')} match`);
    setText(this.facts, parts.filter(Boolean).join(' · '));
    this.facts.title = cut ? `At most ${MOST_LINES} lines are shown; all of it: jupyter aicluster logs ${this.name}` : '';
    if (this.following) this.toEnd();
  }

  private setFollowing(following: boolean): void {
    this.following = following;
    this.follow.setAttribute('aria-pressed', String(following));
    if (following) this.toEnd();
  }

  private toEnd(): void {
    this.lines.scrollTop = this.lines.scrollHeight;
  }
}
