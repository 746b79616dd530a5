"""The fault table: the same faults played to every version, and what became of each.

The replies are written by hand and answered by the real loops. Does not judge what a model would do next.
"""

import html
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import httpx

from .backends import scripted
from .errors import ClassroomError
from .versions import chapters, taught, version

OUTCOMES = {
    "crashes": "the run dies in an exception",
    "misled": "the failure passes as a success",
    "stops": "the run ends, and the context names the reason",
    "told": "the model is told, in a result with is_error, and goes on",
}
COLOURS = {"crashes": "229, 72, 77", "misled": "245, 158, 11", "stops": "59, 130, 246", "told": "16, 163, 127"}


def _reply(*blocks: dict, stop_reason: str = "tool_use", **fields: object) -> dict:
    return {"content": list(blocks), "stop_reason": stop_reason, **fields}


def _call(name: str = "read_file", input: object = None, id: str = "toolu_1") -> dict:
    return {"type": "tool_use", "id": id, "name": name, "input": {"path": "notes.txt"} if input is None else input}


def _text(words: str) -> dict:
    return {"type": "text", "text": words}


# What the model says first; if it is asked again, it says that all is done, whatever it was told.
FAULTS = {
    "a file that is not there": _reply(_call(input={"path": "note.txt"})),
    "a directory in place of a file": _reply(_call(input={"path": "."})),
    "a file that is no text": _reply(_call(input={"path": "tap.png"})),
    "a path that no system takes": _reply(_call(input={"path": "a\0b"})),
    "a tool that does not exist": _reply(_call("delete_file")),
    "a field left out": _reply(_call(input={})),
    "a number in place of a text": _reply(_call(input={"path": 7})),
    "null in place of a text": _reply(_call(input={"path": None})),
    "a list in place of the fields": _reply(_call(input=["notes.txt"])),
    "a misspelt optional field": _reply(_call(input={"path": "notes.txt", "limt": 5})),
    "two calls, of which one fails": _reply(_call(), _call(input={"path": "note.txt"}, id="toolu_2")),
    "a call in a reply that says it is done": _reply(_call(input={"path": "note.txt"}), stop_reason="end_turn"),
    "a reply cut off inside a call": _reply(_call(input={"path": "not"}), stop_reason="max_tokens"),
    "a reply with nothing in it": _reply(stop_reason="end_turn"),
    "a refusal": _reply(_text("I cannot help with that."), stop_reason="refusal"),
    "a reason to stop that nobody knows": _reply(_text("Well …"), stop_reason="bored"),
    "a reply that is no message": {"content": None, "stop_reason": "end_turn"},
}


def outcome(tiny_agent: ModuleType, fault: str) -> str:
    """Play one fault to one version; returns a key of OUTCOMES."""
    done = _reply(_text("All done."), stop_reason="end_turn")
    client = scripted(FAULTS[fault], done)
    context = tiny_agent.Context() if hasattr(tiny_agent, "Context") else None
    with tempfile.TemporaryDirectory() as workspace:
        (Path(workspace) / "notes.txt").write_text("The key is under the blue pot.\n")
        (Path(workspace) / "tap.png").write_bytes(b"\x89PNG\r\n")
        try:
            tiny_agent.run("Go.", client, workspace=workspace, **({"context": context} if context else {}))
        except (ClassroomError, httpx.HTTPError):
            raise
        except Exception:
            return "crashes"
    blocks = [b for request, _ in client.exchanges for m in request["messages"][1:] for b in m["content"]]
    if any(block.get("is_error") for block in blocks):
        return "told"
    return "stops" if context and context.stopped != "end_turn" else "misled"


class FaultTable:
    """What `fault_table` returns: a row for each fault, a column for each version. A notebook draws it."""

    def __init__(self, versions: list[str], rows: dict[str, list[str]]):
        self.versions, self.rows = versions, rows

    def markdown(self) -> str:
        lines = [["what the model does", *(f"`{v}`" for v in self.versions)], ["---"] * (len(self.versions) + 1)]
        return "\n".join(f"| {' | '.join(line)} |" for line in [*lines, *([f, *o] for f, o in self.rows.items())])

    def __repr__(self) -> str:
        width = max(map(len, self.rows))
        lines = [("", self.versions), *self.rows.items()]
        return "\n".join(
            f"{fault:{width}} {' '.join(f'{o:8}' for o in outcomes)}".rstrip() for fault, outcomes in lines
        )

    def _repr_html_(self) -> str:
        head = "".join(f'<th style="padding: 2px 12px">{html.escape(v)}</th>' for v in self.versions)
        body = "".join(f"<tr>{''.join(_cells(fault, outcomes))}</tr>" for fault, outcomes in self.rows.items())
        key = "".join(f"<div><small>{_swatch(o)} <b>{o}</b>: {what}</small></div>" for o, what in OUTCOMES.items())
        return f"<div><table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>{key}</div>"


def _cells(fault: str, outcomes: list[str]) -> Iterator[str]:
    yield f'<td style="text-align: left">{html.escape(fault)}</td>'
    for o in outcomes:
        yield f'<td style="text-align: center; background-color: rgba({COLOURS[o]}, 0.35)">{o}</td>'


def _swatch(o: str) -> str:
    box = "display: inline-block; width: 10px; height: 10px"
    return f'<span style="{box}; background-color: rgba({COLOURS[o]}, 0.6)"></span>'


def fault_table(tags: list[str] | None = None) -> FaultTable:
    """Play every fault to these versions, or to all that are here."""
    tags = tags or list(map(taught, chapters()))
    return FaultTable(tags, {fault: [outcome(version(tag), fault) for tag in tags] for fault in FAULTS})
