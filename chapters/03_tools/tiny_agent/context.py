"""The context: all that the model chooses from, and what it cost.

Handles: a history that only grows, each message encoded once; calls and results that do not pair; replies that are no
messages; saving and loading; a summary in place of old messages. Does not handle: a request that the API refuses for
another reason, such as a message that is too long.
"""

import itertools
import json
import math
import os
import re
from pathlib import Path

import httpx

from .tools import faults, write_whole

MAX_TOKENS = 1024
MAX_DEPTH = 100  # of a reply: what Python can read and cannot write again, or print, is far beyond it
STOPS_WITH_CALLS = ("tool_use", "end_turn", "max_tokens")
TOKEN_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
SUMMARISE = "Summarise the work below in a few sentences. Keep names, numbers and file names.\n\n"


class ContextError(Exception):
    """The API would refuse this history: calls and results do not pair, or the user does not speak first."""


class Context:
    """What goes into each turn. All of it is plain data and survives `save` and `load`."""

    def __init__(self, system: str = "", *, turn_limit: int = 20, compact_above: int | None = None):
        self.system = system
        self.turn_limit = turn_limit
        """How many replies one run may take."""
        self.compact_above = compact_above
        """After a turn with more input tokens than this, old messages become a summary; None never does."""
        self.usage: list[dict] = []
        """What each reply cost, as the API said it."""
        self.task: list[dict] = []
        """What the user said first, as content blocks: no summary replaces it."""
        self.archive: list[dict] = []
        """The messages that summaries stand for, oldest first."""
        self.notes: list[str] = []
        """What was changed in a reply before it was stored."""
        self.stopped: str | None = None
        """Why the last run ended: a stop_reason, or `turn_limit`. None while it runs, and where it died."""
        self._history = bytearray()  # the messages as JSON, comma between: what was sent is never made again
        self._last_role, self._last_at = "", 0  # of the last message: who spoke, and where in _history it begins
        self._ids: set[str] = set()  # of all calls
        self._open_calls: list[dict] = []

    @property
    def messages(self) -> list[dict]:
        """The history, decoded into a copy. To change the history, append to it."""
        return json.loads(b"[%s]" % self._history)

    @property
    def open_calls(self) -> list[dict]:
        """The calls at the end of the history that have no result yet."""
        return list(self._open_calls)

    def append(self, message: dict) -> None:
        """Add `{"role", "content"}`; raises ContextError, and adds nothing, where calls and results would not pair.

        A result stands in the user message right after its call and before any text, and no two messages of a role
        follow each other (https://platform.claude.com/docs/en/agents-and-tools/tool-use/implement-tool-use). So
        results are put first, and a message of the same role as the last one joins it, which encodes that one anew.
        """
        role, content = message["role"], message["content"]
        blocks = as_blocks(content)
        if role == "assistant":
            self.check()
        open_calls = still_open(self._open_calls, role, blocks)
        ids = {block["id"] for block in blocks if block["type"] == "tool_use"}
        if ids & self._ids:
            raise ContextError(f"An id was used by an earlier call: {', '.join(sorted(ids & self._ids))}.")
        if not self._history and (role != "user" or not blocks):
            raise ContextError("A history begins with what the user says.")
        if any(is_blank(block) for block in blocks):
            raise ContextError("The API refuses a text with nothing in it.")
        joins = role == self._last_role
        if joins:
            content = as_blocks(json.loads(self._history[self._last_at :])["content"]) + blocks
        if isinstance(content, list) and role == "user":
            content = sorted(content, key=lambda block: block["type"] != "tool_result")
        encoded = encode({"role": role, "content": content})  # raises before anything is changed
        if joins:
            del self._history[self._last_at :]
        elif self._history:
            self._history += b", "
        self.task = self.task or blocks
        self._last_role, self._last_at = role, len(self._history)
        self._history += encoded
        self._ids |= ids
        self._open_calls = open_calls

    def take(self, reply: dict) -> list[dict]:
        """Add a reply as `read_reply` gives it; returns its calls as they came, with the ids of the stored ones.

        What the API would refuse in every request from then on is left out or stored in another form, and `notes` tells
        so: blank text (without a note); a call in a reply that stopped for another reason, such as a refusal; an id
        that is malformed or was used before; a malformed name; an input that is no object. Raises ContextError where
        the reply is no message of an assistant.
        """
        ids, content, calls = set(), [], []
        for block in reply["content"]:
            if block["type"] == "tool_use":
                if reply["stop_reason"] not in STOPS_WITH_CALLS:
                    self.notes.append(f"Left out: a call of {block['name']:.100}, in a {reply['stop_reason']:.100}.")
                    continue
                stored = self._stored({"input": {}, **block}, ids)
                ids.add(stored["id"])
                calls.append({"input": {}, **block, "id": stored["id"]})
                block = stored
            if not is_blank(block):
                content.append(block)
        if content:
            self.append({"role": "assistant", "content": content})
        return calls

    def _stored(self, call: dict, ids: set[str]) -> dict:
        """A call as the API takes it back, with an id that is in no earlier call and not in `ids`."""
        given, new = call.get("id"), (f"toolu_{n}" for n in itertools.count(len(self._ids) + 1))
        id = given if isinstance(given, str) and re.fullmatch(r"[a-zA-Z0-9_-]+", given) else next(new)
        while id in self._ids or id in ids:
            id = next(new)
        name = re.sub(r"[^a-zA-Z0-9_-]", "_", call["name"])[:64] or "_"
        input = call["input"] if isinstance(call["input"], dict) else {"invalid": call["input"]}
        stored = {**call, "id": id, "name": name, "input": input}
        for key in ("id", "name", "input"):
            if call.get(key) != stored[key]:
                was, now = f"{call.get(key)!r:.100}", f"{stored[key]!r:.100}"
                self.notes.append(f"A call of {call['name']:.100} had the {key} {was} and was given {now}.")
        return stored

    def check(self) -> None:
        """Raises ContextError where a call waits for its result, so that neither a request nor a reply may follow."""
        if self._open_calls:
            raise ContextError(f"No result yet for the calls {names(self._open_calls)}: append their results first.")

    def check_unanswered(self) -> None:
        """Raises ContextError where the last word is an answer: to ask again would have the model continue it.

        A run that stopped elsewhere may go on: at the limit of turns, at a malformed reply, or where it died.
        """
        cut_short = self.stopped is None or self.stopped.startswith(("turn_limit", "malformed_reply"))
        if not self._history or (self._last_role == "assistant" and not cut_short):
            raise ContextError("There is nothing to answer. Give a task.")

    def body(self, **head: object) -> bytes:
        """The request: `head` (model, max_tokens, tools), the system prompt, and the history as it was encoded.

        `cache_control` asks the API to keep what it has read, for the next turn, which begins in the same way
        (https://platform.claude.com/docs/en/build-with-claude/prompt-caching).
        """
        self.check()
        if self.system:
            head["system"] = self.system
        start = encode({**head, "cache_control": {"type": "ephemeral"}})
        return b"".join((start[:-1], b', "messages": [', self._history, b"]}"))

    def is_long(self) -> bool:
        """Whether the last request had more input tokens than `compact_above`."""
        if self.compact_above is None or not self.usage:
            return False
        return input_tokens(self.usage[-1]) > self.compact_above

    def summarised(self, summary: str, cut: int) -> None:
        """Put the task and the summary in place of the messages before `cut`, which go to the archive.

        Raises ContextError, and changes nothing, where the cut parts a call from its result.
        """
        first, *old = self.messages[:cut]
        made = len(self.task) + 1 if self.archive else 0  # the task and the last summary are no part of what was said
        said = [{**first, "content": as_blocks(first["content"])[made:]}, *old]
        text = {"type": "text", "text": f"What was done so far, in short: {summary}"}
        new = Context()
        for message in [{"role": "user", "content": [*self.task, text]}, *self.messages[cut:]]:
            new.append(message)
        self.archive += [message for message in said if message["content"]]
        self._history, self._last_role, self._last_at = new._history, new._last_role, new._last_at

    def save(self, path: str | Path) -> None:
        """Write the context as JSON, whole or not at all."""
        saved = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        write_whole(Path(os.path.realpath(path)), json.dumps({**saved, "messages": self.messages}, indent=1).encode())

    @classmethod
    def load(cls, path: str | Path) -> "Context":
        """A context as it was saved, to be run on. Raises ContextError where the file holds none."""
        context = cls()
        try:
            saved = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=no_number)
            if found := faults(SAVED, saved, "context"):
                raise ContextError("; ".join(found))
            for message in saved.pop("messages"):
                context.append(message)
            vars(context).update(saved)
            context.turn_limit = int(context.turn_limit)
            list(map(input_tokens, context.usage))
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            ArithmeticError,
            RecursionError,
            ContextError,
        ) as error:
            raise ContextError(f"{path} holds no saved context of this version ({error!r:.300}).") from None
        return context


