"""`chances(request)`: how likely each next step of the local model is, read off before anything is drawn.

Handles the three ids of the local model, with tools or without. Says which tool is called or whether an answer is
given, and nothing about the arguments of a call or the words of an answer.
"""

import html
import json
import re
from collections import Counter
from collections.abc import Callable

import httpx

from . import llama, local, smollm
from .errors import ClassroomError
from .providers import Checked
from .viewer import bars

ANSWER, INVENTED = "an answer", "an invented tool"  # no tool is named so: a name holds no space
LISTED, ALL = 2000, 49_152  # tokens that the model is asked to weigh; ALL is its vocabulary
DRAWN, UNCUT = 0.001, 0.05  # a beginning of a step that is less likely than both is not followed


class Chances:
    """What `chances` returns. Each dict has a step (a tool's name, ANSWER, INVENTED) for key; they sum to 1.

    `steps`: how often the step is drawn, over many seeds, by the settings of the model id: what runs are sampled from.
    A step at 0 is cut off and never drawn. `uncut`: the same at temperature 1 and with nothing cut, to within some
    hundredths: what the model leans to, also where it is cut off. `mass`: how likely the model, at temperature 1 and
    not held by the grammar, begins its reply like any of these steps.
    """

    def __init__(self, model: str, steps: dict[str, float], uncut: dict[str, float], mass: float):
        self.model, self.steps, self.uncut, self.mass = model, steps, uncut, mass
        self.bars = bars([(step, {"drawn": round(p, 3)}) for step, p in steps.items()])
        self.bars.longest = 1  # a bar of the full length is a certain step, so that two pictures can be compared
        cuts = ", ".join(f"{name} {value:g}" for name, value in smollm.CUTS.items())
        self.lines = [
            f"{model}: chances of the next step, drawn at temperature {smollm.IDS[model]['temperature']:g} ({cuts})",
            "at temperature 1 with nothing cut: " + ", ".join(f"{step} {p:.2f}" for step, p in uncut.items()),
            f"not held by the grammar, the model begins {100 * mass:.2f}% of its replies like one of these steps",
        ]

    def __repr__(self) -> str:
        return "\n".join([self.lines[0], repr(self.bars), *self.lines[1:]])

    def _repr_html_(self) -> str:
        head, *rest = (f"<div><small>{html.escape(line)}</small></div>" for line in self.lines)
        return f"<div>{head}{self.bars._repr_html_()}{''.join(rest)}</div>"


def chances(request: dict, client: httpx.Client | None = None) -> Chances:
    """A Messages request (max_tokens may be left out) -> the chances of the step that answers it.

    `client`: who is asked, a recording for example; without one it is the local model. Raises ClassroomError for a
    model that is not local, is not installed, or refuses the request.
    """
    model = request.get("model") if isinstance(request, dict) else None
    if not isinstance(model, str) or model not in smollm.IDS:
        ids = ", ".join(smollm.IDS)
        raise ClassroomError(f"chances are known for the local model only: {ids}. This request asks {model!r}.")
    if client is None:
        llama.weights()
        transport = Checked(httpx.WSGITransport(local.application), "The local model")
        client = httpx.Client(transport=transport, base_url="http://classroom")
    try:
        body = json.dumps({"max_tokens": 1, **request, "chances": True})
    except (ValueError, TypeError, RecursionError) as error:
        raise ClassroomError(f"chances: the request is no JSON ({error}).") from None
    reply = client.post("/v1/messages", content=body, headers={"content-type": "application/json"})
    return Chances(model, **reply.raise_for_status().json()["chances"])


def weighed(request: dict) -> dict:
    """`{"steps", "uncut", "mass"}` as in Chances, from the local model. Raises what `local.answer` raises.

    Nothing is drawn: the model is asked how likely each token is, along each beginning of a step, until only one step
    is left that begins so. The cuts and the temperature of the id are then applied as llama.cpp applies them.
    """
    asked = local.rendered(request)
    if not asked["grammar"]:
        return {"steps": {ANSWER: 1.0}, "uncut": {ANSWER: 1.0}, "mass": 1.0}
    names = list(dict.fromkeys(tool["name"] for tool in request["tools"]))
    free = smollm.IDS[request["model"]]["free_names"]
    steps, begun = ([*names, ANSWER, INVENTED], _begun_freely(names)) if free else ([*names, ANSWER], _begun(names))
    with llama.reading(asked["prompt"], prefix=asked["prefix"]) as next_tokens:
        drawn, uncut, mass = _follow(next_tokens, begun, asked["temperature"])
    return {"steps": _shares(drawn, steps), "uncut": _shares(uncut, steps), "mass": round(mass, 6)}


