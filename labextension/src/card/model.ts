/**
 * What the kernel tells the card. Python side: `CardModel.to_json()` in jupyter_aicluster/jupyter/card_model.py.
 *
 * Traits of the widget:
 *   snapshot   Snapshot: the full state, small (< 20 kB); a lost update heals with the next one.
 *   frame      bytes: the newest GPU samples, little-endian float32, `FRAME_FIELDS` per GPU, GPUs in the order of
 *              snapshot.nodes[].gpus[]. NaN = not readable (never 0); utilisation -1 = the device no longer answers.
 *   log        LogLine[]: the newest lines of all nodes, at most 200 and 24 kB together, oldest first. Full state too.
 *   kernel_id  string | null: the server's id of the kernel, for Jupyter's own interrupt route.
 * Messages to the kernel: {event: "interrupt" | "keep" | "stop"}; keep also has {seconds}.
 */

/** Utilisation in %, memory used in bytes, power in W, temperature in °C. */
export const FRAME_FIELDS = 4;

export type State = 'submitted' | 'queued' | 'starting' | 'ready' | 'ending' | 'ended';

/** Colour of the state dot and nothing else: the words say everything. */
export type Tone = 'wait' | 'run' | 'good' | 'warn' | 'bad' | 'idle';

/** Who handles a button's message while a cell blocks (card_line.py). */
export type Line = 'own subshell' | "front end's subshell" | 'none';

export interface Gate {
  have: number;
  want: number;
}

export interface Missing {
  node: number;
  host: string;
  why: string;
}

export interface Gates {
  connected: Gate | null; // null: not begun (still queued)
  joined: Gate | null;
  missing: Missing[];
}

export interface Gpu {
  index: string;
  name: string;
  mem_total_bytes: number | null;
}

export interface Node {
  node: number;
  host: string;
  state: string; // "connected" | "joined" | "lost" | "left"
  simulated: boolean;
  gpus: Gpu[];
}

/** A time at which something will happen unless somebody acts: "time", "hold", "keep" or "lease". Unix seconds. */
export interface Countdown {
  what: string;
  text: string; // "GPUs go back in" : the card appends the clock
  at_s: number;
}

export interface Summary {
  ending: string; // "done", "stopped", "failed", ...
  cause: string; // one sentence
  gpu_hours_held: number;
  gpu_hours_used: number | null;
  waited_s: number | null;
  ran_s: number | null;
  peak_mem_bytes: number | null;
  hint: string; // "4 GPUs would have fitted"; empty: none
}

export interface Snapshot {
  now_s: number; // the kernel's clock when this was made (Unix seconds): the card corrects its own by it
  name: string; // "fox"
  backend: string; // "local"
  gpus: number;
  state: State;
  tone: Tone;
  attempt: number;
  sentence: string; // "Waiting · 3rd of 7 · about 14:05"; while a clock runs without its time: "Running · 16/16 busy"
  since_s: number | null; // start of the clock that the card shows behind the sentence's first word; null: no clock
  limit_s: number | null; // its end as a length ("0:42 of 2:00:00"); null: open
  safe_to_close: string; // "Safe to close this notebook" or what is still here
  gates: Gates;
  nodes: Node[];
  countdowns: Countdown[];
  names_sent: string[];
  names_expected: string[];
  notices: string[]; // newest last, at most 5
  error: string; // one line: the exception of a failed cell; empty: none
  can_interrupt: boolean; // a cell runs, or the request waits
  can_keep: boolean;
  can_stop: boolean; // false once ended
  line: Line;
  dashboard: string; // URL of the Ray dashboard, empty: not reachable from the browser
  summary: Summary | null;
}

export interface LogLine {
  node: number;
  writer: string; // "driver", "train 4711" (a task or actor and its process), "ray"
  text: string;
}

export interface CardState {
  snapshot: Snapshot | Record<string, never>; // empty: nothing to say yet
  frame: DataView | null;
  log: LogLine[];
  kernel_id: string | null;
}