COUNTS = {"type": ["integer", "null"], "minimum": 0}
SAVED = {
    "type": "object",
    "required": ["messages"],
    "additionalProperties": False,
    "properties": {
        "system": {"type": "string"},
        "turn_limit": {"type": "integer", "minimum": 0},
        "compact_above": {"type": ["number", "null"]},
        "usage": {"type": "array"},
        "task": {"type": "array"},
        "archive": {"type": "array"},
        "notes": {"type": "array"},
        "stopped": {"type": ["string", "null"]},
        "messages": {"type": "array"},
    },
}
REPLY = {
    "type": "object",
    "required": ["content", "stop_reason", "usage"],
    "properties": {
        "content": {"type": "array"},
        "stop_reason": {"type": "string"},
        "usage": {"type": "object", "properties": dict.fromkeys([*TOKEN_COUNTS, "output_tokens"], COUNTS)},
    },
}
BLOCK = {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}}
BLOCKS = {
    "text": {"required": ["text"], "properties": {"text": {"type": "string"}}},
    "tool_use": {"required": ["name"], "properties": {"name": {"type": "string"}}},
}


def read_reply(response: httpx.Response) -> dict:
    """The reply as a dict with `content`, `stop_reason` and `usage` in their form; a block may be of any type.

    It is checked like the input of a call, since the model's side is not ours. Numbers that JSON does not have, or that
    are too large to count with, become text. Raises ContextError.
    """
    try:
        reply = response.json(parse_constant=str, parse_float=finite, parse_int=finite)
    except (ValueError, RecursionError) as error:
        raise ContextError(f"The reply is no JSON ({error}).") from None
    if depth(reply) > MAX_DEPTH:
        raise ContextError(f"The reply is nested more than {MAX_DEPTH} deep.")
    found = faults(REPLY, reply, "reply")
    for i, block in enumerate([] if found else reply["content"]):
        where = f"reply.content[{i}]"
        found += faults(BLOCK, block, where) or faults(BLOCKS.get(block["type"], {}), block, where)
    if found:
        raise ContextError(f"The reply is no message ({'; '.join(found)}).")
    return reply


