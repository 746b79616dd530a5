"""`show(messages)`: a conversation as a person wants to see it; `bars(rows)`: numbers as bars; `intervals(records,
measure)`: rates with their intervals. HTML, or plain text.

Draws text, tool_use and tool_result blocks; any other block is shown as its JSON. Needs no widgets and no scripts.
"""

import html
import json

from .errors import ClassroomError

LONGEST = 2000  # characters of one block that are drawn; the raw JSON holds it all

# Half-transparent greys and inherited text colours, so that it reads in a light and in a dark theme; written into each
# element, since a notebook that is not trusted yet is shown without its style sheets.
EDGES = {"assistant": "#3b82f6", "call": "#8b5cf6", "result": "#10a37f", "error": "#e5484d"}
PRE = "margin: 0; padding: 0; background: none; color: inherit; white-space: pre-wrap; overflow-wrap: anywhere"
GRID = "1px solid rgba(128, 128, 128, 0.6)"


class Transcript:
    """What `show` returns: a notebook draws its HTML, a terminal its text."""

    def __init__(self, messages: list[dict], source: str):
        self.messages, self.source = messages, source
        self.turns = [turn for message in messages for turn in _turns(message)]

    def __repr__(self) -> str:
        lines = [f"({self.source})"] if self.source else []
        for _, who, text in self.turns:
            lines += [f"{who}", *("    " + line for line in _shortened(text).splitlines())]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        source = f"<div><small>{html.escape(self.source)}</small></div>" if self.source else ""
        raw = html.escape(_json(self.messages, indent=1))
        details = f'<details><summary>raw JSON</summary><pre style="{PRE}">{raw}</pre></details>'
        return f"<div>{source}{''.join(_drawn(*turn) for turn in self.turns)}{details}</div>"


def _drawn(kind: str, who: str, text: str) -> str:
    shade = "rgba(229, 72, 77, 0.18)" if kind == "error" else "rgba(128, 128, 128, 0.10)"
    edge = EDGES.get(kind, "#8a8a8a")
    return (
        f'<div style="margin: 4px 0; padding: 4px 10px; border-left: 4px solid {edge}; background-color: {shade}">'
        f'<b>{html.escape(who)}</b><pre style="{PRE}">{html.escape(_shortened(text))}</pre></div>'
    )


def show(messages: list[dict], source: str = "") -> Transcript:
    """Draw a list of messages; `source` is a line on where they come from, such as `client.source`."""
    return Transcript(messages, source)


def _turns(message: dict) -> list[tuple[str, str, str]]:
    """One message -> [(kind, who, text)], an entry for each content block."""
    if not isinstance(message, dict) or not isinstance(message.get("content"), str | list):
        return [("", "(not a message)", _json(message))]
    role, content = str(message.get("role")), message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [_turn(role, block) for block in blocks] or [(role, role, "(nothing)")]


def _json(value: object, indent: int | None = None) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, indent=indent, default=repr)
    except ValueError:  # a list that holds itself
        text = repr(value)
    return text.encode(errors="replace").decode()  # half a surrogate pair cannot be shown


def _turn(role: str, block: dict) -> tuple[str, str, str]:
    match block:
        case {"type": "text", "text": str(text)}:
            return role, role, text
        case {"type": "tool_use", "name": name, "input": input}:
            return "call", f"{role} · tool_use · {name}", _json(input)
        case {"type": "tool_result"}:
            kind, mark = ("error", "ERROR · ") if block.get("is_error") else ("result", "")
            return kind, f"{mark}{role} · tool_result", _result_text(block.get("content", ""))
        case {"type": kind}:
            return role, f"{role} · {kind}", _json(block)
    return role, role, _json(block)


def _result_text(content: object) -> str:
    if isinstance(content, list):
        texts = [block.get("text") if isinstance(block, dict) else None for block in content]
        return "\n".join(t if isinstance(t, str) else _json(b) for t, b in zip(texts, content, strict=True))
    return content if isinstance(content, str) else _json(content)


def _shortened(text: str) -> str:
    text = text.encode(errors="replace").decode()
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}\n… {len(text) - LONGEST:,} more characters in the raw JSON"


