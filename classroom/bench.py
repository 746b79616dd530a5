"""`bench()`: an experiment in the notebook, with fields and a Run button, or as ordinary output; saved and loaded.

Handles: variants of one tool's description, counted by `tiny_agent.experiment.compare`. Does not handle: graders,
system prompts, several runs at a time; those are asked of `compare` in a cell. The widgets are in panel.py.
"""

import contextlib
import html
import json
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from .backends import BACKENDS, chosen_backend, scene_path
from .backends import connect as connected
from .errors import ClassroomError
from .explain import explain
from .viewer import PRE, intervals

MODEL = "smollm2-135m-bare"  # the local model without demonstrations: what it does, the words alone make it do
TASK = "Read README.md and tell me what the project does."
DESCRIPTIONS = ("Read a file", "Read a file. USE THIS BEFORE WRITING to a file")
TABLE = f"{PRE}; white-space: pre; overflow-x: auto; margin: 8px 0"
KINDS = {"task": str, "tool": str, "runs": int, "backend": str, "descriptions": list}

# tiny_agent is imported inside the functions: a notebook decides first which version that is.


def bench(
    scene: str = "04_prompts/readme",
    task: str = TASK,
    descriptions: Sequence[str] = DESCRIPTIONS,
    tool: str = "read_file",
    runs: int = 5,
    backend: str | None = None,
    *,
    turn_limit: int = 1,
    workspace: str | Path | None = None,
    out: str | Path | None = None,
    connect: Callable | None = None,
) -> "Bench":
    """An experiment with one tool's description: shown by a notebook as widgets; `.run()` gives the results without.

    `workspace` (default: the scene's), `turn_limit`, `out` and `connect` (in place of the backend) are those of
    `compare`. Raises ClassroomError for a scene, a tool or a backend that does not exist.
    """
    fields = {"task": task, "tool": tool, "runs": runs, "backend": chosen_backend(backend)}
    fields = checked({**fields, "descriptions": list(descriptions)})
    at = {"workspace": workspace or scene_path(scene).parents[1] / "workspace", "turn_limit": turn_limit, "out": out}
    return Bench(fields, scene, connect, at)


