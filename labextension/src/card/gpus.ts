import { h, setText, show } from './dom.ts';
import { count, size, stragglers } from './format.ts';
import type { Sample } from './frame.ts';
import type { Gpu, Node, Snapshot } from './model.ts';

const PER_ROW = 8;
const HISTORY = 60; // samples behind a cell, at 1 Hz

/** One GPU: its utilisation with the last minute behind it, and its memory as a thin bar. */
class GpuCell {
  readonly root: HTMLElement;
  private readonly value = h('span', { class: 'aic-gpu-value' });
  private readonly used = h('span', { class: 'aic-gpu-used' });
  private readonly memory = h('span', { class: 'aic-gpu-mem-fill' });
  private readonly area = document.createElementNS('http://www.w3.org/2000/svg', 'path');
  private readonly history: number[] = [];

  constructor(private readonly gpu: Gpu) {
    const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
    svg.setAttribute('viewBox', `0 0 ${HISTORY - 1} 100`);
    svg.setAttribute('preserveAspectRatio', 'none');
    svg.setAttribute('aria-hidden', 'true');
    svg.append(this.area);
    this.root = h('div', { class: 'aic-gpu', role: 'listitem', 'data-testid': 'gpu' });
    this.root.append(svg, this.value, this.used, h('span', { class: 'aic-gpu-mem' }, this.memory));
    this.update(undefined, false);
  }

  update(sample: Sample | undefined, straggler: boolean): void {
    const util = sample?.util ?? NaN;
    const lost = sample?.lost ?? false;
    const text = lost ? 'lost' : Number.isNaN(util) ? 'n/a' : `${util.toFixed(0)}%`;
    setText(this.value, sample ? text : '–'); // nothing was read yet: not the same as unreadable
    this.root.classList.toggle('aic-lost', lost);
    this.root.classList.toggle('aic-straggler', straggler);
    this.root.classList.toggle('aic-none', Number.isNaN(util));
    this.root.dataset['util'] = Number.isNaN(util) || lost ? '' : util.toFixed(1);
    const total = this.gpu.mem_total_bytes;
    const used = sample?.mem_bytes ?? NaN;
    setText(this.used, used >= 0 ? size(used) : '');
    this.memory.style.width = total && used >= 0 ? `${Math.min(100, (100 * used) / total).toFixed(1)}%` : '0';
    const words = [`GPU ${this.gpu.index} · ${this.gpu.name}`, lost ? 'no longer answers' : `utilisation ${text}${straggler ? ' (straggler)' : ''}`];
    words.push(`memory ${used >= 0 ? size(used) : 'n/a'}${total ? ` of ${size(total)}` : ''}`);
    if (sample) words.push(`${number(sample.power_w)} W · ${number(sample.temp_c)} °C`);
    this.root.title = words.join('\n');
    this.root.setAttribute('aria-label', words.join(', '));
    if (sample) this.draw(Number.isNaN(util) || lost ? 0 : util);
  }

  private draw(util: number): void {
    this.history.push(util);
    if (this.history.length > HISTORY) this.history.shift();
    const first = HISTORY - this.history.length;
    const line = this.history.map((value, i) => `L${first + i} ${(100 - value).toFixed(0)}`).join('');
    this.area.setAttribute('d', `M${first} 100${line}L${HISTORY - 1} 100Z`);
  }
}

function number(value: number): string {
  return Number.isNaN(value) ? 'n/a' : value.toFixed(0);
}

/** A strip of GPUs per node. */
export class GpuStrips {
  readonly root = h('div', { class: 'aic-nodes', 'data-testid': 'gpus' });
  private cells: GpuCell[] = [];
  private shape = '';

  update(snapshot: Snapshot): void {
    const nodes = snapshot.nodes.filter(node => node.gpus.length > 0);
    show(this.root, nodes.length > 0 && snapshot.summary === null);
    const shape = JSON.stringify(nodes.map(node => [node.node, node.host, node.state, node.gpus]));
    if (shape === this.shape) return;
    this.shape = shape;
    this.cells = [];
    this.root.replaceChildren(...nodes.map(node => this.strip(node)));
  }

  frame(samples: readonly Sample[]): void {
    const slow = stragglers(samples.map(sample => sample.util));
    this.cells.forEach((cell, i) => {
      cell.update(samples[i], slow.has(i));
    });
  }

  private strip(node: Node): HTMLElement {
    const cells = node.gpus.map(gpu => new GpuCell(gpu));
    this.cells.push(...cells);
    const label = h('div', { class: 'aic-node-label' }, h('b', {}, `node ${node.node}`));
    if (node.state !== 'joined') label.append(h('em', {}, node.state));
    label.append(h('span', { title: node.host }, node.host.split('.')[0] ?? ''));
    const list = h('div', { class: 'aic-strip', role: 'list', 'aria-label': `${count(node.gpus.length, 'GPU')} of node ${node.node}` });
    list.style.setProperty('--aic-columns', String(Math.min(PER_ROW, node.gpus.length)));
    list.append(...cells.map(cell => cell.root));
    return h('div', { class: `aic-node aic-node-${node.state}`, 'data-testid': 'node', 'data-node': String(node.node) }, label, list);
  }
}
