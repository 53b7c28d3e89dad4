import { Buttons } from './buttons.ts';
import { h, setText, show } from './dom.ts';
import { clocked, costs, duration, place, some } from './format.ts';
import type { Sample } from './frame.ts';
import { GpuStrips } from './gpus.ts';
import { LogTail } from './log.ts';
import type { Gate, LogLine, Snapshot } from './model.ts';

const SOON_S = 60;

/** The card: one sentence, safe to close or not, names, GPUs, log; at the end the result, then the cost. */
export class CardView {
  private readonly sentence = h('span', { class: 'aic-sentence', 'data-testid': 'sentence' });
  private readonly spoken = h('span', { class: 'aic-spoken', role: 'status', 'aria-live': 'polite' });
  private readonly place = h('span', { 'data-testid': 'place' });
  private readonly safe = h('span', { 'data-testid': 'safe' });
  private readonly names = h('div', { class: 'aic-names aic-dim', 'data-testid': 'names' });
  private readonly gates = h('div', { class: 'aic-gates', 'data-testid': 'gates' });
  private readonly error = h('div', { class: 'aic-error', 'data-testid': 'error' });
  private readonly countdowns = h('div', { class: 'aic-countdowns', 'data-testid': 'countdowns' });
  private readonly notices = h('div', { class: 'aic-notices', 'data-testid': 'notices' });
  private readonly summary = h('div', { class: 'aic-summary', 'data-testid': 'summary' });
  private readonly dashboard = h('a', { class: 'aic-link', target: '_blank', rel: 'noopener' }, 'Ray dashboard');
  private readonly gpus = new GpuStrips();
  private readonly log = new LogTail();
  private readonly buttons: Buttons;
  readonly root: HTMLElement;
  private snapshot: Snapshot | null = null;
  private skew_s = 0;
  private said = '';

  constructor(send: (message: { event: string; seconds?: number }) => void, kernel: () => string | null) {
    this.buttons = new Buttons(send, kernel, text => {
      this.notices.replaceChildren(h('div', {}, text));
    });
    const head = h('div', { class: 'aic-head' }, h('span', { class: 'aic-dot', 'aria-hidden': 'true' }), this.sentence, this.buttons.root);
    const meta = h('div', { class: 'aic-meta aic-dim' }, this.place, this.safe, this.dashboard);
    this.root = h('div', { class: 'aic-card', role: 'group', 'aria-label': 'GPU cluster', 'data-testid': 'aicluster-card' });
    this.root.append(head, this.spoken, meta, this.names, this.summary, this.error, this.countdowns, this.gates);
    this.root.append(this.gpus.root, this.notices, this.log.root);
  }

  update(snapshot: Snapshot): void {
    const moved = this.snapshot === null || answers(this.snapshot) !== answers(snapshot);
    this.snapshot = snapshot;
    this.skew_s = Date.now() / 1000 - snapshot.now_s;
    this.root.dataset['state'] = snapshot.state;
    this.root.dataset['tone'] = snapshot.tone;
    if (moved) this.buttons.ready();
    this.buttons.update(snapshot);
    this.speak(snapshot);
    setText(this.place, place(snapshot));
    setText(this.safe, snapshot.safe_to_close);
    show(this.safe, snapshot.safe_to_close !== '');
    this.dashboard.href = snapshot.dashboard;
    show(this.dashboard, snapshot.dashboard !== '');
    this.drawNames(snapshot);
    this.drawGates(snapshot);
    setText(this.error, snapshot.error);
    show(this.error, snapshot.error !== '' && snapshot.tone === 'bad'); // not for an interrupt: the sentence says it
    this.notices.replaceChildren(...snapshot.notices.slice(-2).map(text => h('div', {}, text)));
    show(this.notices, snapshot.notices.length > 0);
    this.drawSummary(snapshot);
    this.gpus.update(snapshot);
    this.tick();
  }

  frame(samples: readonly Sample[]): void {
    this.gpus.frame(samples);
  }

  logLines(lines: LogLine[]): void {
    this.log.update(lines);
  }

  /** Move the clocks. */
  tick(): void {
    if (this.snapshot === null) return;
    const now_s = Date.now() / 1000 - this.skew_s;
    setText(this.sentence, clocked(this.snapshot, now_s));
    const { countdowns } = this.snapshot;
    show(this.countdowns, countdowns.length > 0);
    this.countdowns.replaceChildren(
      ...countdowns.map(({ what, text, at_s }) => {
        const left_s = at_s - now_s;
        return h('span', { class: left_s < SOON_S ? 'aic-soon' : '', 'data-what': what }, `${text} `, h('b', {}, duration(left_s)));
      })
    );
  }

  /** Screen readers hear each new state once, without its clock. */
  private speak(snapshot: Snapshot): void {
    const key = `${snapshot.state} ${snapshot.tone}`;
    if (key === this.said) return;
    this.said = key;
    setText(this.spoken, snapshot.sentence);
  }

  private drawNames({ names_sent, names_expected, state, can_interrupt }: Snapshot): void {
    const parts: (Node | string)[] = [];
    if (names_sent.length) parts.push('sends ', h('code', { title: names_sent.join(', ') }, some(names_sent)));
    if (names_expected.length) {
      const back = state === 'ended' || (state === 'ready' && !can_interrupt) ? 'brought back ' : 'brings back ';
      parts.push(parts.length ? ` · ${back}` : back, h('code', { title: names_expected.join(', ') }, some(names_expected)));
    }
    this.names.replaceChildren(...parts);
    show(this.names, parts.length > 0);
  }

  private drawGates({ gates, state }: Snapshot): void {
    const open = state === 'starting' || gates.missing.length > 0;
    show(this.gates, open && (gates.connected !== null || gates.joined !== null));
    const rows: HTMLElement[] = [];
    if (gates.connected) rows.push(gate('connected', gates.connected));
    if (gates.joined) rows.push(gate('joined', gates.joined));
    rows.push(...gates.missing.map(({ node, host, why }) => h('div', { class: 'aic-missing' }, `node ${node}${host ? ` (${host})` : ''}: ${why}`)));
    this.gates.replaceChildren(...rows);
  }

  private drawSummary({ summary }: Snapshot): void {
    show(this.summary, summary !== null);
    if (summary === null) return;
    const rows = [h('div', { class: 'aic-cost', 'data-testid': 'cost' }, costs(summary).join(' · '))];
    if (summary.cause) rows.unshift(h('div', { class: 'aic-cause' }, summary.cause));
    if (summary.hint) rows.push(h('div', { class: 'aic-hint' }, summary.hint));
    this.summary.replaceChildren(...rows);
  }
}

/** What changes when a pressed button was answered. */
function answers({ state, tone, can_interrupt, can_keep, countdowns }: Snapshot): string {
  return JSON.stringify([state, tone, can_interrupt, can_keep, countdowns.map(countdown => countdown.at_s)]);
}

function gate(name: string, { have, want }: Gate): HTMLElement {
  const bar = h('span', { class: 'aic-gate-bar', 'aria-hidden': 'true' });
  const fill = h('span', { style: `width:${want ? ((100 * have) / want).toFixed(1) : '0'}%` });
  bar.append(fill);
  const done = have >= want ? ' aic-gate-done' : '';
  return h('span', { class: `aic-gate${done}`, 'data-testid': `gate-${name}` }, `${name} `, h('b', {}, `${have}/${want}`), bar);
}
