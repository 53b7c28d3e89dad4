import { Poll } from '@lumino/polling';
import { Widget } from '@lumino/widgets';

import { h, setText, show } from '../card/dom.ts';
import { count } from '../card/format.ts';
import type { ClusterInfo, Listing } from './model.ts';
import { type Acts, Row } from './row.ts';
import { Refused, type Server } from './server.ts';
import { CELL, LOAD, total } from './words.ts';

const POLL_MS = 2000;
const SLOWEST_MS = 60_000;

/** All clusters of this user. Asks the server only while it can be seen, less and less often while that fails. */
export class ClustersPanel extends Widget {
  private readonly total = h('div', { class: 'aic-panel-total aic-dim', 'data-testid': 'total' });
  private readonly trouble = h('div', { class: 'aic-panel-trouble', role: 'alert', 'data-testid': 'panel-trouble' });
  private readonly spoken = h('div', { class: 'aic-spoken', role: 'status', 'aria-live': 'polite' });
  private readonly living = h('ul', { class: 'aic-rows', 'aria-label': 'Clusters that live' });
  private readonly past = h('ul', { class: 'aic-rows', 'aria-label': 'Clusters that have ended' });
  private readonly pastTitle = h('summary', {});
  private readonly ended = h('details', { class: 'aic-ended', 'data-testid': 'ended' }, this.pastTitle, this.past);
  private readonly empty: HTMLElement;
  private readonly rows = new Map<string, Row>();
  private readonly said = new Map<string, string>();
  private readonly poll: Poll<void>;
  private clusters: ClusterInfo[] = [];
  private skew_s = 0;
  private clock = 0;

  constructor(
    private readonly server: Server,
    private readonly acts: Pick<Acts, 'log' | 'attach'>,
    insert: (() => void) | null
  ) {
    super();
    this.addClass('aic-panel');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', 'GPU clusters');
    this.empty = emptyState(insert);
    const plus = h('button', { type: 'button', class: 'aic-button', title: 'Insert a %%gpujob cell into the notebook', 'data-testid': 'insert' }, '+ Cell');
    plus.addEventListener('click', () => insert?.());
    show(plus, insert !== null);
    const head = h('header', { class: 'aic-panel-head' }, h('h2', {}, 'GPU clusters'), plus);
    this.node.append(head, this.total, this.trouble, this.spoken, this.empty, this.living, this.ended);
    show(this.trouble, false);
    show(this.empty, false);
    show(this.ended, false);
    this.poll = new Poll({
      name: 'jupyter-aicluster:clusters',
      factory: () => this.look(),
      frequency: { interval: POLL_MS, backoff: true, max: SLOWEST_MS },
      standby: () => (this.isVisible ? 'when-hidden' : true)
    });
  }

  override dispose(): void {
    clearInterval(this.clock);
    this.poll.dispose();
    super.dispose();
  }

  protected override onAfterShow(): void {
    this.wake();
  }

  protected override onAfterAttach(): void {
    if (this.isVisible) this.wake();
  }

  protected override onBeforeHide(): void {
    clearInterval(this.clock);
  }

  private wake(): void {
    void this.poll.refresh();
    clearInterval(this.clock);
    this.clock = window.setInterval(() => {
      this.tick();
    }, 1000);
  }

  /** Ask once and show the answer; rejects where there was none, so that the poll backs off. */
  private async look(): Promise<void> {
    let listing: Listing;
    try {
      listing = await this.server.clusters();
    } catch (error) {
      this.fail(error);
      throw error;
    }
    show(this.trouble, false);
    this.node.classList.remove('aic-stale');
    this.skew_s = Date.now() / 1000 - listing.now_s;
    this.show_(listing.clusters);
  }

  private show_(clusters: ClusterInfo[]): void {
    this.clusters = clusters;
    const living = clusters.filter(({ state }) => state !== 'ended');
    const ended = clusters.filter(({ state }) => state === 'ended');
    this.place(this.living, living);
    this.place(this.past, ended);
    for (const uid of [...this.rows.keys()].filter(uid => !clusters.some(cluster => cluster.uid === uid))) {
      this.rows.get(uid)?.root.remove();
      this.rows.delete(uid);
    }
    setText(this.total, total(living));
    show(this.total, living.length > 0);
    show(this.empty, living.length === 0);
    setText(this.pastTitle, `${count(ended.length, 'cluster')} ended`);
    show(this.ended, ended.length > 0);
    this.speak();
    this.tick();
  }

  /** Rows in this order; one that stands where it should is not touched, so that focus stays. */
  private place(list: HTMLElement, clusters: ClusterInfo[]): void {
    clusters.forEach((cluster, at) => {
      const known = this.rows.get(cluster.uid);
      const row = known ?? new Row(cluster, this.all());
      if (known) row.update(cluster);
      else this.rows.set(cluster.uid, row);
      if (list.children[at] !== row.root) list.insertBefore(row.root, list.children[at] ?? null);
    });
  }

  private all(): Acts {
    const then = (done: Promise<void>): Promise<void> => done.finally(() => void this.poll.refresh());
    return {
      ...this.acts,
      stop: cluster => then(this.server.stop(cluster.uid)),
      keep: (cluster, seconds) => then(this.server.keep(cluster.uid, seconds))
    };
  }

  private fail(error: unknown): void {
    const missing = error instanceof Refused && error.status === 404;
    const why = missing
      ? 'This server does not have the extension of jupyter-aicluster: restart it after installing.'
      : `The server does not answer; it is tried again. ${error instanceof Error ? error.message : ''}`;
    setText(this.trouble, why.trim());
    show(this.trouble, true);
    this.node.classList.add('aic-stale'); // what stands there is how it was
  }

  private tick(): void {
    const now_s = Date.now() / 1000 - this.skew_s;
    for (const row of this.rows.values()) row.tick(now_s);
  }

  /** Screen readers hear each new state once, and nothing of what was there when the panel opened. */
  private speak(): void {
    const news: string[] = [];
    const first = this.said.size === 0;
    for (const { uid, name, state, tone, sentence } of this.clusters) {
      const key = `${state} ${tone}`;
      if (!first && this.said.get(uid) !== key) news.push(`${name}: ${sentence}`);
      this.said.set(uid, key);
    }
    if (news.length) setText(this.spoken, news.join('. '));
  }
}

function emptyState(insert: (() => void) | null): HTMLElement {
  const code = (text: string): HTMLElement => h('pre', { class: 'aic-panel-code' }, text);
  const copy = h('button', { type: 'button', class: 'aic-button' }, 'Copy');
  copy.addEventListener('click', () => {
    void navigator.clipboard.writeText(CELL).then(() => {
      copy.textContent = 'Copied';
      setTimeout(() => (copy.textContent = 'Copy'), 2000);
    });
  });
  const put = h('button', { type: 'button', class: 'aic-button aic-primary', title: 'Insert these cells into the notebook' }, 'Insert into notebook');
  put.addEventListener('click', () => insert?.());
  show(put, insert !== null);
  return h(
    'div',
    { class: 'aic-panel-empty', 'data-testid': 'empty' },
    h('p', {}, 'You hold no GPUs. A cell that begins like this gets its GPUs together and gives them back when it is done:'),
    code(CELL),
    h('div', { class: 'aic-row-buttons' }, put, copy),
    h('p', { class: 'aic-dim' }, 'Once in every notebook before it: ', h('code', {}, LOAD))
  );
}
