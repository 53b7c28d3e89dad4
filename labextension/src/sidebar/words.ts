/** Words of the sidebar. Pure. */

import { count, duration } from '../card/format.ts';
import type { ClusterInfo, StreamInfo, TimeLeft } from './model.ts';

export const LOAD = '%load_ext jupyter_aicluster';
export const CELL = '%%gpujob --gpus 4\nimport ray\n\nray.cluster_resources()';

const LEFT: Record<string, (clock: string) => string> = {
  time: clock => `${clock} left until its time limit`,
  keep: clock => `goes back in ${clock} if unused`,
  hold: clock => `held ${clock} for another try`,
  lease: clock => `nobody is there: goes back in ${clock}`
};

export function timeLeft(left: TimeLeft, now_s: number): string {
  const clock = duration(left.at_s - now_s);
  return (LEFT[left.what] ?? (clock => `${clock} left`))(clock);
}

/** "4 simulated GPUs on 2 nodes · local · attempt 2" */
export function gpusAndPlace(cluster: ClusterInfo): string {
  const gpus = count(cluster.gpus, cluster.simulated ? 'simulated GPU' : 'GPU');
  const parts = [cluster.nodes > 1 ? `${gpus} on ${cluster.nodes} nodes` : gpus, cluster.backend];
  if (cluster.attempt > 1) parts.push(`attempt ${cluster.attempt}`);
  return parts.join(' · ');
}

export function ago(seconds: number): string {
  if (seconds < 60) return 'just now';
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  return seconds < 86400 ? `${Math.floor(seconds / 3600)} h ago` : `${Math.floor(seconds / 86400)} d ago`;
}

/** "2 clusters hold 12 GPUs, 1 waits"; empty: none lives. */
export function total(living: readonly ClusterInfo[]): string {
  const waiting = living.filter(({ state }) => state === 'submitted' || state === 'queued');
  const holding = living.filter(cluster => !waiting.includes(cluster));
  const gpus = holding.reduce((sum, cluster) => sum + cluster.gpus, 0);
  const parts: string[] = [];
  if (holding.length) parts.push(`${count(holding.length, 'cluster')} ${holding.length === 1 ? 'holds' : 'hold'} ${count(gpus, 'GPU')}`);
  if (waiting.length) parts.push(`${waiting.length} ${waiting.length === 1 ? 'waits' : 'wait'}`);
  return parts.join(', ');
}

/** "driver", "worker 4711", "ray": who writes a stream; never a session's long id. */
export function writer(stream: string): string {
  const worker = /^worker-(\d+)\.(out|err)$/.exec(stream);
  if (worker) return `worker ${worker[1] ?? ''}${worker[2] === 'err' ? ' (stderr)' : ''}`;
  const rank = /^rank-(\d+)/.exec(stream);
  return rank ? `rank ${rank[1] ?? ''}` : (stream.split('-')[0] ?? stream);
}

/** A label for every stream, in their order, told apart where two would read the same. */
export function streamLabels(streams: readonly StreamInfo[]): string[] {
  const plain = streams.map(({ node, stream }) => `node ${node} · ${writer(stream)}`);
  const seen = new Map<string, number>();
  return plain.map(label => {
    const number = (seen.get(label) ?? 0) + 1;
    seen.set(label, number);
    return number > 1 ? `${label} (${number})` : label;
  });
}

/** What a person wants to read first: what their code prints, else the first that says anything. */
export function firstStream(streams: readonly StreamInfo[]): StreamInfo | undefined {
  const written = streams.filter(({ size }) => size > 0);
  const by = (who: string): StreamInfo | undefined => written.find(({ stream }) => stream.startsWith(who));
  return by('driver') ?? by('rank') ?? written[0] ?? streams[0];
}
