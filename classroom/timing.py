"""What the course's own code costs, as ratios: a turn early and late, a run against its bare requests, an experiment
against raw calls, an import.

Compares with doing without, in the same process and minute. Does not say how fast a model or a network is.
"""

import functools
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import httpx

from . import llama, recordings
from .backends import Client, connect
from .versions import CHAPTERS, chapters, taught, version

TURNS, EARLY = 800, 50  # how long a run is, and which turn counts as early
LINES = "A line of text, as long as lines are.\n" * 6  # of the file that is read in each turn
WINDOW, RUNS = 25, 3  # over how many turns to take the median, and how many runs


def turn_cost(tiny_agent: ModuleType, turns: int = TURNS, early: int = EARLY) -> dict[str, float]:
    """CPU milliseconds of a turn around turn `early` and at the end, and their ratio.

    Each is the quietest of RUNS runs: a window takes some milliseconds only, and whatever else the machine does in it
    adds to the time.
    """
    runs = [turn_times(tiny_agent, turns) for _ in range(RUNS)]

    def cost(end: int) -> float:
        windows = (itertools.pairwise(times[end - 1 - WINDOW : end]) for times in runs)
        return min(statistics.median(after - before for before, after in window) for window in windows) * 1000

    return {"early ms": cost(early), "late ms": cost(turns), "late / early": cost(turns) / cost(early)}


def turn_times(tiny_agent: ModuleType, turns: int) -> list[float]:
    """The CPU time of this process, in seconds, at each request of one run."""
    times = []

    def answer(request: httpx.Request) -> httpx.Response:
        times.append(time.process_time())
        return _reply(len(times), turns)

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.txt").write_text(LINES)
        client = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://bench")
        more = {"context": tiny_agent.Context(turn_limit=turns)} if hasattr(tiny_agent, "Context") else {}
        tiny_agent.run("Read a.txt forever.", client, workspace=folder, **more)
    return times


def _reply(n: int, turns: int) -> httpx.Response:
    """The reply of turn n: a call, and in the last turn (n is `turns`, or 0) an answer."""
    call = {"type": "tool_use", "id": f"toolu_{n}", "name": "read_file", "input": {"path": "a.txt"}}
    last = n in (0, turns)
    content = [{"type": "text", "text": "Done."}] if last else [call]
    usage = {"input_tokens": 1, "output_tokens": 1}
    return httpx.Response(
        200, json={"content": content, "stop_reason": "end_turn" if last else "tool_use", "usage": usage}
    )


def overhead(tiny_agent: ModuleType, turns: int = EARLY) -> float:
    """CPU time of a run against that of sending the very same requests and parsing the replies, and nothing else."""
    bodies: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(request.read())
        return _reply(len(bodies) % turns, turns)

    def bare(client: httpx.Client) -> None:
        for body in list(bodies[:turns]):
            client.post("/v1/messages", content=body, headers={"content-type": "application/json"}).json()

    with (
        tempfile.TemporaryDirectory() as folder,
        httpx.Client(transport=httpx.MockTransport(answer), base_url="http://bench") as client,
    ):
        (Path(folder) / "a.txt").write_text(LINES)
        context = {"context": lambda: tiny_agent.Context(turn_limit=turns)} if hasattr(tiny_agent, "Context") else {}
        run = [
            _cpu(lambda: tiny_agent.run("Go.", client, workspace=folder, **{k: v() for k, v in context.items()}))
            for _ in range(RUNS)
        ]
        return min(run) / min(_cpu(lambda: bare(client)) for _ in range(RUNS))


def _cpu(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def import_time(module: str) -> float:
    """Seconds that a fresh Python takes to import a module, without its own start; the quietest of some."""

    def seconds(code: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - began

    return min(seconds(f"import {module}") for _ in range(5)) - min(seconds("pass") for _ in range(5))


def throughput(runs: int = 8) -> float:
    """Runs a second of an experiment on the local model, against the same requests sent to it one after another."""
    from tiny_agent.experiment import compare, variant

    task, at = "Read notes.txt and tell me what it says.", {"backend": "local", "local_model": "smollm2-135m-bare"}
    connect_run = functools.partial(connect, "03_tools/readme", **at)
    workspace = CHAPTERS / "03_tools" / "workspace"
    clients: list[Client] = []

    def kept(run: str) -> Client:
        clients.append(connect_run(run=run))
        return clients[-1]

    compare({"a": variant()}, task, 1, kept, workspace=workspace, turn_limit=2)  # the prefix is read, once
    clients.clear()
    began = time.perf_counter()
    compare({"a": variant()}, task, runs, kept, workspace=workspace, turn_limit=2)
    ours = time.perf_counter() - began
    began = time.perf_counter()
    for run, client in enumerate(clients[1:], start=1):  # the first one only told its model's id
        for request, _ in client.exchanges:
            with connect_run(run=run) as raw:
                raw.post("/v1/messages", json=request)
    return (time.perf_counter() - began) / ours


def replayed() -> float:
    """Recorded exchanges that are played in a second, each through a client."""
    path = max(CHAPTERS.glob("*/recordings/*.json"), key=lambda path: path.stat().st_size)
    recording = recordings.load(path)
    began = time.perf_counter()
    for run in dict.fromkeys(exchange["run"] for exchange in recording["exchanges"]):
        with connect(recording["scene"], backend="recorded", run=run) as client:
            for exchange in recording["exchanges"]:
                if exchange["run"] == run:
                    client.post("/v1/messages", json=exchange["request"])
    return len(recording["exchanges"]) / (time.perf_counter() - began)


def main() -> None:
    """Print the cost of a turn for every version, then what the newest costs against doing without it."""
    for chapter in chapters():
        tag = taught(chapter)
        costs = {**turn_cost(version(tag)), "turn / bare request": overhead(version(tag))}
        print(json.dumps({"version": tag, **{k: round(v, 2) for k, v in costs.items()}}), flush=True)
    httpx_alone = import_time("httpx")
    print(
        json.dumps({"import tiny_agent / import httpx": round(import_time("tiny_agent") / httpx_alone, 2)}), flush=True
    )
    if llama.installed():
        print(json.dumps({"experiment / raw calls of the local model": round(throughput(), 2)}), flush=True)
    print(json.dumps({"replayed exchanges a second": round(replayed())}), flush=True)
