import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { LabIcon } from '@jupyterlab/ui-components';

import { h } from '../card/dom.ts';
import palette from '../card/palette.css';
import icon from '../icon.ts';
import { canInsert, insertLoaded } from './cells.ts';
import { LogView } from './logview.ts';
import { ClustersPanel } from './panel.ts';
import { Server } from './server.ts';
import style from './sidebar.css';

export const clusterIcon = new LabIcon({ name: 'jupyter-aicluster:cluster', svgstr: icon });

const CATEGORY = 'GPU Clusters';
const COMMANDS = { show: 'aicluster:show-clusters', insert: 'aicluster:insert-cell', log: 'aicluster:open-log' };

/** The sidebar with all clusters, a tab for each log, and the commands that go with them. */
export const sidebar: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-aicluster:sidebar',
  description: 'A sidebar panel with all your GPU clusters.',
  autoStart: true,
  optional: [ILayoutRestorer, ICommandPalette, INotebookTracker],
  activate: (app: JupyterFrontEnd, restorer: ILayoutRestorer | null, commandPalette: ICommandPalette | null, notebooks: INotebookTracker | null) => {
    const { commands, shell } = app;
    document.head.append(h('style', { 'data-of': 'jupyter-aicluster' }, palette + style));
    const server = new Server(app.serviceManager.serverSettings);
    const intoNotebook = (text?: string): void => {
      const panel = notebooks?.currentWidget;
      if (!panel) return;
      shell.activateById(panel.id);
      insertLoaded(panel, text);
    };

    const logs = new WidgetTracker<MainAreaWidget<LogView>>({ namespace: 'jupyter-aicluster-logs' });
    commands.addCommand(COMMANDS.log, {
      label: args => `Log of ${args['name'] as string}`,
      execute: args => {
        const [uid, name] = [args['uid'] as string, args['name'] as string];
        let tab = logs.find(open => open.content.uid === uid);
        if (!tab) {
          tab = new MainAreaWidget({ content: new LogView(server, uid, name) });
          tab.id = `jupyter-aicluster-log-${uid}`;
          tab.title.label = `${name} log`;
          tab.title.icon = clusterIcon;
          tab.title.closable = true;
          tab.toolbar.hide();
          void logs.add(tab);
        }
        if (!tab.isAttached) {
          const area = app.name === 'JupyterLab' ? 'main' : 'down'; // Notebook 7 shows one document, no tabs
          tab.toggleClass('aic-low', area === 'down');
          shell.add(tab, area);
        }
        shell.activateById(tab.id);
      }
    });
    void restorer?.restore(logs, {
      command: COMMANDS.log,
      args: tab => ({ uid: tab.content.uid, name: tab.content.name }),
      name: tab => tab.content.uid
    });

    const panel = new ClustersPanel(
      server,
      {
        log: ({ uid, name }) => void commands.execute(COMMANDS.log, { uid, name }),
        attach: notebooks && (({ name }) => {
          intoNotebook(`%gpujob attach ${name}`);
        })
      },
      notebooks && (() => void commands.execute(COMMANDS.insert))
    );
    panel.id = 'jupyter-aicluster-clusters';
    panel.title.icon = clusterIcon;
    panel.title.caption = 'GPU clusters';
    shell.add(panel, 'left', { rank: 300 });
    restorer?.add(panel, panel.id);

    commands.addCommand(COMMANDS.show, {
      label: 'Show GPU Clusters',
      icon: clusterIcon,
      execute: () => {
        shell.activateById(panel.id);
      }
    });
    commandPalette?.addItem({ command: COMMANDS.show, category: CATEGORY });
    if (notebooks) {
      commands.addCommand(COMMANDS.insert, {
        label: 'Insert %%gpujob Cell',
        caption: 'A cell that asks for GPUs, below the active one',
        isEnabled: () => canInsert(notebooks),
        execute: () => {
          intoNotebook();
        }
      });
      commandPalette?.addItem({ command: COMMANDS.insert, category: CATEGORY });
    }
  }
};
