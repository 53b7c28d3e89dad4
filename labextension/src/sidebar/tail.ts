/** The newest lines of one log, out of pieces of its bytes. Pure and bounded. */

import { plain } from '../card/format.ts';

export const MOST_LINES = 2000;
const LINE_CHARS = 4000;

export class Tail {
  private decoder = new TextDecoder();
  private whole: string[] = [];
  private rest = ''; // behind the last line end
  private inside = false; // the first piece began in the middle of a line, which is left out
  dropped = 0; // lines that were shown once and had to go

  /** Forget everything; what comes next begins ``inside`` a line, or at the start of one. */
  restart(inside: boolean): void {
    this.decoder = new TextDecoder();
    this.whole = [];
    this.rest = '';
    this.inside = inside;
    this.dropped = 0;
  }

  take(bytes: Uint8Array): void {
    let text = this.rest + this.decoder.decode(bytes, { stream: true });
    if (this.inside) {
      const end = text.indexOf('\n');
      if (end < 0) return;
      text = text.slice(end + 1);
      this.inside = false;
    }
    const lines = text.split('\n');
    this.rest = (lines.pop() ?? '').slice(-LINE_CHARS);
    this.whole.push(...lines.slice(-MOST_LINES).map(shown));
    const over = Math.max(0, this.whole.length - MOST_LINES);
    this.whole.splice(0, over);
    this.dropped += over + Math.max(0, lines.length - MOST_LINES);
  }

  /** Oldest first; the last one may still grow. */
  lines(): string[] {
    return this.rest ? [...this.whole, shown(this.rest)] : [...this.whole];
  }
}

function shown(line: string): string {
  return plain(line.slice(0, LINE_CHARS));
}
