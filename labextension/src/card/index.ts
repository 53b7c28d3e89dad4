import style from './card.css';
import { h } from './dom.ts';
import { samples } from './frame.ts';
import type { CardState, Snapshot } from './model.ts';
import palette from './palette.css';
import { CardView } from './view.ts';

/** What anywidget hands to an ES module of a widget. */
interface Model {
  get<K extends keyof CardState>(name: K): CardState[K];
  on(event: string, callback: () => void): void;
  off(event: string, callback: () => void): void;
  send(message: object): void;
}

interface Context {
  model: Model;
  el: HTMLElement;
}

function render({ model, el }: Context): () => void {
  const view = new CardView(
    message => {
      model.send(message);
    },
    () => model.get('kernel_id')
  );
  const snapshot = (): void => {
    const now = model.get('snapshot');
    if (isSnapshot(now)) view.update(now);
  };
  const frame = (): void => {
    view.frame(samples(model.get('frame')));
  };
  const log = (): void => {
    view.logLines(model.get('log'));
  };
  const listeners = { 'change:snapshot': snapshot, 'change:frame': frame, 'change:log': log };
  for (const [event, listener] of Object.entries(listeners)) model.on(event, listener);
  el.append(h('style', {}, palette + style), view.root);
  snapshot();
  frame();
  log();
  const clock = setInterval(() => {
    view.tick();
  }, 1000);
  return () => {
    clearInterval(clock);
    for (const [event, listener] of Object.entries(listeners)) model.off(event, listener);
  };
}

function isSnapshot(value: CardState['snapshot']): value is Snapshot {
  return 'state' in value;
}

export default { render };
