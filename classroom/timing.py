"""What a turn costs in the loop itself: CPU time over a transport that answers at once.

Compares a version with the bare loop of v0.1, which encodes the whole conversation anew in each turn. Does not time a
model or a network.
"""

import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from types import ModuleType

import httpx

from .versions import chapters, taught, version

TURNS, EARLY = 800, 50  # how long a run is, and which turn counts as early
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
        n = len(times)
        call = {"type": "tool_use", "id": f"toolu_{n}", "name": "read_file", "input": {"path": "a.txt"}}
        content = [call] if n < turns else [{"type": "text", "text": "Done."}]
        usage = {"input_tokens": 1, "output_tokens": 1}
        stop_reason = "tool_use" if n < turns else "end_turn"
        return httpx.Response(200, json={"content": content, "stop_reason": stop_reason, "usage": usage})

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.txt").write_text("A line of text, as long as lines are.\n" * 6)
        client = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://bench")
        more = {"context": tiny_agent.Context(turn_limit=turns)} if hasattr(tiny_agent, "Context") else {}
        tiny_agent.run("Read a.txt forever.", client, workspace=folder, **more)
    return times


def main() -> None:
    """Print the cost of a turn for every version."""
    for chapter in chapters():
        tag = taught(chapter)
        print(json.dumps({"version": tag, **{k: round(v, 2) for k, v in turn_cost(version(tag)).items()}}))