class Bench:
    """What `bench` returns. `fields`: what is asked, by the names in KINDS; `records`: the finished runs, as of
    `compare`; `requests`: by variant, the first request of its runs."""

    def __init__(self, fields: dict, scene: str, connect: Callable | None, at: dict):
        self.fields, self.scene, self.connect, self.at = fields, scene, connect, at
        self.records, self.requests, self.panel = [], {}, None
        self._running = threading.Lock()

    def run(self, progress: Callable[[int, int], None] = lambda finished, of: None) -> "Results":
        """Run the experiment and wait for it. Where it is broken off, `records` holds what was finished.

        Raises ClassroomError and what `compare` raises, such as a description that was not recorded.
        """
        from tiny_agent.experiment import compare

        def kept(records: list[dict], of: int) -> None:
            self.records = list(records)
            progress(len(records), of)

        if not self._running.acquire(blocking=False):
            raise ClassroomError("This bench is running already. Wait for it, or press Cancel.")
        asked = self.fields  # the person may go on editing: that makes other fields
        ask = self.connect or partial(connected, self.scene, backend=asked["backend"], local_model=MODEL)
        try:
            with ask(run="1") as client:
                self.records, self.requests = [], first_requests(asked, client.model)
            self.records = compare(variants(asked), asked["task"], asked["runs"], ask, progress=kept, **self.at)
        finally:
            self._running.release()
        return self.results()

    def results(self, measure: str | None = None) -> "Results":
        """What there is so far, with one measure drawn and tested (default: whether the tool was called first)."""
        return Results(self.records, measure or f"{self.fields['tool']} first", self.requests)

    def save(self, path: str | Path) -> None:
        """Write the fields and the results as one JSON file, whole or not at all. Raises ClassroomError."""
        path, draft = Path(path), Path(f"{path}.part")
        saved = {"fields": self.fields, "records": self.records, "requests": self.requests}
        try:
            draft.write_text(json.dumps(saved, indent=1), encoding="utf-8")
            os.replace(draft, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise ClassroomError(f"{path} was not saved: {error.strerror}.") from None

    def load(self, path: str | Path) -> None:
        """Read back what `save` wrote. Raises ClassroomError, and changes nothing, where the file is another one."""
        try:
            saved = json.loads(Path(path).read_text(encoding="utf-8"))
            fields, records, requests = checked(saved["fields"]), saved["records"], saved["requests"]
            Results(records, f"{fields['tool']} first", requests)._repr_html_()
        except OSError as error:
            raise ClassroomError(f"{path} cannot be read: {error.strerror}.") from None
        except Exception as error:  # whatever may be wrong with a file
            raise ClassroomError(f"{path} is no saved bench ({error!r:.200}). Nothing was loaded.") from None
        self.fields, self.records, self.requests = fields, records, requests

    def __repr__(self) -> str:
        if self.records:
            return repr(self.results())
        n, tool = len(self.fields["descriptions"]), self.fields["tool"]
        return f"A bench for {n} descriptions of {tool}. Nothing was run yet: bench.run() does, without widgets."

    def _repr_mimebundle_(self, **_: object) -> dict:
        try:
            from .panel import Panel
        except ImportError:
            return {"text/plain": repr(self)}
        self.panel = self.panel or Panel(self)
        return {**self.panel.box._repr_mimebundle_(), "text/plain": repr(self)}


class Results:
    """Where the answers came from, the table, whether the variants differ in one measure, what the model saw."""

    def __init__(self, records: list[dict], measure: str, requests: dict[str, dict]):
        self.records, self.measure, self.requests = records, measure, requests

    def __repr__(self) -> str:
        return "\n\n".join(self.texts()) if self.records else "No run was finished."

    def texts(self) -> list[str]:
        from tiny_agent.measures import table, verdict

        sources = dict.fromkeys(record["source"] for record in self.records if "source" in record)
        several = len({record["variant"] for record in self.records}) > 1
        tested = [verdict(self.records, self.measure)] if several else []
        return ["\n".join(sources), table(self.records), *tested]

    def _repr_html_(self) -> str:
        if not self.records:
            return html.escape(repr(self))
        source, *texts = (html.escape(text) for text in self.texts())
        drawn = "".join(f'<pre style="{TABLE}">{text}</pre>' for text in reversed(texts))
        for name, request in self.requests.items():
            head = f"<summary><b>{html.escape(name)}</b>: what the model saw</summary>"
            drawn += f"<details>{head}{explain(request)._repr_html_()}</details>"
        return f"<div><small>{source}</small></div>{intervals(self.records, self.measure)._repr_html_()}{drawn}"


def variants(fields: dict) -> dict[str, dict]:
    """A, B, … as `compare` takes them."""
    from tiny_agent.experiment import variant

    texts = enumerate(fields["descriptions"])
    return {chr(ord("A") + i): variant(descriptions={fields["tool"]: text}) for i, text in texts}


def first_requests(fields: dict, model: str) -> dict[str, dict]:
    """By variant, the request that a run begins with."""
    from tiny_agent.context import MAX_TOKENS, Context

    requests = {}
    for name, words in variants(fields).items():
        context = Context(words["system"])
        context.append({"role": "user", "content": fields["task"]})
        requests[name] = json.loads(context.body(model=model, max_tokens=MAX_TOKENS, tools=words["tools"]))
    return requests


def checked(fields: dict) -> dict:
    """The fields of a bench, if they can be. Raises ClassroomError."""
    try:
        from tiny_agent.experiment import TOOLS
    except ImportError:
        raise ClassroomError(
            "The bench needs tiny_agent 0.4 or newer. Begin chapter 04_prompts or a later one."
        ) from None
    if set(fields) != set(KINDS) or not all(type(fields[name]) is kind for name, kind in KINDS.items()):
        raise ClassroomError(f"A bench has the fields {', '.join(KINDS)}; these are {fields!r:.200}.")
    if not fields["descriptions"] or not all(isinstance(text, str) for text in fields["descriptions"]):
        raise ClassroomError("A bench needs one description or more, each a text.")
    tools = [tool["name"] for tool in TOOLS]
    if fields["tool"] not in tools:
        raise ClassroomError(f"There is no tool {fields['tool']!r}. There are: {', '.join(tools)}.")
    if fields["backend"] not in BACKENDS:
        raise ClassroomError(f"There is no backend {fields['backend']!r}. There are: {', '.join(BACKENDS)}.")
    if fields["runs"] < 1:
        raise ClassroomError("A variant is run once or more.")
    return fields
