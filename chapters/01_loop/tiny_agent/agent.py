"""The bare loop: ask the model, run the tools it calls, send the results back, until it answers.

Handles: text, tool calls, several calls in one reply. Does not handle: a tool that raises (the run dies with it), a
reply that was cut off, a conversation without end, or anything that the model should be told about a failure.
"""

from pathlib import Path

import httpx

MODEL = "smollm2-135m"
MAX_TOKENS = 1024

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


def run(task: str, client: httpx.Client, *, workspace: str | Path = ".", model: str = MODEL) -> str:
    """Work on the task until the model stops calling tools; returns its last text.

    `client` answers POST /v1/messages in the form of Anthropic's Messages API
    (https://platform.claude.com/docs/en/api/messages). Whatever a tool or the client raises comes out of here.
    """
    messages = [{"role": "user", "content": task}]
    while True:
        request = {"model": model, "max_tokens": MAX_TOKENS, "tools": TOOLS, "messages": messages}
        reply = client.post("/v1/messages", json=request).raise_for_status().json()
        messages.append({"role": "assistant", "content": reply["content"]})

        if reply["stop_reason"] != "tool_use":
            return "".join(block["text"] for block in reply["content"] if block["type"] == "text")

        results = []
        for block in reply["content"]:
            if block["type"] == "tool_use":
                if block["name"] == "read_file":
                    output = read_file(block["input"]["path"], workspace)
                else:
                    output = f"There is no tool named {block['name']}."
                results.append({"type": "tool_result", "tool_use_id": block["id"], "content": output})
        messages.append({"role": "user", "content": results})
