"""The receipt: what a saved notebook says about a run, without a kernel, a widget or a style sheet. Pure."""

from __future__ import annotations

import html
import time
from collections.abc import Mapping
from typing import Any

from jupyter_aicluster.units import format_duration, format_size

_LOG_TAIL = 20


def receipt(snapshot: Mapping[str, Any]) -> dict[str, str]:
    """Mimebundle (text/plain, text/html) of a `CardModel.to_json` snapshot."""
    rows = _rows(snapshot)
    text = [f"{snapshot['name']}: {snapshot['sentence']}", *(f"  {label}: {value}" for label, value in rows)]
    table = "".join(f"<tr><th>{html.escape(label)}</th><td>{_cell(label, value)}</td></tr>" for label, value in rows)
    title = f"<b>{html.escape(snapshot['name'])}</b>: {html.escape(snapshot['sentence'])}"
    return {"text/plain": "\n".join(text), "text/html": f"<table><caption>{title}</caption><tbody>{table}</tbody></table>"}


def static_card(snapshot: Mapping[str, Any], log: list[dict[str, Any]]) -> dict[str, str]:
    """What stays in the card's place when the run is over: nodes and the end of the log."""
    nodes = [
        f"node {node['node']} {node['host']}: {_gpu_words(node)}{', lost' if node['state'] == 'lost' else ''}".replace(" :", ":")
        for node in snapshot["nodes"]
    ]
    lines = [f"{line['node']} {line['stream']} | {line['text']}" for line in log[-_LOG_TAIL:]]
    parts = [f"<ul>{''.join(f'<li>{html.escape(node)}</li>' for node in nodes)}</ul>"] if nodes else []
    if lines:
        shown = html.escape("\n".join(lines))
        parts.append(f"<details><summary>last {len(lines)} log lines (node, stream)</summary><pre>{shown}</pre></details>")
    return {
        "text/plain": "\n".join([*nodes, *lines]) or snapshot["sentence"],
        "text/html": "".join(parts) or html.escape(snapshot["sentence"]),
    }


def cost_line(summary: Mapping[str, Any]) -> str:
    """``0.13 GPU-hours held, 0.09 used · waited 12 s · ran 2:01 · peak 3.1 GB a GPU``."""
    used = summary["gpu_hours_used"]
    parts = [f"{_hours(summary['gpu_hours_held'])} GPU-hours held" + (f", {_hours(used)} used" if used is not None else "")]
    if summary["waited_s"] is not None:
        parts.append(f"waited {format_duration(summary['waited_s'])}")
    if summary["ran_s"] is not None:
        parts.append(f"ran {format_duration(summary['ran_s'])}")
    if summary["peak_mem_bytes"]:
        parts.append(f"peak memory {format_size(summary['peak_mem_bytes'])} on a GPU")
    return " · ".join(parts)


def _rows(snapshot: Mapping[str, Any]) -> list[tuple[str, str]]:
    summary, ended = snapshot["summary"], snapshot["state"] == "ended"
    simulated = any(node["simulated"] for node in snapshot["nodes"])
    nodes = f" on {len(snapshot['nodes'])} nodes" if len(snapshot["nodes"]) > 1 else ""
    rows = [("GPUs", f"{snapshot['gpus']}{' simulated' if simulated else ''}{nodes}, {snapshot['backend']}")]
    if snapshot["error"]:
        rows.append(("Error", snapshot["error"]))
    if snapshot["names_sent"]:
        rows.append(("Sent", ", ".join(snapshot["names_sent"])))
    if snapshot["names_expected"]:
        rows.append(("Came back" if ended or snapshot["since_s"] is None else "Expected back", ", ".join(snapshot["names_expected"])))
    if summary:
        if summary["cause"] and summary["cause"] not in snapshot["sentence"]:
            rows.append(("Why it ended", summary["cause"]))
        rows.append(("Cost", cost_line(summary)))
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


def _hours(hours: float) -> str:
    return f"{hours:.2f}" if hours >= 0.1 else f"{hours:.4f}".rstrip("0").rstrip(".")
