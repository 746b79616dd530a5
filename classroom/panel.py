"""The widgets of a bench. The runs are made in a thread, so that the kernel stays free to answer Cancel.

Handles: every field, Run and Cancel, the chances while a description is edited, save and load; whatever goes wrong is
said in the panel. Does not handle: an experiment itself (bench.py).
"""

import html
import threading
import time
from collections.abc import Callable

import ipywidgets as widgets

from .backends import BACKENDS
from .bench import MODEL, Bench, first_requests
from .chances import chances
from .errors import ClassroomError

PAUSE = 0.3  # seconds without a keystroke, before the chances are asked for
FOLLOWING = "<small>asking for the chances …</small>"
WIDE, LABEL = widgets.Layout(width="auto"), {"description_width": "8em"}
HALF = widgets.Layout(flex="1 1 22em", width="auto")  # beside each other, or below in a narrow window


class Cancelled(Exception):
    """Raised into an experiment, to end it."""


class Panel:
    """The widgets of one bench: `box` is what is shown."""

    def __init__(self, bench: Bench):
        from tiny_agent.tools import TOOLS

        self.bench, self.agreed, self.cancelled = bench, None, threading.Event()
        self.waiting, self.timer, self.following = set(), None, threading.Lock()
        self.fields = {
            "task": widgets.Textarea(description="Task", rows=2, layout=WIDE, style=LABEL),
            "tool": widgets.Dropdown(description="Tool", options=[tool["name"] for tool in TOOLS], style=LABEL),
            "runs": widgets.BoundedIntText(description="Runs of each", min=1, max=10_000, style=LABEL),
            "backend": widgets.Dropdown(description="Backend", options=BACKENDS, style=LABEL),
        }
        self.descriptions, self.rows = [], widgets.VBox()
        self.run, self.cancel = self.button("Run", self.start, "primary"), self.button("Cancel", self.stop)
        self.add = self.button("Add a description", lambda: self.describe([*self.texts(), ""]))
        self.remove = self.button("Remove the last", lambda: self.describe(self.texts()[:-1]))
        self.bar, self.said = widgets.IntProgress(description="Progress", style=LABEL), widgets.HTML()
        self.measure = widgets.Dropdown(description="Measure", style=LABEL)
        self.results = widgets.HTML(layout=WIDE)
        self.path = widgets.Text(description="File", value="bench.json", style=LABEL)
        self.save = self.button("Save", lambda: self.file(bench.save, "Saved as"))
        self.load = self.button("Load", lambda: self.file(self.reload, "Loaded from"))
        self.cancel.disabled = True
        task, *others = self.fields.values()
        self.box = widgets.VBox(
            [
                task,
                wrapped(*others),
                self.rows,
                wrapped(self.add, self.remove),
                wrapped(self.run, self.cancel, self.bar),
                wrapped(self.path, self.save, self.load),
                self.said,
                self.measure,
                self.results,
            ]
        )
        self.fill()
        for widget in self.fields.values():
            widget.observe(lambda change: self.edited(), "value")
        self.fields["tool"].observe(lambda change: self.choose(f"{change.new} first"), "value")
        self.measure.observe(lambda change: self.draw(), "value")

    def button(self, text: str, pressed: Callable[[], None], style: str = "") -> widgets.Button:
        button = widgets.Button(description=text, button_style=style, layout=widgets.Layout(width="auto"))
        button.on_click(lambda _: pressed())
        return button

    def say(self, text: str) -> None:
        self.said.value = f'<div role="status" style="white-space: pre-wrap">{html.escape(text)}</div>'

    # --- the fields

    def fill(self) -> None:
        """Show what the bench holds."""
        fields = self.bench.fields  # each widget that is set makes other ones
        for name, widget in self.fields.items():
            widget.value = fields[name]
        self.describe(fields["descriptions"])
        self.choose(f"{fields['tool']} first")

    def describe(self, texts: list[str]) -> None:
        """A text area for each description, the chances beside it."""
        self.descriptions, self.waiting = [], set()
        for i, text in enumerate(texts):
            name = f"Description {chr(ord('A') + i)}"
            area = widgets.Textarea(text, description=name, rows=5, layout=HALF, style=LABEL)
            area.observe(lambda change, i=i: self.edited(i), "value")
            self.descriptions.append((area, widgets.HTML(layout=HALF)))
        self.rows.children = [wrapped(*pair) for pair in self.descriptions]
        self.remove.disabled = len(texts) == 1
        self.edited()

    def texts(self) -> list[str]:
        return [area.value for area, _ in self.descriptions]

    def edited(self, *which: int) -> None:
        """Take over the fields, and after a pause show the chances of what was edited; of all, where none is named."""
        fields = {name: widget.value for name, widget in self.fields.items()}
        self.bench.fields = {**fields, "descriptions": self.texts()}
        self.waiting.update(which or range(len(self.descriptions)))
        if self.timer:
            self.timer.cancel()
        for i in self.waiting:
            shown = self.descriptions[i][1]
            if fields["backend"] != "local":
                shown.value = small(f"The chances are known for the backend local, not for {fields['backend']}.")
            elif not shown.value.startswith(FOLLOWING):
                shown.value = FOLLOWING + shown.value
        if fields["backend"] == "local":
            self.timer = threading.Timer(PAUSE, self.follow)
            self.timer.daemon = True
            self.timer.start()

    def follow(self) -> None:
        """Show the chances of all that waits for them, but for what is edited meanwhile, which waits again."""
        with self.following:
            descriptions, waiting = self.descriptions, self.waiting  # others take their place when one is added
            for i in sorted(waiting):
                waiting.discard(i)
                try:
                    request = list(first_requests(self.bench.fields, MODEL).values())[i]
                    drawn = chances(request)._repr_html_()
                except Exception as error:  # no model, a text that is too long: said, and the bench goes on
                    drawn = small(f"No chances: {' '.join(str(error).split())}")
                if i not in waiting:
                    descriptions[i][1].value = f'<div style="line-height: 1.4">{drawn}</div>'

    # --- the runs

    def start(self) -> None:
        fields = self.bench.fields
        requests = len(fields["descriptions"]) * fields["runs"] * self.bench.at["turn_limit"]
        if fields["backend"] in ("anthropic", "openai") and self.agreed != fields:
            self.agreed = fields
            self.say(f"{fields['backend']} will be sent up to {requests} requests. Press Run again to send them.")
            return
        self.agreed = None
        self.cancelled.clear()
        self.busy(True)
        self.say("Beginning …")
        threading.Thread(target=self.work, daemon=True).start()

    def stop(self) -> None:
        self.cancel.disabled = True
        self.say("Cancelling: the run that has begun is finished first …")
        self.cancelled.set()  # last: from here on the other thread speaks

    def busy(self, busy: bool) -> None:
        self.run.disabled = self.load.disabled = busy
        self.cancel.disabled = not busy

    def work(self) -> None:
        """Make the runs, in a thread of its own."""
        began, before = time.monotonic(), []

        def progress(finished: int, of: int) -> None:
            before.append(finished)
            self.bar.max, self.bar.value = of, finished
            if self.cancelled.is_set() and finished < of:
                raise Cancelled
            made = finished - before[0]
            left = f", about {(time.monotonic() - began) / made * (of - finished):.0f} s left" if made else ""
            self.say(f"{finished} of {of} runs{left}")

        try:
            self.bench.run(progress)
            said = f"{len(self.bench.records)} runs, in {time.monotonic() - began:.0f} s."
        except Cancelled:
            said = f"Cancelled. {len(self.bench.records)} runs were finished, and are kept."
        except Exception as error:  # shown where it can be put right; the bench stays usable
            said = in_words(error)
        try:
            self.choose(self.measure.value)
            self.say(said)
        except Exception as error:
            self.say(in_words(error))
        finally:
            self.busy(False)

    # --- the results

    def choose(self, chosen: str) -> None:
        """Offer the measures that there are now, and draw the chosen one."""
        from tiny_agent.measures import rates

        options = list(rates(self.bench.records) if self.bench.records else [chosen])
        self.measure.options = options
        self.measure.value = chosen if chosen in options else options[0]
        self.draw()

    def draw(self) -> None:
        self.results.value = self.bench.results(self.measure.value)._repr_html_() if self.bench.records else ""

    def reload(self, path: str) -> None:
        self.bench.load(path)
        self.fill()

    def file(self, act: Callable[[str], None], said: str) -> None:
        try:
            act(self.path.value)
            self.say(f"{said} {self.path.value}.")
        except Exception as error:
            self.say(in_words(error))


def small(text: str) -> str:
    return f"<small>{html.escape(text)}</small>"


def in_words(error: Exception) -> str:
    kind = type(error).__name__
    return str(error) if isinstance(error, ClassroomError) or kind == "ExperimentError" else f"{kind}: {error}"


def wrapped(*children: widgets.Widget) -> widgets.HBox:
    return widgets.HBox(children, layout=widgets.Layout(flex_flow="row wrap"))
