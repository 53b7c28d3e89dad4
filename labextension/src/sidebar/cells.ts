import { type INotebookTracker, NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';

import { CELL, LOAD } from './words.ts';

const LOADS = /^\s*%(load_ext|reload_ext)\s+jupyter_aicluster\b/m;

/** Whether there is a notebook to put cells into. */
export function canInsert(tracker: INotebookTracker): boolean {
  return tracker.currentWidget !== null;
}

/** A cell of ours, below the active one or into it where it is empty; before it the line that loads the magic, where the notebook has none. */
export function insertLoaded(panel: NotebookPanel, text = CELL): void {
  const loaded = [...(panel.content.model?.cells ?? [])].some(cell => LOADS.test(cell.sharedModel.getSource()));
  if (!loaded) insert(panel, LOAD);
  insert(panel, text);
}

function insert(panel: NotebookPanel, text: string): void {
  const notebook = panel.content;
  if (notebook.activeCell?.model.type !== 'code' || notebook.activeCell.model.sharedModel.getSource().trim() !== '') NotebookActions.insertBelow(notebook);
  notebook.activeCell?.model.sharedModel.setSource(text);
}
