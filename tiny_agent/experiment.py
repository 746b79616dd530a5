"""Experiments: variants of the words, many runs of each, a JSON line a run.

Handles: runs that do not see each other, in this process or through any executor; an experiment that was broken off;
requests that failed, which are no results. Does not handle: what any of it means for another model or another task.
As a command: python -m tiny_agent.experiment --description "Read a file" --description "…" --runs 5 "task"
"""

import concurrent.futures
import functools
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from . import agent
from .context import Context, as_blocks, input_tokens
from .prompts import PROMPTS
from .tools import TOOLS

Connect = Callable[..., httpx.Client]  # connect(run="3") -> a client with .model, the id to ask for, and .source
Grader = Callable[[dict, Path], bool | None]


class ExperimentError(Exception):
    """The experiment cannot be run as it was asked for. Nothing that was finished is lost."""


def variant(
    *, descriptions: dict[str, str] | None = None, order: list[str] | None = None, system: str = "", prompt: str = ""
) -> dict:
    """`{"tools", "system"}` as an experiment takes it, from what it changes: other descriptions by the tool's name, the
    tools in another order (those left out are not offered), a system prompt or the name of one in PROMPTS.

    Raises ExperimentError for a tool or a prompt that does not exist.
    """
    tools, descriptions = {tool["name"]: tool for tool in TOOLS}, descriptions or {}
    if unknown := [name for name in [*descriptions, *(order or [])] if name not in tools]:
        raise ExperimentError(f"There is no tool {unknown[0]!r}. There are: {', '.join(tools)}.")
    if prompt and prompt not in PROMPTS:
        raise ExperimentError(f"There is no prompt {prompt!r}. There are: {', '.join(PROMPTS)}.")
    texts = [*descriptions, *descriptions.values(), *(order or []), system, prompt]
    if not all(isinstance(text, str) for text in texts) or not isinstance(order, list | None):
        raise ExperimentError("A variant is made of texts: descriptions by tool, order as a list, system, prompt.")
    if prompt and system:
        raise ExperimentError("A variant has a prompt or a system, not both.")
    tools |= {name: {**tools[name], "description": text} for name, text in descriptions.items()}
    return {
        "tools": [tools[name] for name in (tools if order is None else order)],
        "system": PROMPTS.get(prompt, system),
    }


def compare(
    variants: dict[str, dict],
    task: str,
    runs: int,
    connect: Connect,
    *,
    workspace: str | Path = ".",
    turn_limit: int = 8,
    graders: dict[str, Grader] | None = None,
    out: str | Path | None = None,
    executor: concurrent.futures.Executor | None = None,
    max_calls: int | None = None,
    progress: Callable[[list[dict], int], None] = lambda finished, of: None,
) -> list[dict]:
    """Run each variant `runs` times; returns a record for each run, first all first runs.

    `variants`: by name, as `variant` makes them. Run 3 of every variant has the run id "3", and so the same seed where
    the backend takes one: equal luck, which leaves less noise between variants than the test reckons with. Each run
    works in a copy of `workspace`. A grader gets the finished record and the folder as the run left it, and says True
    or False, or None where its question does not arise.

    `out` is a file that keeps a JSON line for each finished run, also of those that end while the experiment is broken
    off; what it holds is not run again. A run whose request failed is `{"not_run": why}`: it stands in no file and
    counts nowhere. `max_calls` bounds the requests (without those that the backend repeats): a run is started only if
    all its turns are left. `progress` is called with the records so far, and how many there will be. With an executor
    the order of the lines in `out` may differ.
    """
    graders = graders or {}
    done, waiting = plan(variants, task, runs, connect, workspace, turn_limit, graders, out)
    of, budget = len(done) + len(waiting), len(waiting) if max_calls is None else max(max_calls, 0) // turn_limit
    waiting, left = waiting[:budget], waiting[budget:]
    if out:
        os.truncate(out, len(whole_lines(Path(out))))  # what a kill cut off
    jobs = [(start, variants[start["variant"]], connect, str(workspace), turn_limit, graders) for start in waiting]
    progress(done, of)
    for record in outcomes(jobs, executor, functools.partial(keep, threading.Lock(), out)):
        done.append(record)
        progress(done, of)
    done += [{**start, "not_run": f"no more than {max_calls} requests were allowed"} for start in left]
    place = {key: i for i, key in enumerate((name, str(run)) for run in range(1, runs + 1) for name in variants)}
    return sorted(done, key=lambda record: place[record["variant"], record["run"]])


def plan(
    variants: dict[str, dict],
    task: str,
    runs: int,
    connect: Connect,
    workspace: str | Path,
    turn_limit: int,
    graders: dict[str, Grader],
    out: str | Path | None,
) -> tuple[list[dict], list[dict]]:
    """The records that `out` holds already, and the beginnings of those that are to be made.

    Raises ExperimentError where `out` holds runs of a variant that was another one then.
    """
    if turn_limit < 1:
        raise ExperimentError("A run takes one turn or more.")
    with connect(run="1") as client:
        asked = [task, client.model, turn_limit, sorted(graders), contents(workspace)]
    marks = {name: digest([*asked, variant]) for name, variant in variants.items()}
    starts = {
        (name, str(run)): {
            "variant": name,
            "run": str(run),
            "task": task,
            "tools": offered(variant),
            "experiment": digest(asked),
            "mark": marks[name],
        }
        for run in range(1, runs + 1)
        for name, variant in variants.items()
    }
    kept = finished(Path(out), Path(workspace)) if out else []
    for record in kept:
        same = record["mark"] == marks.get(record["variant"], record["mark"])
        if record["experiment"] != digest(asked) or not same:
            raise ExperimentError(
                f"{out} holds runs of {record['variant']!r} with other words, another task, model, turn limit, "
                "grader or workspace. Go on with what they were made with, or name another file."
            )
    done = {(record["variant"], record["run"]): record for record in kept}
    return [done[key] for key in starts if key in done], [starts[key] for key in starts if key not in done]


