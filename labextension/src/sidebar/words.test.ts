import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { ClusterInfo } from './model.ts';
import { MOST_LINES, Tail } from './tail.ts';
import { ago, firstStream, gpusAndPlace, streamLabels, timeLeft, total, writer } from './words.ts';

const base: ClusterInfo = {
  uid: '0123456789ab', name: 'fox', backend: 'local', gpus: 4, nodes: 1, simulated: false, state: 'ready', tone: 'good', attempt: 1,
  sentence: 'Ready · 4 GPUs held', since_s: null, error: '', notice: '', created_s: 0, ended_s: null, time_left: null, can_keep: true, can_stop: true
};
const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);
const stream = (node: number, name: string, size = 1): { node: number; stream: string; size: number } => ({ node, stream: name, size });

test('time left says what it leads to', () => {
  assert.equal(timeLeft({ what: 'time', at_s: 7300 }, 100), '2:00:00 left until its time limit');
  assert.equal(timeLeft({ what: 'keep', at_s: 190 }, 100), 'goes back in 1:30 if unused');
  assert.equal(timeLeft({ what: 'hold', at_s: 100 }, 130), 'held 0 s for another try');
  assert.equal(timeLeft({ what: 'lease', at_s: 100 }, 50), 'nobody is there: goes back in 50 s');
  assert.equal(timeLeft({ what: 'newer', at_s: 160 }, 100), '1:00 left');
});

test('where a cluster is', () => {
  assert.equal(gpusAndPlace(base), '4 GPUs · local');
  assert.equal(gpusAndPlace({ ...base, gpus: 1, nodes: 2, simulated: true, attempt: 3 }), '1 simulated GPU on 2 nodes · local · attempt 3');
});

test('how long ago', () => {
  assert.deepEqual([-5, 59, 60, 7199, 86400, 200000].map(ago), ['just now', 'just now', '1 min ago', '1 h ago', '1 d ago', '2 d ago']);
});

test('what is held and what waits', () => {
  assert.equal(total([]), '');
  assert.equal(total([base]), '1 cluster holds 4 GPUs');
  assert.equal(total([base, { ...base, gpus: 8, state: 'starting' }, { ...base, state: 'queued' }]), '2 clusters hold 12 GPUs, 1 waits');
  assert.equal(total([{ ...base, state: 'queued' }, { ...base, state: 'submitted' }]), '2 wait');
});

test('streams are called by who writes them', () => {
  const names = ['driver-6f1c2d', 'driver-6f1c2d-2', 'ray', 'ray-2', 'worker-4711.out', 'worker-12.err', 'rank-3', 'rank-3-2'];
  assert.deepEqual(names.map(writer), ['driver', 'driver', 'ray', 'ray', 'worker 4711', 'worker 12 (stderr)', 'rank 3', 'rank 3']);
  assert.deepEqual(streamLabels([stream(0, 'driver-a'), stream(0, 'driver-b'), stream(1, 'ray')]), [
    'node 0 · driver', 'node 0 · driver (2)', 'node 1 · ray'
  ]);
});

test('the driver is read first, where it has said something', () => {
  assert.equal(firstStream([]), undefined);
  assert.equal(firstStream([stream(0, 'ray'), stream(0, 'driver-a')])?.stream, 'driver-a');
  assert.equal(firstStream([stream(0, 'driver-a', 0), stream(0, 'ray')])?.stream, 'ray');
  assert.equal(firstStream([stream(0, 'driver-a', 0), stream(0, 'ray'), stream(1, 'rank-1')])?.stream, 'rank-1');
});

test('a log comes in pieces that end anywhere', () => {
  const tail = new Tail();
  const all = bytes('one é\ntwo\n 10%\r 20%');
  for (const byte of all) tail.take(Uint8Array.of(byte));
  assert.deepEqual(tail.lines(), ['one é', 'two', ' 20%']);
  tail.take(bytes('\r done\nlast'));
  assert.deepEqual(tail.lines(), ['one é', 'two', ' done', 'last']);
});

test('a line that was cut at its beginning is left out', () => {
  const tail = new Tail();
  tail.restart(true);
  tail.take(bytes('lf of a line'));
  assert.deepEqual(tail.lines(), []);
  tail.take(bytes('!\nwhole\n'));
  assert.deepEqual(tail.lines(), ['whole']);
});

test('a flood stays bounded, the newest lines stay', () => {
  const tail = new Tail();
  for (let piece = 0; piece < 10; piece++) tail.take(bytes(Array.from({ length: 1000 }, (_, i) => `${1000 * piece + i}\n`).join('')));
  assert.equal(tail.lines().length, MOST_LINES);
  assert.equal(tail.lines().at(-1), '9999');
  assert.equal(tail.dropped, 8000);
  tail.take(bytes('x'.repeat(1_000_000)));
  assert.ok((tail.lines().at(-1)?.length ?? 0) <= 4000);
});
