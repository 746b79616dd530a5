"""The Messages API spoken to a server of OpenAI's form (/chat/completions): one request and reply mapped, both ways.

Handles text, tools, calls, results and the usage; a server that streams without being asked. Does not stream, and does
not judge a call: arguments that are no JSON object are handed on as they came, for the loop to answer.
"""

import codecs
import json
import math
from collections.abc import Iterable, Iterator

import httpx
import httpx_sse

from . import providers
from .errors import NoAnswer

# OpenAI's tool message has no field that says a call failed, so the text says it. A good result that happens to begin
# like a mark gets the other mark, so that the way back is never in doubt.
ERROR_MARK, RESULT_MARK = "[tool error] ", "[tool result] "
# What finish_reason says, in any case. After DONE what stands in the reply decides; another one is handed on as it is.
CALLED = ("tool_calls", "tool_call", "function_call")
DONE = ("", "stop", *CALLED)
STOP_REASONS = {"length": "max_tokens", "max_tokens": "max_tokens", "content_filter": "refusal"}


class Transport(httpx.BaseTransport):
    """Takes Messages requests and asks `inner`, which reaches a server of OpenAI's form."""

    def __init__(self, inner: httpx.BaseTransport, who: str, limit: str = "max_tokens"):
        self.inner, self.who, self.limit = inner, who, limit

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        asked = to_openai(json.loads(request.read()), self.limit)
        response = self.inner.handle_request(httpx.Request("POST", request.url, json=asked))
        response.read()
        streamed = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        try:
            completion = joined(_chunks(response, self.who)) if streamed else json.loads(response.content)
            if completion.get("error"):
                raise NoAnswer(f"{self.who} answered with an error: {providers.error_in(completion)}")
            # json.dumps and not httpx's json=, which raises where a call holds NaN or half a surrogate pair.
            message = json.dumps(from_openai(completion)).encode()
            return httpx.Response(200, headers={"content-type": "application/json"}, content=message)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError):
            raise NoAnswer(
                f"{self.who} answered with JSON that is not a chat completion. Is this the right OPENAI_BASE_URL? "
                f"What came begins: {response.content[:200].decode(errors='replace')!r}"
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
    text = _text(block.get("content", ""))
    if block.get("is_error"):
        return ERROR_MARK + text
    return RESULT_MARK + text if text.startswith((ERROR_MARK, RESULT_MARK)) else text


def result_from_openai(message: dict) -> dict:
    """A tool message as `to_openai` makes it -> its tool_result block, `is_error` and all."""
    text = message["content"]
    block = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
    if text.startswith(ERROR_MARK):
        return {**block, "content": text.removeprefix(ERROR_MARK), "is_error": True}
    return {**block, "content": text.removeprefix(RESULT_MARK)}


def from_openai(completion: dict) -> dict:
    """A chat completion -> a Messages response. Calls or none decide, unless finish_reason says it is not whole."""
    choice = completion["choices"][0]
    message, finish = choice["message"], choice.get("finish_reason") or ""
    texts = [_said(message.get("content")), _said(message.get("refusal"))]
    content = [{"type": "text", "text": text} for text in texts if text]
    taken = set()
    for i, call in enumerate(message.get("tool_calls") or []):
        id = call.get("id") or f"call_{i}"
        id = f"{id}_{i}" if id in taken else id  # some servers leave the id out, or give one twice
        taken.add(id)
        function = call["function"]
        input = _input(function.get("arguments"))
        content.append({"type": "tool_use", "id": id, "name": function.get("name") or "", "input": input})
    called = taken or finish.lower() in CALLED  # said, and none came: the loop names it, and goes no further
    done = "refusal" if message.get("refusal") else "tool_use" if called else "end_turn"
    usage = completion.get("usage") or {}
    return {
        "id": completion.get("id", ""),
        "type": "message",
        "role": "assistant",
        "model": completion.get("model", ""),
        "content": content,
        "stop_reason": done if finish.lower() in DONE else STOP_REASONS.get(finish.lower(), finish),
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
    """The arguments of a call as an object: given as JSON text by most servers, as an object by some, or left out.

    The text is read strictly, and what has no one meaning stays a text: a repeated key, NaN, a number too large. JSON
    in a string of the object is not read at all.
    """
    if arguments in (None, "", "null"):
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments, object_pairs_hook=_unique, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        return arguments


def _unique(pairs: list[tuple[str, object]]) -> dict:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _finite(number: str) -> float:
    if not math.isfinite(float(number)):
        raise ValueError("a number that JSON cannot hold")
    return float(number)


def joined(chunks: Iterable[dict]) -> dict:
    """The chunks of a streamed chat completion, of one choice -> the completion."""
    calls, said, finish, last = [], {"content": "", "refusal": ""}, None, {}
    for chunk in chunks:
        last = {**last, **{key: value for key, value in chunk.items() if value}}
        for choice in chunk["choices"]:
            delta, finish = choice.get("delta") or {}, choice.get("finish_reason") or finish
            said = {key: text + _said(delta.get(key)) for key, text in said.items()}
            for piece in delta.get("tool_calls") or []:
                _add(piece, calls)
    message = {"role": "assistant", **said, "tool_calls": calls}
    return {**last, "choices": [{"finish_reason": finish, "message": message}]}


def _add(piece: dict, calls: list[dict]) -> None:
    """Add a piece to the last call of its index that has no other id and no other name, else begin a call.

    Some servers give every call the index 0, some give two calls one id, and an id may come late or never.
    """
    index, id, function = piece.get("index") or 0, piece.get("id"), piece.get("function") or {}
    name, arguments = function.get("name"), function.get("arguments")
    for call in reversed(calls):
        known = call["function"]
        if call["index"] == index and _agree(call["id"], id) and _agree(known["name"], name):
            break
    else:
        known = {"name": None, "arguments": ""}
        call = {"index": index, "id": None, "function": known}
        calls.append(call)
    call["id"], known["name"] = call["id"] or id, known["name"] or name
    known["arguments"] += "" if arguments is None else _arguments(arguments)


def _agree(known: object, new: object) -> bool:
    return not known or not new or known == new


def _chunks(response: httpx.Response, who: str) -> Iterator[dict]:
    """The chunks of a stream, with the first choice alone. Raises ClassroomError where the stream was broken off."""
    # httpx_sse takes this spelling of the type only, and a byte order mark for a part of the first line.
    text = response.content.removeprefix(codecs.BOM_UTF8)
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=text)
    finished = False
    for event in httpx_sse.EventSource(response).iter_sse():
        if event.data == "[DONE]":
            return
        if not event.data:
            continue
        chunk = json.loads(event.data)
        if event.event == "error" or chunk.get("error") or not {"choices", "usage"} & set(chunk):
            raise NoAnswer(f"{who} broke off its answer: {providers.error_in(chunk)}")
        choices = [choice for choice in chunk.get("choices") or [] if not choice.get("index")]
        finished = finished or any(choice.get("finish_reason") for choice in choices)
        yield {**chunk, "choices": choices}
    if not finished:
        raise NoAnswer(f"{who} broke off its answer: neither a finish_reason nor [DONE] came. Try again.")
