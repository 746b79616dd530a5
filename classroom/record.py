"""Record a chapter again, save a notebook's outputs, verify recordings.

Recording runs the chapter's notebook live and keeps every exchange of every scene, then runs it on the new
recordings and saves its outputs. Does not touch a scene that was written by hand.
"""

import os
import platform
import shutil
import tempfile
from pathlib import Path

import httpx

from . import llama, local, recordings
from .backends import chosen_backend, is_scripted
from .errors import ClassroomError
from .versions import CHAPTERS


def notebook_of(chapter: str) -> Path:
    return CHAPTERS / chapter / f"{chapter}.ipynb"


def record(chapter: str) -> None:
    """Record the chapter's scenes from a live backend, $TINY_AGENT_BACKEND or else the local model."""
    notebook, kept = notebook_of(chapter), CHAPTERS / chapter / "recordings"
    with tempfile.TemporaryDirectory() as scratch:
        backend = chosen_backend(os.environ.get("TINY_AGENT_BACKEND") or "local")
        if backend == "recorded":
            raise ClassroomError("Recordings are made from a live backend: TINY_AGENT_BACKEND=local, for example.")
        execute(notebook, {"TINY_AGENT_BACKEND": backend, "TINY_AGENT_RECORD": scratch}, without="not-recorded")
        new = sorted((Path(scratch) / chapter / "recordings").glob("*.json"))
        if not new:
            raise ClassroomError(f"{notebook.name} asked no model, so nothing was recorded.")
        kept.mkdir(exist_ok=True)
        for old in kept.glob("*.json"):
            if not is_scripted(old):
                old.unlink()
        for path in new:
            shutil.copy(path, kept / path.name)
            print(f"recorded {chapter}/{path.stem}: {len(recordings.load(path)['exchanges'])} exchanges")
    write_outputs(notebook)


def execute(path: Path, env: dict[str, str], without: str | None = None):
    """Run a notebook from top to bottom in its own folder, in a fresh kernel; returns it with its outputs.

    Cells with the tag `without` are left out: a cell that shows what was not recorded must not be recorded.
    """
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if without not in cell.metadata.get("tags", [])]
    client = nbclient.NotebookClient(
        notebook,
        timeout=1800,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        return client.execute(env={**os.environ, **env})
    except nbclient.exceptions.CellExecutionError as error:
        raise ClassroomError(f"{path.name} stopped in a cell: {error.ename}: {error.evalue}") from None


def write_outputs(path: Path) -> None:
    """Run a notebook on its recordings and save it with the outputs, and with nothing that differs by machine."""
    import nbformat

    notebook = execute(path, {"TINY_AGENT_BACKEND": "recorded"})
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    predicted = False
    for cell in notebook.cells:
        kept = {k: v for k, v in cell.metadata.items() if k == "tags"}
        if cell.cell_type == "code" and predicted:  # folded away until the reader runs the cell
            kept["jupyter"] = {"outputs_hidden": True}
        cell.metadata = nbformat.from_dict(kept)
        predicted = "**Predict.**" in cell.source
    nbformat.write(notebook, path)
    print(f"saved the outputs of {path.name}")


def verify() -> None:
    """Ask the local model every recorded request again and compare the answers; prints a line a scene."""
    with tempfile.TemporaryDirectory() as scratch:
        same = total = 0
        for path in sorted(CHAPTERS.glob("*/recordings/*.json")):
            recording = recordings.load(path)
            if recording["provenance"].get("backend") != "local":
                continue
            again = _ask_again(recording, Path(scratch) / path.parent.parent.name / path.name)
            pairs = list(zip(recording["exchanges"], again, strict=True))
            differ = [(old, new) for old, new in pairs if recordings.canonical(old) != recordings.canonical(new)]
            same, total = same + len(pairs) - len(differ), total + len(pairs)
            print(f"{recording['scene']}: {len(pairs) - len(differ)} of {len(pairs)} identical", flush=True)
            for old, new in differ:
                for where, then, now in recordings.differences(old["response"], new["response"]):
                    print(f"  run {old['run']}, {where}: recorded {then}, now {now}")
        print(f"{same} of {total} identical on this CPU ({platform.machine()}, {llama.about()['weights']})")
        if same < total:
            print("On another kind of CPU sums are rounded differently and some samples differ. That is no fault.")


def _ask_again(recording: dict, path: Path) -> list[dict]:
    """The same requests in the same order, recorded anew into `path`."""
    draft = recordings.Draft({**recording, "exchanges": []})
    transport = recordings.Recorder(httpx.WSGITransport(local.application), path, draft)
    with httpx.Client(transport=transport, base_url="http://classroom", timeout=600) as client:
        for exchange in recording["exchanges"]:
            client.post("/v1/messages", json=exchange["request"], headers={"x-run": exchange["run"]})
    return draft.exchanges
