"""`explain(request)`: what the model saw, layer by layer: system prompt, each tool, each message, and their tokens.

For the local model the layers are the very text that it is given, counted by its own tokenizer; for any other model
they are what the request holds, and the counts are estimates that say so. Sends nothing to anyone.
"""

import html
from bisect import bisect_right
from collections import Counter
from itertools import accumulate

from . import llama, local, smollm
from .errors import ClassroomError
from .viewer import PRE, _json, _turns

SYSTEM, DEMONSTRATIONS = "system prompt", "demonstrations"
INSTRUCTIONS, TEMPLATE = "the classroom's instructions", "chat template"
CHARACTERS = 4  # of a token, where it can only be estimated
COUNTED = "counted by the model's own tokenizer"
GUESSED = f"an estimate: characters / {CHARACTERS}, of what the request holds and not of what the provider adds."
CELL = "color: inherit; text-align: left; vertical-align: top; background: none; padding: 2px 10px"
SHADE = "rgba(128, 128, 128, 0.10)"


class Explained:
    """What `explain` returns for one request.

    `layers` is a list of {"name", "text", "tokens", "share"} whose tokens add up to `tokens`; `exact` says whether they
    are counted (a token counts for the layer it begins in) or estimated, `note` what else is to be known. `prompt` is
    the very text that the model was given, or None where that is not known.
    """

    def __init__(self, model: str, layers: list[dict], exact: bool, note: str, prompt: str | None):
        self.model, self.layers, self.exact, self.note, self.prompt = model, layers, exact, note, prompt
        self.tokens = sum(layer["tokens"] for layer in layers)

    @property
    def title(self) -> str:
        return f"{self.model}: {self.said(self.tokens)} tokens, {self.note}"

    def said(self, tokens: int) -> str:
        return f"{tokens:,}" if self.exact else f"~{tokens:,}"

    def size(self, layer: dict) -> str:
        return f"{self.said(layer['tokens'])} ({layer['share']:.0%})"

    def __repr__(self) -> str:
        width = max((len(layer["name"]) for layer in self.layers), default=0)
        rows = [f"{x['name']:<{width}}  {self.size(x):>12}  {'#' * round(40 * x['share'])}" for x in self.layers]
        return "\n".join([self.title, *(row.rstrip() for row in rows)])

    def _repr_html_(self) -> str:
        drawn = "".join(
            f'<div style="margin: 4px 0; padding: 2px 10px; background-color: {SHADE}">{self.drawn(layer)}</div>'
            for layer in self.layers
        )
        return f"<div><div><small>{html.escape(self.title)}</small></div>{drawn}{self.prompt_drawn()}</div>"

    def drawn(self, layer: dict) -> str:
        """One layer: its name and size, a bar of its share, its text folded away."""
        bar = f'<div style="height: 6px; background-color: #3b82f6; width: {round(100 * layer["share"], 1)}%"></div>'
        head = f"<b>{html.escape(layer['name'])}</b> <small>{self.size(layer)}</small>"
        return _folded(head, layer["text"]) + bar

    def prompt_drawn(self) -> str:
        return _folded("the very text that the model was given", self.prompt) if self.prompt is not None else ""


class Compared:
    """What `explain` returns for two requests: `one` and `other`, as Explained, and `rows`.

    A row is (mark, layer of one or None, layer of the other or None); the mark is made of "changed", "added", "removed"
    and "moved", for a layer that stands in another order, or is empty.
    """

    def __init__(self, one: Explained, other: Explained):
        self.one, self.other, self.rows = one, other, _compared(one.layers, other.layers)

    def __repr__(self) -> str:
        names = [(a or b)["name"] for _, a, b in self.rows]
        width = max((len(name) for name in names), default=0)
        lines = [
            f"{name:<{width}}  {self.one.size(a) if a else '-':>12}  {self.other.size(b) if b else '-':>12}  {mark}"
            for name, (mark, a, b) in zip(names, self.rows, strict=True)
        ]
        return "\n".join([f"one    {self.one.title}", f"other  {self.other.title}", *(line.rstrip() for line in lines)])

    def _repr_html_(self) -> str:
        sides = (self.one, self.other)
        rows = "".join(
            f'<tr style="background: {SHADE if mark else "none"}"><td style="{CELL}"><b>{mark}</b></td>'
            + "".join(
                f'<td style="{CELL}">{side.drawn(layer) if layer else "-"}</td>'
                for side, layer in zip(sides, layers, strict=True)
            )
            + "</tr>"
            for mark, *layers in self.rows
        )
        heads = "".join(
            f'<td style="{CELL}; width: 41%"><small>{html.escape(side.title)}</small></td>' for side in sides
        )
        feet = "".join(f'<td style="{CELL}">{side.prompt_drawn()}</td>' for side in sides)
        return (
            f'<table style="width: 100%; color: inherit"><tr style="background: none"><td style="{CELL}"></td>'
            f'{heads}</tr>{rows}<tr style="background: none"><td style="{CELL}"></td>{feet}</tr></table>'
        )


