"""python -m tiny_agent "task": the answer on stdout; who answers, and a line for each turn, on stderr."""

import argparse
import itertools
import sys
from pathlib import Path

import httpx

from classroom import ClassroomError, connect

from .agent import run
from .context import Context, ContextError, input_tokens, read_reply


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tiny_agent", description="Give the agent a task.")
    parser.add_argument("task", nargs="?", help="without one, the run goes on from --context as it is")
    parser.add_argument("--backend", help="recorded (the default), local, anthropic or openai")
    parser.add_argument("--scene", default="03_tools/notes", help="the recording to answer from (default: %(default)s)")
    parser.add_argument("--run", default="9", help="which run of it; for the local model, the seed (default: 9)")
    parser.add_argument("--context", help="a file to go on from, if it is there, and to save the context to at the end")
    parser.add_argument("--workspace", default=".", help="the folder the agent works in (default: this one)")
    args = parser.parse_args()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # a model may say half a surrogate pair, which cannot be encoded
    if not Path(args.workspace).is_dir():
        parser.error(f"--workspace {args.workspace} is no folder")
    try:
        saved = Path(args.context) if args.context else None
        if saved and ((saved.exists() and not saved.is_file()) or not saved.parent.is_dir()):
            parser.error(f"--context {args.context} is no file, or in a folder that is not there")
        client = connect(args.scene, backend=args.backend, run=args.run)
        print(f"[{client.source}]", file=sys.stderr)
        turns = itertools.count(1)
        client.event_hooks["response"].append(lambda response: print_turn(next(turns), response))
        if args.task is None and not (saved and saved.is_file()):
            parser.error("give a task, or a --context FILE to go on from")
        context = Context.load(saved) if saved and saved.is_file() else Context()
        try:
            print(run(args.task, client, workspace=args.workspace, model=client.model, context=context))
        finally:
            if saved:
                context.save(saved)  # after a crash too: that is when you want it
        if context.stopped != "end_turn":
            sys.exit(f"[stopped: {context.stopped}]")
    except (ClassroomError, ContextError, OSError) as error:
        sys.exit(f"{error}")


def print_turn(turn: int, response: httpx.Response) -> None:
    """One line on stderr: [turn 2 · read_file README.md · in=312 out=24]"""
    try:
        reply = read_reply(response)
    except ContextError as error:
        print(f"[turn {turn} · {error}]", file=sys.stderr)
        return
    calls = [f"{b['name']:.40} {in_short(b.get('input'))}" for b in reply["content"] if b["type"] == "tool_use"]
    usage = reply["usage"]
    what = ", ".join(calls) or f"{reply['stop_reason']:.100}"
    what = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in what)
    print(f"[turn {turn} · {what} · in={input_tokens(usage)} out={usage.get('output_tokens')}]", file=sys.stderr)


def in_short(input: object) -> str:
    """The values of a call's input in a line, each with 40 characters at most."""
    values = input.values() if isinstance(input, dict) else [input]
    return " ".join(f"{' '.join(str(value).split()):.40}" for value in values)


if __name__ == "__main__":
    main()
