"""python -m tiny_agent.experiment "task": variants from options or a file, a progress bar, the table, the verdict.

Handles: Ctrl-C, which keeps what is finished; a yes before a provider is asked. Does not handle: graders, which are
Python and stand in a notebook.
"""

import argparse
import concurrent.futures
import functools
import json
import math
import multiprocessing
import sys
import tomllib
from pathlib import Path

from tqdm import tqdm

from classroom import ClassroomError, connect
from classroom.backends import chosen_backend, scene_path

from .context import MAX_TOKENS, ContextError
from .experiment import ExperimentError, compare, plan, variant
from .measures import rates, table, verdict
from .prompts import PROMPTS

TOKEN = 4  # characters: a rough figure, for the estimate before a start


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tiny_agent.experiment", description="Run variants of the words, and count what they change."
    )
    parser.add_argument("task")
    parser.add_argument("--tool", default="read_file", help="the tool that is described (default: %(default)s)")
    parser.add_argument("--description", action="append", default=[], help="a variant: these words; may be repeated")
    parser.add_argument("--prompt", action="append", default=[], help=f"a variant: one of {', '.join(PROMPTS)}")
    parser.add_argument("--variants", type=Path, help="a TOML or JSON file of variants (see the README)")
    parser.add_argument("--runs", type=positive, default=5, help="of each variant (default: %(default)s)")
    parser.add_argument("--turns", type=positive, default=4, help="of one run, at most (default: %(default)s)")
    parser.add_argument("--measure", default="first call on the task's path", help="tested (default: %(default)s)")
    parser.add_argument("--workspace", type=Path, help="the folder that each run gets a copy of (default: the scene's)")
    parser.add_argument("--backend", help="recorded (the default), local, anthropic or openai")
    parser.add_argument("--scene", default="04_prompts/command", help="the recording (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, help="a file that keeps each finished run; the same command goes on from it"
    )
    parser.add_argument("--workers", type=positive, default=1, help="runs at the same time (default: 1)")
    parser.add_argument("--max-calls", type=positive, help="at most so many requests")
    parser.add_argument("--yes", action="store_true", help="do not ask before a provider is asked")
    args = parser.parse_args()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # words may hold half a surrogate pair
    try:
        run(args)
    except (ExperimentError, ClassroomError, OSError) as error:
        sys.exit(f"{error}")


def positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 6 or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is no number from 1 to 100,000")
    return int(text)


def run(args: argparse.Namespace) -> None:
    variants, backend = variants_of(args), chosen_backend(args.backend)
    asked = functools.partial(connect, args.scene, backend=backend)
    workspace = args.workspace or scene_path(args.scene).parents[1] / "workspace"
    done, waiting = plan(variants, args.task, args.runs, asked, workspace, args.turns, {}, args.out)
    if args.measure not in rates([*done, *waiting]):
        raise ExperimentError(f"There is no measure {args.measure!r}. There are: {', '.join(rates(waiting))}.")
    if waiting and backend in ("anthropic", "openai") and not args.yes:
        confirm(variants, args, len(waiting))
    for name, words in variants.items():
        print(f"{name}: {said(words, args.tool)}")
    finished, executor, broken = [], pool(backend, args.workers), None
    with tqdm(total=len(done) + len(waiting), initial=len(done), unit="run", disable=None) as bar:

        def progress(records: list[dict], of: int) -> None:
            finished[:] = records
            bar.update(len(records) - bar.n)

        try:
            finished = compare(
                variants,
                args.task,
                args.runs,
                asked,
                workspace=workspace,
                turn_limit=args.turns,
                out=args.out,
                executor=executor,
                max_calls=args.max_calls,
                progress=progress,
            )
        except (
            KeyboardInterrupt,
            ExperimentError,
            ContextError,
            ClassroomError,
            concurrent.futures.BrokenExecutor,
        ) as error:
            broken = str(error) or "interrupted"
    seconds = [record["seconds"] for record in finished if "seconds" in record]
    print(f"[{sum(seconds) / max(len(seconds), 1):.2f} seconds a run]", file=sys.stderr)
    print("\n".join(dict.fromkeys(record["source"] for record in finished if "source" in record)))
    print(f"\n{table(finished)}\n\n{verdict(finished, args.measure)}" if finished else "No run was finished.")
    if broken:
        kept = f"they are in {args.out}, and the same command goes on" if args.out else "--out FILE keeps them"
        sys.exit(f"Broken off with {len(finished)} of {len(done) + len(waiting)} runs finished: {kept}.\n{broken}")


def pool(backend: str, workers: int) -> concurrent.futures.Executor | None:
    """Threads, or for the local model a process with a model of its own for each worker: together they would wait."""
    if workers == 1:
        return None
    if backend == "local":
        return concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    return concurrent.futures.ThreadPoolExecutor(workers)


def variants_of(args: argparse.Namespace) -> dict[str, dict]:
    """The variants that were asked for; without any there is one, the agent as it is."""
    given = {chr(ord("A") + i): {"descriptions": {args.tool: text}} for i, text in enumerate(args.description)}
    given |= {name: {"prompt": name} for name in args.prompt}
    read = read_variants(args.variants) if args.variants else {}
    if twice := set(given) & set(read):
        raise ExperimentError(f"{args.variants} has a variant {min(twice)!r}, and so have the options. Rename it.")
    given |= read
    try:
        return {name: variant(**fields) for name, fields in (given or {"as it is": {}}).items()}
    except (TypeError, AttributeError) as error:
        raise ExperimentError(f"A variant has the fields descriptions, order, system and prompt ({error}).") from None


def read_variants(path: Path) -> dict[str, dict]:
    try:
        text = path.read_text(encoding="utf-8")
        read = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ExperimentError(f"{path} cannot be read as variants ({error}).") from None
    if not isinstance(read, dict) or not read:
        raise ExperimentError(f"{path} holds no variants.")
    return read


def said(words: dict, tool: str) -> str:
    """A variant in a line: the description that was asked for, the order of the tools, the system prompt."""
    tools = {offered["name"]: offered["description"] for offered in words["tools"]}
    system = f" · system: {' '.join(words['system'].split()):.60}" if words["system"] else ""
    return f"{tool}: {tools.get(tool, 'not offered')!r} · tools: {', '.join(tools)}{system}"


def confirm(variants: dict[str, dict], args: argparse.Namespace, runs: int) -> None:
    """Say what a start may cost, and ask; raises ExperimentError where the answer is no yes."""
    requests = min(runs * args.turns, args.max_calls or math.inf)
    first = max(len(json.dumps(words)) + len(args.task) for words in variants.values()) // TOKEN
    print(
        f"Runs: {runs}, turns of a run: at most {args.turns}, requests: at most {requests} "
        "(a busy server is asked again). "
        f"The first of a run has roughly {first} tokens, each later one more; a reply has at most {MAX_TOKENS}.",
        file=sys.stderr,
    )
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ExperimentError("Nothing was asked.")
