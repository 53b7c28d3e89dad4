import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { LabIcon } from '@jupyterlab/ui-components';
import { Widget } from '@lumino/widgets';

import icon from './icon.ts';

export const clusterIcon = new LabIcon({ name: 'jupyter-aicluster:cluster', svgstr: icon });

/** The sidebar panel: for now only its place and how clusters are made. */
export class ClustersPanel extends Widget {
  constructor() {
    super();
    this.id = 'jupyter-aicluster-clusters';
    this.title.icon = clusterIcon;
    this.title.caption = 'GPU clusters';
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', 'GPU clusters');
    this.node.style.padding = '8px 12px';
    const text = document.createElement('p');
    text.textContent = 'Start a cell with %%gpujob --gpus 4 to get GPUs; %gpujob lists what you have.';
    this.node.append(text);
  }
}

export const sidebar: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-aicluster:sidebar',
  description: 'A sidebar panel with all your GPU clusters.',
  autoStart: true,
  optional: [ILayoutRestorer],
  activate: (app: JupyterFrontEnd, restorer: ILayoutRestorer | null) => {
    const panel = new ClustersPanel();
    app.shell.add(panel, 'left', { rank: 300 });
    restorer?.add(panel, panel.id);
  }
};
