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

TURNS, EARLY, WINDOW = (
    800,
    50,
    25,
)  # how long a run is, which turn counts as early, over how many turns to take the median


def turn_cost(tiny_agent: ModuleType, turns: int = TURNS, early: int = EARLY) -> dict[str, float]:
    """CPU milliseconds of a turn around turn `early` and at the end, and their ratio."""
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

    def cost(end: int) -> float:
        turns_before = itertools.pairwise(times[end - 1 - WINDOW : end])
        return statistics.median(after - before for before, after in turns_before) * 1000

    return {"early ms": cost(early), "late ms": cost(turns), "late / early": cost(turns) / cost(early)}


def main() -> None:
    """Print the cost of a turn for every version."""
    for chapter in chapters():
        tag = taught(chapter)
        print(json.dumps({"version": tag, **{k: round(v, 2) for k, v in turn_cost(version(tag)).items()}}))
