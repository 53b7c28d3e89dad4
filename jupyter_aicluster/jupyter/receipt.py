"""The receipt: what a saved notebook says about a run, without a kernel, a widget or a style sheet. Pure.

HTML of ``details``, ``table`` and the like only: sites that take away styles and scripts leave it as it is.
"""

from __future__ import annotations

import html
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_aicluster.units import format_duration, format_size

_LOG_TAIL = 20


def receipt(snapshot: Mapping[str, Any]) -> dict[str, str]:
    """Mimebundle (text/plain, text/html) of a `CardModel.to_json` snapshot: sentence, error, cost; the rest folded."""
    rows = _rows(snapshot)
    shown = [snapshot["error"], cost_line(snapshot["summary"]) if snapshot["summary"] else ""]
    below = [line for line in shown if line]
    sentence = str(snapshot["sentence"])
    if snapshot["tone"] == "run":
        sentence = sentence.partition(" · ")[0]  # numbers of this moment: the receipt changes with the state only
    text = [
        f"{snapshot['name']}: {sentence}",
        *(f"  {line}" for line in below),
        *(f"  {label}: {value}" for label, value in rows),
    ]
    title = "<br>".join([f"<b>{html.escape(snapshot['name'])}</b>: {html.escape(sentence)}", *map(html.escape, below)])
    table = "".join(f"<tr><th>{html.escape(label)}</th><td>{_cell(label, value)}</td></tr>" for label, value in rows)
    folded = f"<details><summary>{title}</summary><table><tbody>{table}</tbody></table></details>"
    return {"text/plain": "\n".join(text), "text/html": folded}


def static_card(snapshot: Mapping[str, Any], log: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What stays in the card's place when the run is over: nodes and the end of the log, folded."""
    nodes = [
        f"node {node['node']} {node['host']}: {_gpu_words(node)}{', lost' if node['state'] == 'lost' else ''}".replace(" :", ":")
        for node in snapshot["nodes"]
    ]
    lines = [f"{line['node']} {line['writer']} | {line['text']}" for line in log[-_LOG_TAIL:]]
    if not nodes and not lines:
        return {"text/plain": "", "text/html": ""}  # the receipt has said it all
    what = [f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"] if nodes else []
    what += [f"{len(lines)} log line{'s' if len(lines) != 1 else ''}"] if lines else []
    items = f"<ul>{''.join(f'<li>{html.escape(node)}</li>' for node in nodes)}</ul>" if nodes else ""
    shown = f"<pre>{html.escape(chr(10).join(lines))}</pre>" if lines else ""
    return {
        "text/plain": "\n".join([*nodes, *lines]),
        "text/html": f"<details><summary>{', '.join(what)}</summary>{items}{shown}</details>",
    }


def cost_line(summary: Mapping[str, Any]) -> str:
    """``8 GPU-minutes held, 70 % of it busy · waited 12 s · ran 2:01 · peak memory 3.1 GB on a GPU``."""
    held, used = summary["gpu_hours_held"], summary["gpu_hours_used"]
    busy = f", {100 * min(1.0, used / held):.0f} % of it busy" if used is not None and held > 0 else ""
    parts = [f"{gpu_time(held)} held{busy}"]
    if summary["waited_s"] is not None and summary["waited_s"] >= 1:
        parts.append(f"waited {format_duration(summary['waited_s'])}")
    if summary["ran_s"] is not None:
        parts.append(f"ran {format_duration(summary['ran_s'])}")
    if summary["peak_mem_bytes"]:
        parts.append(f"peak memory {format_size(summary['peak_mem_bytes'])} on a GPU")
    return " · ".join(parts)


def gpu_time(hours: float) -> str:
    """``12 GPU-seconds``, ``4 GPU-minutes``, ``1.3 GPU-hours``; the same as in labextension/src/card/format.ts."""
    if hours >= 0.995:
        return f"{hours:.0f} GPU-hours" if hours >= 99.95 else f"{hours:.1f} GPU-hours"
    minutes = hours * 60
    return f"{minutes:.0f} GPU-minutes" if minutes >= 0.95 else f"{minutes * 60:.0f} GPU-seconds"


def _rows(snapshot: Mapping[str, Any]) -> list[tuple[str, str]]:
    summary, ended = snapshot["summary"], snapshot["state"] == "ended"
    simulated = any(node["simulated"] for node in snapshot["nodes"])
    nodes = f" on {len(snapshot['nodes'])} nodes" if len(snapshot["nodes"]) > 1 else ""
    rows = [("GPUs", f"{snapshot['gpus']}{' simulated' if simulated else ''}{nodes}, {snapshot['backend']}")]
    rows += [("Note", notice) for notice in snapshot["notices"]]
    if snapshot["names_sent"]:
        rows.append(("Sent", ", ".join(snapshot["names_sent"])))
    if snapshot["names_expected"]:
        rows.append(("Came back" if ended or snapshot["since_s"] is None else "Expected back", ", ".join(snapshot["names_expected"])))
    if summary:
        if summary["ending"] != "done" and summary["cause"] not in snapshot["sentence"]:
            rows.append(("Why it ended", summary["cause"]))
        if summary["hint"]:
            rows.append(("Hint", summary["hint"]))
    rows.append(("As of", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(snapshot["now_s"]))))
    if not ended:
        rows.append(("Watch it", f"%gpujob attach {snapshot['name']}"))
    return rows


def _cell(label: str, value: str) -> str:
    return f"<code>{html.escape(value)}</code>" if label == "Watch it" else html.escape(value)


def _gpu_words(node: Mapping[str, Any]) -> str:
    gpus = node["gpus"]
    kinds = sorted({gpu["name"] for gpu in gpus if gpu["name"]})
    return f"{len(gpus)} × {', '.join(kinds) or 'GPU'}"