def finished(out: Path, workspace: Path) -> list[dict]:
    """The records in the file, which is made if it is not there. Raises ExperimentError where it cannot be used."""
    if out.resolve().is_relative_to(workspace.resolve()):
        raise ExperimentError(f"{out} is in the workspace, where each run would find it. Name a file outside.")
    try:
        out.open("a").close()
        data = whole_lines(out)
    except OSError as error:
        raise ExperimentError(f"{out} cannot be written: {error.strerror}.") from None
    records = []
    for i, line in enumerate(data.splitlines(), start=1):
        try:
            record = json.loads(line)
            if not {"variant", "run", "tools", "experiment", "mark", "calls"} <= set(record):
                raise ValueError("fields are missing")
            records.append(record)
        except (ValueError, TypeError, RecursionError) as error:
            raise ExperimentError(f"{out}, line {i} is no record of a run ({error!r}). Name another file.") from None
    return records


def whole_lines(out: Path) -> bytes:
    """What is in the file, without the beginning of a record that a kill cut off."""
    data = out.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    return whole if data[len(whole) :].startswith(b'{"variant": ') else data


def keep(lock: threading.Lock, out: str | Path | None, record: dict) -> None:
    if out and "not_run" not in record:
        with lock, Path(out).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def contents(workspace: str | Path) -> list[tuple[str, str]]:
    """What each run gets a copy of: (path, digest), or (path, "folder"). Raises ExperimentError where it can't be."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(shutil.copytree(workspace, folder, dirs_exist_ok=True))
            return [
                (path.relative_to(copy).as_posix(), "folder" if path.is_dir() else sha256(path.read_bytes()))
                for path in sorted(copy.rglob("*"))
            ]
    except (OSError, RecursionError) as error:  # shutil.Error is one
        raise ExperimentError(f"The workspace {workspace} cannot be copied ({error!s:.200}).") from None


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def digest(value: object) -> str:
    return sha256(json.dumps(value).encode())[:12]


def offered(variant: dict) -> list[str]:
    return [tool["name"] for tool in variant.get("tools", TOOLS)]


def outcomes(
    jobs: list[tuple], executor: concurrent.futures.Executor | None, keep: Callable[[dict], None]
) -> Iterator[dict]:
    """The record of each job as it is finished, after it was kept."""
    if executor is None:
        for job in jobs:
            record = one_run(*job)
            keep(record)
            yield record
        return

    def ended(future: concurrent.futures.Future) -> None:
        if not future.cancelled() and future.exception() is None:
            keep(future.result())

    futures = [executor.submit(one_run, *job) for job in jobs]
    for future in futures:
        future.add_done_callback(ended)  # also of what ends after the loop below was broken off
    try:
        for future in concurrent.futures.as_completed(futures):
            yield future.result()
    finally:  # broken off: what has not begun is not begun
        for future in futures:
            future.cancel()


def one_run(
    start: dict, variant: dict, connect: Connect, workspace: str, turn_limit: int, graders: dict[str, Grader]
) -> dict:
    """One run in a copy of the workspace; returns `start` and what came of it. See README, "Experiments"."""
    context = Context(variant.get("system", ""), turn_limit=turn_limit)
    tools, began = variant.get("tools", TOOLS), time.monotonic()
    with connect(run=start["run"]) as client, tempfile.TemporaryDirectory() as folder:
        shutil.copytree(workspace, folder, dirs_exist_ok=True)
        try:
            at = {"workspace": folder, "model": client.model, "tools": tools, "context": context}
            answer = agent.run(start["task"], client, **at)
        except httpx.HTTPError as error:
            return {**start, "not_run": f"{error!s:.300}"}
        record = {
            **start,
            "model": client.model,
            "source": client.source,
            "calls": calls(context.messages),
            "stopped": context.stopped,
            "answer": answer,
            "turns": len(context.usage),
            "input_tokens": sum(map(input_tokens, context.usage)),
            "output_tokens": sum(usage.get("output_tokens") or 0 for usage in context.usage),
            "seconds": round(time.monotonic() - began, 3),
        }
        return {**record, "grades": {name: graded(name, grade, record, folder) for name, grade in graders.items()}}


def graded(name: str, grade: Grader, record: dict, folder: str) -> bool | None:
    where = f"The grader {name!r}, in run {record['run']} of {record['variant']!r},"
    try:
        said = grade(record, Path(folder))
        if said is None or said in (True, False):
            return said if said is None else bool(said)
    except Exception as error:
        raise ExperimentError(f"{where} raised {error!r}.") from error
    raise ExperimentError(f"{where} said {said!r:.100}. It says True, False or None.")


def calls(messages: list[dict]) -> list[dict]:
    """The calls of a run, in order: turn, name, input, and the error that the model was told, or None."""
    blocks = [block for message in messages for block in as_blocks(message["content"])]
    results = {block["tool_use_id"]: block for block in blocks if block["type"] == "tool_result"}
    replies = [as_blocks(message["content"]) for message in messages if message["role"] == "assistant"]
    return [
        {
            "turn": turn,
            "name": block["name"],
            "input": block["input"],
            "error": results[block["id"]]["content"] if results[block["id"]].get("is_error") else None,
        }
        for turn, reply in enumerate(replies, start=1)
        for block in reply
        if block["type"] == "tool_use"
    ]


if __name__ == "__main__":
    from .command import main  # not above: the command needs the classroom, an experiment does not

    main()
