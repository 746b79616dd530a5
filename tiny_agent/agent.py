"""The loop: ask, run what is asked for, append, until a reason to stop. Nothing that a model says breaks it.

Handles: calls that fail, of which the model is told; replies that were cut off or are no messages; a model that repeats
itself. Does not handle: a well-formed call that is a bad idea. It is run.
"""

from collections import Counter
from pathlib import Path

import httpx

from .context import MAX_TOKENS, Context, ContextError, compact, read_reply, text_of
from .tools import TOOLS, run_tool

MODEL = "smollm2-135m"
JSON = {"content-type": "application/json"}
MAX_FAILURES = 3  # in one run, with the same words, or of replies that were cut off in a call
CUT_OFF = "Not run: the reply was cut off at {} tokens, inside a call or after it. Ask for less, or write in parts."


def tool_result(call: dict, outcome: dict) -> dict:
    """The block that answers a call, from what `run_tool` returned. Only `is_error` says that the call failed."""
    block = {"type": "tool_result", "tool_use_id": call["id"]}
    if "error" in outcome:
        return {**block, "content": outcome["error"], "is_error": True}
    return {**block, "content": outcome["content"]}


def run(
    task: str | None,
    client: httpx.Client,
    *,
    workspace: str | Path = ".",
    model: str = MODEL,
    tools: list[dict] = TOOLS,
    context: Context | None = None,
) -> str:
    """Work on the task until there is a reason to stop; returns the last text, the reason is `context.stopped`.

    Where no reply ended the run, what is returned says "Gave up": the model's last words may well claim success. With
    `context` the run goes on from there, and with the task None it goes on without a word. Raises what the client
    raises, and ContextError where `context` cannot be run on; nothing else.
    """
    context = Context() if context is None else context
    context.check()
    if task is None:
        context.check_unanswered()
    else:
        context.append({"role": "user", "content": task})
    context.stopped = None
    failures = Counter()
    for _ in range(context.turn_limit):
        if context.is_long():
            compact(context, client, model)
        body = context.body(model=model, max_tokens=MAX_TOKENS, tools=tools)
        response = client.post("/v1/messages", content=body, headers=JSON).raise_for_status()
        try:
            reply = read_reply(response)
            calls = context.take(reply)
        except ContextError as error:
            return gave_up(context, f"malformed_reply ({error!s:.200})", f"{error!s:.200}")
        context.usage.append(reply["usage"])
        text, cut = text_of(reply), reply["stop_reason"] == "max_tokens"

        match reply["stop_reason"]:
            case "tool_use" | "end_turn" if calls:  # some servers say that they are done, and call
                outcomes = [run_tool(call["name"], call["input"], workspace, tools) for call in calls]
            case "max_tokens" if calls:  # what looks like a call may be half of one: nothing is run
                outcomes = [{"error": CUT_OFF.format(reply["usage"].get("output_tokens"))}] * len(calls)
            case "pause_turn":
                continue  # a tool on the server's side is not done: with what there is so far, it goes on
            case "end_turn" if not text.strip():
                context.stopped = "empty_reply"
            case "end_turn" | "stop_sequence" | "max_tokens" | "refusal" | "model_context_window_exceeded" as reason:
                context.stopped = reason
            case unknown:
                context.stopped = f"{unknown:.100} (this version cannot go on from it)"
        if context.stopped:
            return text

        context.append({"role": "user", "content": list(map(tool_result, calls, outcomes))})
        failures.update({"reply cut off" if cut else outcome["error"] for outcome in outcomes if "error" in outcome})
        for failure, times in failures.items():
            if times == MAX_FAILURES:
                reason = "max_tokens" if cut else "repeated_failure"
                return gave_up(context, reason, f"{times} times in this run: {failure:.200}")
    return gave_up(context, "turn_limit", f"no answer within the limit of turns ({context.turn_limit})")


def gave_up(context: Context, reason: str, why: str) -> str:
    context.stopped = reason
    return f"Gave up: {why}"
