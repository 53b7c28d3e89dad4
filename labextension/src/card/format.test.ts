import assert from 'node:assert/strict';
import { test } from 'node:test';

import { clocked, costs, duration, gpuTime, place, plain, size, some, stragglers } from './format.ts';
import type { Snapshot } from './model.ts';

const base: Snapshot = {
  now_s: 1000, name: 'fox', backend: 'local', gpus: 4, state: 'ready', tone: 'run', attempt: 1, sentence: 'Running · 4/4 busy',
  since_s: 958, limit_s: 7200, safe_to_close: '', gates: { connected: null, joined: { have: 2, want: 2 }, missing: [] }, nodes: [],
  countdowns: [], names_sent: [], names_expected: [], notices: [], error: '', can_interrupt: true, can_keep: false, can_stop: true,
  line: 'own subshell', dashboard: '', summary: null
};

test('durations read like a clock', () => {
  assert.deepEqual([-1, 0, 59.9, 61, 7200, 273600].map(duration), ['0 s', '0 s', '59 s', '1:01', '2:00:00', '3 d 4:00:00']);
});

test('sizes have three significant figures', () => {
  assert.deepEqual([3, 1400, 999_600, 64e6, 123.4e9].map(size), ['3 B', '1.4 kB', '1.0 MB', '64.0 MB', '123 GB']);
});

test('small GPU time is told in small units', () => {
  assert.deepEqual([12.34, 250, 0.5, 0.01].map(gpuTime), ['12.3 GPU-hours', '250 GPU-hours', '30 GPU-minutes', '36 GPU-seconds']);
});

test('the clock stands behind the first word of the sentence', () => {
  assert.equal(clocked(base, 1000), 'Running 42 s of 2:00:00 · 4/4 busy');
  assert.equal(clocked({ ...base, limit_s: null, sentence: 'Running' }, 1063), 'Running 1:45');
  assert.equal(clocked({ ...base, limit_s: null, sentence: 'Waiting for 4 GPUs' }, 970), 'Waiting 12 s for 4 GPUs');
  assert.equal(clocked({ ...base, since_s: null, sentence: 'Waiting · 3rd of 7' }, 1000), 'Waiting · 3rd of 7');
});

test('the place line says simulated, and the attempt from the second on', () => {
  assert.equal(place(base), 'fox · 4 GPUs on 2 nodes · local');
  const node = { node: 0, host: 'h', state: 'joined', simulated: true, gpus: [] };
  assert.equal(place({ ...base, gpus: 1, nodes: [node], attempt: 2 }), 'fox · 1 simulated GPU on 1 node · local · attempt 2');
});

test('costs leave out what could not be read', () => {
  const all = { ending: 'done', cause: '', gpu_hours_held: 2, gpu_hours_used: 1, waited_s: 90, ran_s: 60, peak_mem_bytes: 5e9, hint: '' };
  assert.deepEqual(costs(all), ['waited 1:30', '2.0 GPU-hours held, 50 % of it busy', 'peak memory 5.0 GB a GPU']);
  assert.deepEqual(costs({ ...all, gpu_hours_used: null, waited_s: null, peak_mem_bytes: null }), ['2.0 GPU-hours held']);
});

test('stragglers are far below the median of a busy gang', () => {
  assert.deepEqual([...stragglers([90, 95, 20, 88])], [2]);
  assert.deepEqual([...stragglers([10, 12, 1, 9])], []);
  assert.deepEqual([...stragglers([90, NaN, -1, 95])], []);
});

test('log lines lose colours and what was overwritten', () => {
  assert.equal(plain('\u001b[31mred\u001b[0m'), 'red');
  assert.equal(plain(' 10%\r 20%\r'), ' 20%');
});

test('long lists of names are cut', () => {
  assert.equal(some(['a', 'b', 'c'], 2), 'a, b and 1 more');
});
