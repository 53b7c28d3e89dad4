/** Jupyter's own interrupt route: the way out where the kernel cannot hear the card while a cell blocks. */

interface Page {
  baseUrl: string;
  token?: string;
}

/** Lab and Notebook 7 put this into their page; other front ends do not. */
function page(): Page | null {
  const tag = document.getElementById('jupyter-config-data');
  return tag?.textContent ? (JSON.parse(tag.textContent) as Page) : null;
}

export function canInterrupt(kernel: string | null): kernel is string {
  return kernel !== null && page() !== null;
}

/** Raises where the server refuses. */
export async function interruptKernel(kernel: string): Promise<void> {
  const here = page();
  if (here === null) throw new Error('this page does not name its Jupyter server');
  const headers: Record<string, string> = {};
  const xsrf = /(?:^|; )_xsrf=([^;]*)/.exec(document.cookie)?.[1];
  if (xsrf) headers['X-XSRFToken'] = decodeURIComponent(xsrf);
  if (here.token) headers['Authorization'] = `token ${here.token}`;
  const url = `${here.baseUrl.replace(/\/?$/, '/')}api/kernels/${encodeURIComponent(kernel)}/interrupt`;
  const answer = await fetch(url, { method: 'POST', headers, credentials: 'same-origin' });
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
}