class Bars:
    """What `bars` returns: a row of stacked bars for each label."""

    def __init__(self, rows: list[tuple[str, dict[str, float]]]):
        self.rows = rows
        self.longest = max((sum(parts.values()) for _, parts in rows), default=0) or 1

    def __repr__(self) -> str:
        width = max((len(label) for label, _ in self.rows), default=0)
        return "\n".join(
            f"{label:>{width}} {'#' * round(40 * sum(parts.values()) / self.longest)} {_listed(parts)}"
            for label, parts in self.rows
        )

    def _repr_html_(self) -> str:
        colours = list(EDGES.values())
        drawn = ""
        for label, parts in self.rows:
            pieces = "".join(
                f'<div style="display: inline-block; height: 14px; background-color: {colours[i % len(colours)]}; '
                f'width: {round(60 * value / self.longest, 1)}%" title="{html.escape(name)}"></div>'
                for i, (name, value) in enumerate(parts.items())
            )
            label, numbers = html.escape(label), html.escape(_listed(parts))
            drawn += f"<div><small><b>{label}</b> {numbers}</small><br>{pieces}</div>"
        return f"<div>{drawn}</div>"


def _listed(parts: dict[str, float]) -> str:
    return ", ".join(f"{value:g} {name}" for name, value in parts.items())


def bars(rows: list[tuple[str, dict[str, float]]]) -> Bars:
    """Draw numbers as stacked bars, `[(label, {part: number})]`; all rows share one scale, beginning at zero."""
    return Bars(rows)


class Intervals:
    """What `intervals` returns: a row for each variant: how often the measure was seen, and the 95% Wilson interval."""

    def __init__(self, records: list[dict], measure: str):
        from tiny_agent.measures import (
            count,
            rates,
            share,
            wilson,
        )  # not above: a notebook decides which version that is

        if records and measure not in rates(records):
            raise ClassroomError(f"There is no measure {measure!r}. There are: {', '.join(rates(records))}.")
        self.measure, self.rows = measure, []
        for name in dict.fromkeys(record["variant"] for record in records):
            k, n = count(records, name, rates(records)[measure])
            self.rows.append((name, share(k, n), k / n if n else None, *wilson(k, n)))

    def __repr__(self) -> str:
        width = max((len(name) for name, *_ in self.rows), default=0)
        lines = [f"{name:>{width}} {_ruled(*numbers)} {said}" for name, said, *numbers in self.rows]
        return "\n".join([f"{self.measure}, with 95% intervals", *lines, f"{'':>{width}} 0%{'100%':>39}"])

    def _repr_html_(self) -> str:
        title = f"{html.escape(self.measure)}, with 95% intervals"
        cell = "color: inherit; background: none; text-align: left; padding: 2px 10px"
        track = f"width: 60%; padding: 0; border-left: {GRID}; border-right: {GRID}"
        rows = [
            (f"<b>{html.escape(name)}</b>", f'<div title="{said}">{_interval(*numbers)}</div>', said)
            for name, said, *numbers in self.rows
        ]
        drawn = "".join(
            f'<tr style="background: none"><td style="{cell}">{name}</td><td style="{cell}; {track}">{interval}</td>'
            f'<td style="{cell}">{said}</td></tr>'
            for name, interval, said in [*rows, ("", '<span style="float: right">100%</span>0%', "")]
        )
        table = f'<table style="width: 100%; color: inherit">{drawn}</table>'
        return f'<div role="figure" aria-label="{title}"><b>{title}</b>{table}</div>'


def _interval(rate: float | None, low: float, high: float) -> str:
    """A line from the lower end of the interval to the upper one, a point at the rate itself."""
    if rate is None:
        return ""
    line = f"left: {100 * low:.1f}%; width: {100 * (high - low):.1f}%; top: 9px; height: 3px"
    point = f"left: {100 * rate:.1f}%; width: 11px; height: 11px; top: 5px; margin-left: -6px; border-radius: 50%"
    marks = [f'<div style="position: absolute; {at}; background: currentColor"></div>' for at in (line, point)]
    return f'<div style="position: relative; height: 21px">{"".join(marks)}</div>'


def _ruled(rate: float | None, low: float, high: float) -> str:
    """The same in 41 characters."""
    if rate is None:
        return " " * 41
    marks = ["-" if round(40 * low) <= i <= round(40 * high) else " " for i in range(41)]
    marks[round(40 * rate)] = "o"
    return "".join(marks)


def intervals(records: list[dict], measure: str) -> Intervals:
    """Draw one measure of an experiment's records, by its name in `measures.rates(records)`: rates with intervals.

    Raises ClassroomError for a measure that does not exist.
    """
    return Intervals(records, measure)