def no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def finite(text: str) -> int | float | str:
    if not math.isfinite(float(text)):
        return text
    return int(text) if text.lstrip("-").isdigit() else float(text)


def depth(value: object) -> int:
    """How deep lists and objects stand in each other: 0 for a number, 1 for []."""
    levels, level = 0, [value]
    while level := [v for v in level if isinstance(v, dict | list)]:
        levels, level = levels + 1, [item for v in level for item in (v.values() if isinstance(v, dict) else v)]
    return levels


def encode(value: object) -> bytes:
    # Half a surrogate pair is no text: the API would refuse it in each request from then on.
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


def as_blocks(content: str | list[dict]) -> list[dict]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def text_of(reply: dict) -> str:
    return "".join(block["text"] for block in reply["content"] if block["type"] == "text")


def is_blank(block: dict) -> bool:
    return block["type"] == "text" and not block["text"].strip()


def names(calls: list[dict]) -> str:
    return ", ".join(f"{call['name']} ({call['id']})" for call in calls)


def still_open(calls: list[dict], role: str, blocks: list[dict]) -> list[dict]:
    """The calls without a result after these blocks. Raises ContextError where blocks and calls do not pair."""
    wrong = {"user": "tool_use", "assistant": "tool_result"}.get(role)
    if wrong is None or any(block["type"] == wrong for block in blocks):
        raise ContextError(
            f"A message of the role {role!r} cannot hold this: calls are the assistant's, results yours."
        )
    if role == "assistant":
        calls = [block for block in blocks if block["type"] == "tool_use"]
        if len({call["id"] for call in calls}) < len(calls):
            raise ContextError(f"Two calls share an id, so their results could not be told apart: {names(calls)}.")
        return calls
    results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    if stray := [id for id in results if results.count(id) > 1 or id not in {call["id"] for call in calls}]:
        raise ContextError(f"Results that answer no open call: {', '.join(stray)}.")
    return [call for call in calls if call["id"] not in results]


def input_tokens(usage: dict) -> int:
    """How long the prompt was: what was read anew, what came from the cache, and what was written to it."""
    return sum(int(usage.get(kind) or 0) for kind in TOKEN_COUNTS)


def safe_cut(messages: list[dict], keep: int) -> int:
    """Where to cut so that about the last `keep` messages stay: never between a call and its result."""
    cut = max(len(messages) - keep, 0)
    while 0 < cut < len(messages) and any(
        block["type"] == "tool_result" for block in as_blocks(messages[cut]["content"])
    ):
        cut -= 1
    return cut


def compact(context: Context, client: httpx.Client, model: str, keep: int = 4) -> None:
    """Have the model summarise all but about the last `keep` messages.

    Nothing changes where there is too little to summarise, or where the reply was refused, cut off or malformed.
    """
    messages = context.messages
    cut = safe_cut(messages, keep)
    if cut < 2:
        return
    text = SUMMARISE + json.dumps(messages[:cut], ensure_ascii=False)
    request = {"model": model, "max_tokens": MAX_TOKENS, "messages": [{"role": "user", "content": text}]}
    response = client.post("/v1/messages", json=request).raise_for_status()
    try:
        reply = read_reply(response)
    except ContextError:
        return
    context.usage.append(reply["usage"])
    summary = text_of(reply)
    if reply["stop_reason"] == "end_turn" and summary.strip():
        context.summarised(summary, cut)
