/** Words and numbers as the card shows them. Pure; the same forms as jupyter_aicluster/units.py. */

import type { Snapshot, Summary } from './model.ts';

/** `42 s`, `3:05`, `2:00:00`, `3 d 4:00:00`; never negative. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  const days = Math.floor(whole / 86400);
  const hours = Math.floor((whole % 86400) / 3600);
  const minutes = Math.floor((whole % 3600) / 60);
  const two = (n: number): string => String(n).padStart(2, '0');
  const rest = two(whole % 60);
  const clock = hours || days ? `${hours}:${two(minutes)}:${rest}` : `${minutes}:${rest}`;
  return days ? `${days} d ${clock}` : clock;
}

/** `3 B`, `1.4 kB`, `64.0 MB`: decimal units, three significant figures. */
export function size(bytes: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let value = bytes;
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 99.95 ? value.toFixed(0) : value.toFixed(1)} ${units[unit] ?? ''}`;
}

/** Small amounts of GPU time in minutes, so that a first try does not read "0.00 GPU-hours". */
export function gpuTime(hours: number): string {
  if (hours >= 0.995) return `${hours >= 99.95 ? hours.toFixed(0) : hours.toFixed(1)} GPU-hours`;
  const minutes = hours * 60;
  return minutes >= 0.95 ? `${minutes.toFixed(0)} GPU-minutes` : `${(minutes * 60).toFixed(0)} GPU-seconds`;
}

/** The sentence with its running clock behind the first word: "Running 0:42 of 2:00:00 · 16/16 busy". */
export function clocked(snapshot: Pick<Snapshot, 'sentence' | 'since_s' | 'limit_s'>, now_s: number): string {
  const { sentence, since_s, limit_s } = snapshot;
  if (since_s === null) return sentence;
  const clock = duration(now_s - since_s) + (limit_s === null ? '' : ` of ${duration(limit_s)}`);
  return sentence.replace(/^\p{L}+/u, word => `${word} ${clock}`);
}

export function count(n: number, one: string): string {
  return `${n} ${one}${n === 1 ? '' : 's'}`;
}

/** "fox · 16 GPUs on 2 nodes · local", with "attempt 2" from the second on. */
export function place(snapshot: Snapshot): string {
  const nodes = snapshot.nodes.length || snapshot.gates.joined?.want || 0;
  const simulated = snapshot.nodes.some(node => node.simulated) ? 'simulated GPU' : 'GPU';
  const parts = [snapshot.name, count(snapshot.gpus, simulated) + (nodes ? ` on ${count(nodes, 'node')}` : ''), snapshot.backend];
  if (snapshot.attempt > 1) parts.push(`attempt ${snapshot.attempt}`);
  return parts.join(' · ');
}

/** "a, b, c and 4 more" */
export function some(names: readonly string[], most = 4): string {
  const shown = names.slice(0, most).join(', ');
  return names.length > most ? `${shown} and ${names.length - most} more` : shown;
}

/** The parts of the cost line at the end; what could not be read is left out. */
export function costs(summary: Summary): string[] {
  const parts: string[] = [];
  if (summary.waited_s !== null && summary.waited_s >= 1) parts.push(`waited ${duration(summary.waited_s)}`);
  const held = `${gpuTime(summary.gpu_hours_held)} held`;
  const share = summary.gpu_hours_used !== null && summary.gpu_hours_held > 0 ? summary.gpu_hours_used / summary.gpu_hours_held : null;
  parts.push(share === null ? held : `${held}, ${(100 * Math.min(1, share)).toFixed(0)} % of it busy`);
  if (summary.peak_mem_bytes !== null) parts.push(`peak memory ${size(summary.peak_mem_bytes)} a GPU`);
  return parts;
}

/** GPUs that do much less than the others of their gang; indices into `util`. NaN and lost ones are nobody's measure. */
export function stragglers(util: readonly number[]): Set<number> {
  const known = util.filter(value => value >= 0).sort((a, b) => a - b);
  const median = known[Math.floor(known.length / 2)] ?? 0;
  if (known.length < 3 || median < 40) return new Set();
  return new Set([...util.keys()].filter(i => (util[i] ?? -1) >= 0 && (util[i] ?? 0) < median / 2));
}

// eslint-disable-next-line no-control-regex -- control characters are what it is for
const ANSI = /\u001b\[[0-9;?]*[ -/]*[@-~]|\u001b\][^\u0007]*\u0007|[\u0000-\u0008\u000b-\u001f\u007f]/g;

/** A log line without terminal control sequences; what a carriage return overwrote is gone. */
export function plain(text: string): string {
  return text.slice(text.trimEnd().lastIndexOf('\r') + 1).replace(ANSI, '');
}
