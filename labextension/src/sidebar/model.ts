/** What the server extension says. Python side: jupyter_aicluster/jupyter/handlers.py and overview.py. */

import type { State, Tone } from '../card/model.ts';

/** The nearest time at which GPUs go back unless somebody acts: "time", "keep", "hold" or "lease". Unix seconds. */
export interface TimeLeft {
  what: string;
  at_s: number;
}

export interface ClusterInfo {
  uid: string;
  name: string;
  backend: string;
  gpus: number;
  nodes: number;
  simulated: boolean;
  state: State;
  tone: Tone;
  attempt: number;
  sentence: string; // as the card says it
  since_s: number | null; // start of the clock behind the sentence's first word
  error: string; // of its failed cell, one line; empty: none
  notice: string; // why less is known than should be; empty: nothing to say
  created_s: number;
  ended_s: number | null;
  time_left: TimeLeft | null;
  can_keep: boolean;
  can_stop: boolean;
}

export interface Listing {
  now_s: number; // the server's clock
  clusters: ClusterInfo[]; // newest first
}

export interface StreamInfo {
  node: number;
  stream: string;
  size: number; // bytes
}

export interface Streams {
  attempt: number;
  ended: boolean;
  streams: StreamInfo[];
}
