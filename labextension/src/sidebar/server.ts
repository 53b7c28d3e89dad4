/** The server extension's routes. Each call rejects with a sentence where the server refuses. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type { Listing, Streams } from './model.ts';

/** What the server answered; ``status`` 404 for a server without our extension. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string
  ) {
    super(message);
  }
}

export class Server {
  constructor(private readonly settings: ServerConnection.ISettings) {}

  async clusters(): Promise<Listing> {
    return (await (await this.ask('clusters')).json()) as Listing;
  }

  async streams(uid: string): Promise<Streams> {
    return (await (await this.ask(`clusters/${uid}/logs`)).json()) as Streams;
  }

  async log(uid: string, node: number, stream: string, from: number): Promise<Uint8Array> {
    const answer = await this.ask(`clusters/${uid}/logs/${node}/${encodeURIComponent(stream)}?from=${from}`);
    return new Uint8Array(await answer.arrayBuffer());
  }

  async keep(uid: string, seconds: number): Promise<void> {
    await this.ask(`clusters/${uid}/keep`, { seconds });
  }

  async stop(uid: string): Promise<void> {
    await this.ask(`clusters/${uid}/stop`, {});
  }

  private async ask(path: string, body?: object): Promise<Response> {
    const url = URLExt.join(this.settings.baseUrl, 'aicluster') + `/${path}`;
    const init: RequestInit = body === undefined ? {} : { method: 'POST', body: JSON.stringify(body) };
    const answer = await ServerConnection.makeRequest(url, init, this.settings);
    if (answer.ok) return answer;
    let message = `the server answered ${answer.status}`;
    try {
      const said = (await answer.json()) as { message?: string; hint?: string };
      message = said.message ? [said.message, said.hint].filter(Boolean).join(' → ') : message;
    } catch {
      // not our words: a proxy's, perhaps
    }
    throw new Refused(answer.status, message);
  }
}
