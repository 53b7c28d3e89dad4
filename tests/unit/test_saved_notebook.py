"""What a run leaves in a saved notebook: small, valid, and the same each time."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from jupyter_aicluster.jupyter.card import CARD_JS

ROOT = Path(__file__).parents[2]
RUNS = 50
WIDGET = "application/vnd.jupyter.widget-view+json"
CODE = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom tests.unit.scripted_run import run\nrun()"


@pytest.fixture(scope="module")
def notebook() -> Any:
    """The same cell run 50 times, by a client that keeps the state of every widget it has heard of."""
    if not CARD_JS.exists():
        pytest.fail("the card is not built: make setup")
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CODE) for _ in range(RUNS)])
    NotebookClient(made, kernel_name="python3", timeout=120).execute()
    return made


def test_widget_state_stays_small_however_often_a_cell_runs(notebook: Any) -> None:
    state = notebook.metadata["widgets"]
    cards = [model for model in state["application/vnd.jupyter.widget-state+json"]["state"].values() if "snapshot" in model["state"]]
    assert len(cards) == RUNS  # the cards were real, and were heard of
    assert len(json.dumps(state)) < 50_000


def test_what_stays_is_plain_html_and_text(notebook: Any) -> None:
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert [output["output_type"] for output in cell.outputs] == ["display_data", "display_data"]
        receipt, card = (output["data"] for output in cell.outputs)
        assert WIDGET not in card
        assert receipt["text/plain"].splitlines()[0] == "fox: Done in under 1 s · 4 simulated GPUs given back"
        assert card["text/plain"].startswith("node 0 a: 4 × simulated GPU")
        assert {"text/plain", "text/html"} == card.keys() == receipt.keys()


def test_outputs_are_the_same_each_time_but_for_times(notebook: Any) -> None:
    def text(cell: Any) -> str:
        return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "NOW", json.dumps([output["data"] for output in cell.outputs]))

    assert len({text(cell) for cell in notebook.cells}) == 1
