"""The Messages API spoken to a server of OpenAI's form (/chat/completions): one request and reply mapped, both ways.

Handles text, tools, calls, results and the usage. Does not stream, and does not judge a call: arguments that are no
JSON object are handed on as they came, for the loop to answer.
"""

import json

import httpx

from .errors import ClassroomError

# OpenAI's tool message has no field that says a call failed, so the text says it.
ERROR_MARK = "[tool error] "
STOP_REASONS = {"length": "max_tokens", "content_filter": "refusal"}


class Transport(httpx.BaseTransport):
    """Takes Messages requests and asks `inner`, which reaches a server of OpenAI's form."""

    def __init__(self, inner: httpx.BaseTransport, who: str, limit: str = "max_tokens"):
        self.inner, self.who, self.limit = inner, who, limit

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        asked = to_openai(json.loads(request.read()), self.limit)
        response = self.inner.handle_request(httpx.Request("POST", request.url, json=asked))
        completion = json.loads(response.read())
        try:
            return httpx.Response(200, json=from_openai(completion))
        except (KeyError, IndexError, TypeError, AttributeError):
            raise ClassroomError(
                f"{self.who} answered with JSON that is not a chat completion. Is this the right OPENAI_BASE_URL?"
            ) from None

    def close(self) -> None:
        self.inner.close()


def to_openai(request: dict, limit: str = "max_tokens") -> dict:
    """A Messages request -> a chat completions request; `limit` is the server's name for max_tokens."""
    messages = [{"role": "system", "content": _text(request["system"])}] if request.get("system") else []
    for message in request["messages"]:
        messages += _messages_to_openai(message["role"], message["content"])
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool.get("description", ""),
                "parameters": {"type": "object", "properties": {}, **tool.get("input_schema", {})},
            },
        }
        for tool in request.get("tools", [])
    ]
    body = {"model": request["model"], limit: request["max_tokens"], "messages": messages}
    return {**body, "tools": tools} if tools else body


def _messages_to_openai(role: str, content: str | list[dict]) -> list[dict]:
    """One message -> one for each tool result, and one for what else stands in it."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    messages = [
        {"role": "tool", "tool_call_id": block["tool_use_id"], "content": _result_to_openai(block)}
        for block in blocks
        if block["type"] == "tool_result"
    ]
    text = _text([block for block in blocks if block["type"] == "text"])
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {"name": block["name"], "arguments": _arguments(block["input"])},
        }
        for block in blocks
        if block["type"] == "tool_use"
    ]
    if calls:
        messages.append({"role": role, "content": text or None, "tool_calls": calls})
    elif text or not messages:
        messages.append({"role": role, "content": text})
    return messages


def _text(content: str | list[dict]) -> str:
    return content if isinstance(content, str) else "\n".join(block["text"] for block in content if "text" in block)


def _arguments(input: object) -> str:
    return input if isinstance(input, str) else json.dumps(input, ensure_ascii=False)


def _result_to_openai(block: dict) -> str:
    mark = ERROR_MARK if block.get("is_error") else ""
    return mark + _text(block.get("content", ""))


def from_openai(completion: dict) -> dict:
    """A chat completion -> a Messages response. The presence of calls decides, unless the reply was cut off."""
    choice = completion["choices"][0]
    message, finish = choice["message"], choice.get("finish_reason")
    said = _said(message.get("content") or message.get("refusal"))
    content = [{"type": "text", "text": said}] if said else []
    taken = set()
    for i, call in enumerate(message.get("tool_calls") or []):
        id = call.get("id") or f"call_{i}"
        id = f"{id}_{i}" if id in taken else id  # some servers leave the id out, or give one twice
        taken.add(id)
        function = call["function"]
        input = _input(function.get("arguments"))
        content.append({"type": "tool_use", "id": id, "name": function.get("name") or "", "input": input})
    called = "tool_use" if taken else "refusal" if message.get("refusal") else "end_turn"
    usage = completion.get("usage") or {}
    return {
        "id": completion.get("id", ""),
        "type": "message",
        "role": "assistant",
        "model": completion.get("model", ""),
        "content": content,
        "stop_reason": STOP_REASONS.get(finish, called),
        "stop_sequence": None,
        "usage": {
            "input_tokens": usage.get("prompt_tokens") or 0,
            "output_tokens": usage.get("completion_tokens") or 0,
        },
    }


def _said(content: object) -> str:
    """The text of a reply, which most servers give as a string and some as a list of parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _input(arguments: object) -> object:
    """The arguments of a call as an object: given as JSON text by most servers, as an object by some, or left out."""
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
