import { h, show } from './dom.ts';
import { plain } from './format.ts';
import type { LogLine } from './model.ts';

/** The newest log lines, of one node or all, filtered by a word. Stays at the end unless scrolled away from it. */
export class LogTail {
  private readonly tabs = h('div', { class: 'aic-tabs', role: 'group', 'aria-label': 'Node' });
  private readonly filter = h('input', { type: 'search', placeholder: 'filter', 'aria-label': 'Filter log lines', class: 'aic-filter' });
  private readonly lines = h('div', { class: 'aic-lines', tabindex: '0', role: 'log', 'aria-live': 'off', 'aria-label': 'Newest log lines' });
  readonly root = h(
    'div',
    { class: 'aic-log', 'data-testid': 'log' },
    h('div', { class: 'aic-log-bar' }, h('span', { class: 'aic-dim' }, 'log'), this.tabs, this.filter),
    this.lines
  );
  private log: LogLine[] = [];
  private node: number | null = null; // null: all

  constructor() {
    this.filter.addEventListener('input', () => {
      this.draw();
    });
    // JupyterLab's notebook shortcuts (j, k, d d …) must not see what is typed here.
    this.filter.addEventListener('keydown', event => {
      event.stopPropagation();
    });
    show(this.root, false);
  }

  update(log: LogLine[]): void {
    this.log = log;
    show(this.root, log.length > 0);
    const nodes = [...new Set(log.map(line => line.node))].sort((a, b) => a - b);
    if (this.node !== null && !nodes.includes(this.node)) this.node = null;
    this.drawTabs(nodes);
    this.draw();
  }

  private drawTabs(nodes: number[]): void {
    show(this.tabs, nodes.length > 1);
    const wanted = [null, ...nodes];
    while (this.tabs.children.length > wanted.length) this.tabs.lastChild?.remove();
    wanted.forEach((node, i) => {
      const tab = this.tabs.children[i] ?? this.tabs.appendChild(this.tab());
      tab.textContent = node === null ? 'all' : `node ${node}`;
      tab.setAttribute('data-node', node === null ? '' : String(node));
      tab.setAttribute('aria-pressed', String(node === this.node));
    });
  }

  private tab(): HTMLButtonElement {
    const tab = h('button', { type: 'button', class: 'aic-tab' });
    tab.addEventListener('click', () => {
      this.node = tab.dataset['node'] ? Number(tab.dataset['node']) : null;
      this.update(this.log);
    });
    return tab;
  }

  private draw(): void {
    const word = this.filter.value.trim().toLowerCase();
    const atEnd = this.lines.scrollHeight - this.lines.scrollTop - this.lines.clientHeight < 24;
    const shown = this.log.filter(line => (this.node === null || line.node === this.node) && (!word || `${line.writer} ${line.text}`.toLowerCase().includes(word)));
    this.lines.replaceChildren(
      ...shown.map(line =>
        h('div', { class: 'aic-line', 'data-testid': 'log-line', 'data-node': String(line.node), title: `node ${line.node} · ${line.writer}` },
          h('span', { class: 'aic-line-node' }, String(line.node)), h('span', { class: 'aic-line-writer' }, line.writer), plain(line.text))
      )
    );
    if (atEnd) this.lines.scrollTop = this.lines.scrollHeight;
  }
}
