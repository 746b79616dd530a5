"""The two pictures of the README, drawn from what the course computes and has recorded: `make pictures`.

SVG, so that a picture is text that a test compares; it follows the light or dark theme of whoever looks at it.
"""

import html
from pathlib import Path

from . import recordings
from .faults import COLOURS, OUTCOMES, FaultTable, fault_table
from .versions import CHAPTERS, ROOT

FOLDER = ROOT / "classroom" / "pictures"
STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#1f2328}.quiet{fill:#59636e}.line{stroke:#59636e}"
    ".mark{stroke:#1f2328;fill:#1f2328}@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.quiet{fill:#9198a1}"
    ".line{stroke:#9198a1}.mark{stroke:#f0f6fc;fill:#f0f6fc}}"
)
ROW, LEFT, COLUMN = 24, 300, 84  # pixels


def draw() -> list[Path]:
    """Write both pictures; returns their files."""
    FOLDER.mkdir(exist_ok=True)
    for name, svg in {"faults.svg": faults(fault_table()), "example.svg": example()}.items():
        (FOLDER / name).write_text(svg, encoding="utf-8")
    return sorted(FOLDER.glob("*.svg"))


def faults(table: FaultTable) -> str:
    """The fault table as a picture: a row for each fault, a column for each version."""
    drawn = [_text(LEFT + COLUMN * (i + 0.5), 18, v, "middle") for i, v in enumerate(table.versions)]
    for y, (fault, outcomes) in enumerate(table.rows.items(), start=1):
        drawn.append(_text(LEFT - 12, ROW * y + 18, fault, "end"))
        for i, outcome in enumerate(outcomes):
            x, fill = LEFT + COLUMN * i, f"rgba({COLOURS[outcome]}, 0.35)"
            drawn.append(f'<rect x="{x + 1}" y="{ROW * y + 1}" width="{COLUMN - 2}" height="{ROW - 2}" fill="{fill}"/>')
            drawn.append(_text(x + COLUMN / 2, ROW * y + 18, outcome, "middle"))
    bottom = ROW * (len(table.rows) + 1) + 12
    for i, (outcome, what) in enumerate(OUTCOMES.items()):
        drawn.append(_text(12, bottom + ROW * i + 18, f"{outcome}: {what}", "start", "quiet"))
    title = f"{len(table.rows)} faults, played to {', '.join(table.versions)}"
    return _svg(title, LEFT + COLUMN * len(table.versions) + 12, bottom + ROW * len(OUTCOMES) + 12, drawn)


def example() -> str:
    """Chapter 4's experiment: how often three descriptions get the right first call, on two files."""
    drawn, y, left = [], 0, LEFT + 136
    for scene, said in {"readme": "README.md, which the example names", "notes": "notes.txt, held out"}.items():
        drawn.append(_text(12, y + 18, f"right first calls, the task is about {said}"))
        for description, (k, n, low, high) in _right_calls(scene).items():
            y += ROW
            at = [left + 300 * share for share in (low, k / n, high)]
            drawn.append(_text(left - 24, y + 18, description, "end"))
            drawn.append(f'<path class="line" stroke-width="3" d="M{at[0]:.1f} {y + 13}H{at[2]:.1f}"/>')
            drawn.append(f'<circle class="mark" cx="{at[1]:.1f}" cy="{y + 13}" r="5"/>')
            drawn.append(_text(left + 324, y + 18, f"{k} of {n}"))
        y += ROW
        for share in (0, 0.5, 1):
            drawn.append(_text(left + 300 * share, y + 18, f"{share:.0%}", "middle", "quiet"))
        y += ROW + 12
    return _svg("The same three descriptions, on two files, with 95% intervals", left + 400, y, drawn)


def _right_calls(scene: str) -> dict[str, tuple[int, int, float, float]]:
    """{description of read_file: (k, n, low, high)} of the recorded first replies of a scene of chapter 4."""
    from tiny_agent.measures import wilson  # not above: a notebook decides which version that is

    counts: dict[str, list[bool]] = {}
    for exchange in recordings.load(CHAPTERS / "04_prompts" / "recordings" / f"{scene}.json")["exchanges"]:
        request, block = exchange["request"], exchange["response"]["json"]["content"][0]
        named = block.get("name") == "read_file" and block["input"]["path"] in request["messages"][0]["content"].split()
        counts.setdefault(request["tools"][0]["description"], []).append(named)
    return {said: (sum(right), len(right), *wilson(sum(right), len(right))) for said, right in counts.items()}


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    marked = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{marked}>{html.escape(text)}</text>'


def _svg(title: str, width: int, height: int, drawn: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    return "\n".join([head, f"<title>{html.escape(title)}</title>", f"<style>{STYLE}</style>", *drawn, "</svg>", ""])