def _shares(weights: Counter, steps: list[str]) -> dict[str, float]:
    return {step: round(weights[step] / weights.total(), 4) for step in steps}


def _begun(names: list[str]) -> Callable[[str], set[str]]:
    """The beginning of a reply -> the steps that begin so, by the grammar of smollm.py."""
    heads = {**{name: f'{{"tool": "{name}", "input": {{' for name in names}, ANSWER: '{"answer": "'}
    return lambda text: {step for step, head in heads.items() if head.startswith(text)}


def _begun_freely(names: list[str]) -> Callable[[str], set[str]]:
    """The same for the id whose tool names are not held to the list."""

    opening, held = '{"tool": "', _begun([*names, INVENTED])

    def begun(text: str) -> set[str]:
        if not text.startswith(opening):
            return held(text)
        name, quote, after = text.removeprefix(opening).partition('"')
        if quote and re.fullmatch("[a-z][a-z_]{1,23}", name) and ', "input": {'.startswith(after):
            return {name if name in names else INVENTED}
        if not quote and re.fullmatch("([a-z][a-z_]{0,23})?", name):
            return {known for known in names if known.startswith(name)} | {INVENTED}
        return set()

    return begun


def _follow(next_tokens: Callable, begun: Callable, temperature: float) -> tuple[Counter, Counter, float]:
    """Follow each beginning of a step, token by token, until one step is left -> (drawn, uncut, mass)."""
    drawn, uncut, mass = Counter(), Counter(), 0.0
    paths = [([], "", 1.0, 1.0, 1.0)]
    while paths:
        ids, text, rate, share, probability = paths.pop()
        for (id, piece, p), one_rate, one_share in _next(next_tokens, begun, ids, text, temperature, rate):
            path = [*ids, id], text + piece, rate * one_rate, share * one_share, probability * p
            steps = begun(path[1])
            if len(steps) == 1:
                (step,) = steps
                drawn[step] += path[2]
                uncut[step] += path[3]
            if len(steps) > 1 and (path[2] >= DRAWN or path[3] >= UNCUT):
                paths.append(path)
            else:
                mass += path[4]
    return drawn, uncut, mass


def _next(
    next_tokens: Callable, begun: Callable, ids: list[int], text: str, temperature: float, rate: float
) -> list[tuple]:
    """The tokens that the grammar allows after `text` -> [(token, how often it is drawn, its share of them, uncut)].

    llama.cpp draws from all tokens first, and only where the drawn one breaks the grammar, again from the allowed ones.
    """
    for n in (LISTED, ALL) if rate >= DRAWN else (LISTED,):
        listed = next_tokens(ids, n)
        allowed = [token for token in listed if token[1] and begun(text + token[1])]
        if allowed and allowed[0][2] * smollm.CUTS["min_p"] >= listed[-1][2]:
            break  # an allowed token further down would be cut
    first, again = _rates(listed, temperature), _rates(allowed, temperature)
    missed = 1 - sum(first[id] for id, *_ in allowed)
    total = sum(p for *_, p in allowed)
    return [(token, first[token[0]] + missed * again[token[0]], token[2] / total) for token in allowed]


def _rates(tokens: list[tuple[int, str, float]], temperature: float) -> Counter:
    """Tokens, likeliest first -> {id: how often it is drawn}, in llama.cpp's order: the cuts, then the temperature."""
    top = tokens[: smollm.CUTS["top_k"]]
    enough, kept = smollm.CUTS["top_p"] * sum(p for *_, p in top), Counter()
    for id, _, p in top:
        if kept.total() >= enough or p < smollm.CUTS["min_p"] * top[0][2]:
            break
        kept[id] = p
    weights = {id: p ** (1 / temperature) for id, p in kept.items()}
    return Counter({id: weight / sum(weights.values()) for id, weight in weights.items()})
