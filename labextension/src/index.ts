import type { JupyterFrontEndPlugin } from '@jupyterlab/application';

import { sidebar } from './sidebar/index.ts';

/** The plugins of jupyter-aicluster. One small plugin per thing a person can see, so that each can be disabled by itself. */
const plugins: JupyterFrontEndPlugin<unknown>[] = [sidebar];

export default plugins;
