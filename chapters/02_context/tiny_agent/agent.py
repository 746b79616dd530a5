"""The loop over a context that the caller holds: ask, run the tools, append, until a reason to stop.

Handles: every stop reason of the API, a limit of turns, a run that goes on from a saved or mended context. Does not
handle: a tool that raises. The run dies with it, and the context is left as the model last saw it.
"""

from pathlib import Path

import httpx

from .context import MAX_TOKENS, Context, compact, is_blank, text_of

MODEL = "smollm2-135m"
JSON = {"content-type": "application/json"}

TOOLS = [
    {
        "name": "read_file",
        "description": "Read a file",
        "input_schema": {
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
        },
    }
]


def read_file(path: str, workspace: str | Path) -> str:
    """The text of a file, its path taken from the workspace."""
    return (Path(workspace) / path).read_text(encoding="utf-8")


def run_tools(calls: list[dict], workspace: str | Path) -> list[dict]:
    """Run the calls of a reply in order; returns their tool_result blocks."""
    results = []
    for call in calls:
        if call["name"] == "read_file":
            output = read_file(call["input"]["path"], workspace)
        else:
            output = f"There is no tool named {call['name']}."
        results.append({"type": "tool_result", "tool_use_id": call["id"], "content": output})
    return results


def run(
    task: str | None,
    client: httpx.Client,
    *,
    workspace: str | Path = ".",
    model: str = MODEL,
    context: Context | None = None,
) -> str:
    """Work on the task until there is a reason to stop; returns the last text, the reason is `context.stopped`.

    With `context` the run goes on from there, and with the task None it goes on without a word. Whatever a tool or
    the client raises comes out of here; the context then ends with the calls that have no result yet.
    """
    context = Context() if context is None else context
    context.check()
    if task is None:
        context.check_unanswered()
    else:
        context.append({"role": "user", "content": task})
    context.stopped = None
    text = ""
    for _ in range(context.turn_limit):
        if context.is_long():
            compact(context, client, model)
        body = context.body(model=model, max_tokens=MAX_TOKENS, tools=TOOLS)
        reply = client.post("/v1/messages", content=body, headers=JSON).raise_for_status().json()
        context.usage.append(reply["usage"])
        text = text_of(reply)
        content = [block for block in reply["content"] if not is_blank(block)]
        if reply["stop_reason"] != "tool_use":  # cut off, for example: what looks like a call may be half of one
            content = [block for block in content if block["type"] != "tool_use"]
        if content:  # the API refuses a message without content when it is sent back
            context.append({"role": "assistant", "content": content})

        match reply["stop_reason"]:
            case "tool_use" if context.open_calls:
                context.append({"role": "user", "content": run_tools(context.open_calls, workspace)})
            case "pause_turn":
                continue  # a tool on the server's side is not done: with what there is so far, it goes on
            case "end_turn" | "stop_sequence" | "max_tokens" | "refusal" | "model_context_window_exceeded" as reason:
                context.stopped = reason
                return text
            case unknown:
                context.stopped = f"{unknown} (this version cannot go on from it)"
                return text
    context.stopped = "turn_limit"
    return text