def explain(request: dict, other: dict | None = None) -> Explained | Compared:
    """A Messages request -> what the model is shown of it, in layers with their tokens; with `other`, both compared.

    Raises nothing, whatever JSON the request is: what cannot be read as a request is shown as it is.
    """
    return _explained(request) if other is None else Compared(_explained(request), _explained(other))


def _explained(request: object) -> Explained:
    model = request.get("model") if isinstance(request, dict) else None
    if not (isinstance(model, str) and model in smollm.IDS):
        model = _clean(model) if isinstance(model, str) else "no model"
        return Explained(model, _guessed(_listed(request)), False, GUESSED, None)
    try:
        prompt = local.rendered({"max_tokens": 1, **request})["prompt"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        note = f"{GUESSED} The local model refuses this request: {_clean(str(error))}"
        return Explained(model, _guessed(_listed(request)), False, note, None)
    pieces = _rendered(request)
    try:
        layers, exact, note = _counted(pieces), True, COUNTED
    except ClassroomError as error:
        layers, exact, note = _guessed(pieces), False, f"an estimate: characters / {CHARACTERS}. {error}"
    except UnicodeError:
        layers, exact, note = _guessed(pieces), False, f"{GUESSED} The local model refuses half a surrogate pair."
    if request.get("tools"):
        note += "; the grammar that holds a call to its schema takes none" if exact else ""
    if exact and sum(layer["tokens"] for layer in layers) >= llama.CONTEXT:
        note += f". Too long: the local model refuses {llama.CONTEXT:,} tokens and more."
    return Explained(model, layers, exact, note, _clean(prompt))


def _rendered(request: dict) -> list[tuple[str, str]]:
    """A request to the local model -> [(layer, text)]; the texts, joined, are the prompt of smollm.render."""
    demonstrations = smollm.IDS[request["model"]]["demonstrations"]
    system, tools, messages = smollm._text(request.get("system", "")), request.get("tools") or [], request["messages"]
    if not tools:
        pieces = _said("system", [(SYSTEM, system or smollm.CHAT_SYSTEM)])
        for i, message in enumerate(messages, 1):
            texts = [smollm._text([block]) for block in smollm._blocks(message["content"])]
            between = [piece for named in zip(_names(i, message), texts, strict=True) for piece in (named, ("", "\n"))]
            pieces += _said(message["role"], between[:-1])
        return [(name or TEMPLATE, text) for name, text in [*pieces, (TEMPLATE, "<|im_start|>assistant\n")]]

    system, line = system or smollm.SYSTEM, smollm._tool_as_json if demonstrations else smollm._tool_as_signature
    lines = [(_tool_name(tool), line(tool) + "\n") for tool in tools]
    whole = smollm._system_text(system, tools, as_json=demonstrations)
    before = whole.removeprefix(system).removesuffix("".join(text for _, text in lines) + smollm.SAY)
    pieces = _said("system", [(SYSTEM, system), (INSTRUCTIONS, before), *lines, (INSTRUCTIONS, smollm.SAY)])
    for task, steps in smollm.DEMONSTRATIONS if demonstrations else []:
        for i in range(0, len(steps), 2):
            asked = [("user", smollm._task_text(task, steps[:i])), ("assistant", steps[i])]
            pieces.append((DEMONSTRATIONS, smollm._chatml(asked)))
    names = [name for i, message in enumerate(messages, 1) for name in _names(i, message)]
    task, *steps = zip(names, smollm._steps(messages), strict=True)
    shown = [(INSTRUCTIONS, "Task: "), task, (INSTRUCTIONS, "\nSteps so far:\n")]
    for i, step in enumerate(steps, 1):
        shown += [(INSTRUCTIONS, f"{i}. "), step, (INSTRUCTIONS, "\n")]
    shown.append((INSTRUCTIONS, smollm.ASK if steps else f"(none yet)\n{smollm.ASK}"))
    return [*pieces, *_said("user", shown), (TEMPLATE, "<|im_start|>assistant\n")]


def _said(role: str, pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """One message in the chat template."""
    return [(TEMPLATE, f"<|im_start|>{role}\n"), *pieces, (TEMPLATE, "<|im_end|>\n")]


def _names(i: int, message: object) -> list[str]:
    """The names of a message's blocks, such as `2. assistant · tool_use · read_file`."""
    whos = [_clean(who) for _, who, _ in _turns(message)]
    return [f"{i}. {who}" if len(whos) == 1 else f"{i}.{j} {who}" for j, who in enumerate(whos, 1)]


def _tool_name(tool: object) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    return f"tool {_clean(name)}" if isinstance(name, str) else "tool without a name"


def _listed(request: object) -> list[tuple[str, str]]:
    """Any request -> [(layer, text)] of what it holds, a text as it is and all else as JSON."""
    if not isinstance(request, dict):
        return [("not a request", _json(request))]
    pieces = []
    if "system" in request:
        pieces.append((SYSTEM, _plain(request["system"])))
    for tool in request["tools"] if isinstance(request.get("tools"), list) else []:
        pieces.append((_tool_name(tool), _json(tool)))
    for i, message in enumerate(request["messages"] if isinstance(request.get("messages"), list) else [], 1):
        pieces += zip(_names(i, message), (_clean(text) for _, _, text in _turns(message)), strict=True)
    odd = [key for key in ("tools", "messages") if request.get(key) and not isinstance(request[key], list)]
    return pieces + [(key, _json(request[key])) for key in odd]


def _plain(system: object) -> str:
    """A system prompt, given as text or as text blocks."""
    return "\n".join(_clean(text) for _, _, text in _turns({"role": "system", "content": system}))


def _clean(text: str) -> str:
    return text.encode(errors="replace").decode()  # half a surrogate pair cannot be shown


def _counted(pieces: list[tuple[str, str]]) -> list[dict]:
    """The pieces of a prompt -> its layers, each with the tokens that begin in it."""
    tokens = llama.tokens("".join(text for _, text in pieces))
    ends = list(accumulate(len(text.encode()) for _, text in pieces))
    starts = accumulate((len(token) for token in tokens[:-1]), initial=0)
    return _layers(pieces, Counter(pieces[bisect_right(ends, start)][0] for start in starts))


def _guessed(pieces: list[tuple[str, str]]) -> list[dict]:
    characters = Counter()
    for name, text in pieces:
        characters[name] += len(text)
    return _layers(pieces, Counter({name: -(-n // CHARACTERS) for name, n in characters.items()}))


def _layers(pieces: list[tuple[str, str]], tokens: Counter) -> list[dict]:
    """Pieces of one name are one layer, where the first of them stands; the frame around the others comes last."""
    texts, total = {}, tokens.total() or 1
    for name, text in sorted(pieces, key=lambda piece: _frames(piece[0])):
        texts[name] = texts.get(name, "") + _clean(text)
    return [{"name": n, "text": t, "tokens": tokens[n], "share": tokens[n] / total} for n, t in texts.items()]


def _compared(one: list[dict], other: list[dict]) -> list[tuple[str, dict | None, dict | None]]:
    before, after = ({layer["name"]: layer for layer in layers} for layers in (one, other))
    old, new = [name for name in before if name in after], [name for name in after if name in before]
    moved = {name for a, b in zip(old, new, strict=True) if a != b for name in (a, b)}
    rows = []
    for name in sorted({**before, **after}, key=_frames):
        a, b = before.get(name), after.get(name)
        mark = "added" if a is None else "removed" if b is None else "changed" if a["text"] != b["text"] else ""
        rows.append((", ".join(filter(None, [mark, "moved" if name in moved else ""])), a, b))
    return rows


def _frames(name: str) -> bool:
    """What stands around the other layers and is shown after them."""
    return name in (INSTRUCTIONS, TEMPLATE)


def _folded(head: str, text: str) -> str:
    """`text` behind a line that opens it; `head` is HTML."""
    return f'<details><summary>{head}</summary><pre style="{PRE}">{html.escape(text)}</pre></details>'
