"""The bench: an experiment by buttons or without; what goes wrong is said, and what was finished is kept."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import nbformat
import pytest
from playwright.sync_api import expect, sync_playwright

import classroom
from classroom import ClassroomError, llama
from classroom import panel as panel_module
from classroom.backends import Client
from classroom.bench import first_requests
from classroom.versions import ROOT

BROWSER_REQUIRED = os.environ.get("TINY_AGENT_BROWSER") == "required"  # read here: no test sees the variable itself
USAGE = {"input_tokens": 10, "output_tokens": 2}


def reading(path="notes.txt", before=lambda: None, seen=None):
    """`connect` for a model that reads one file, and the requests that it was sent in `seen`."""

    def connect(run):
        def answer(request):
            before()
            if seen is not None:
                seen.append(json.loads(request.content))
            call = {"type": "tool_use", "id": "t", "name": "read_file", "input": {"path": path}}
            return httpx.Response(200, json={"content": [call], "stop_reason": "tool_use", "usage": USAGE})

        return Client(httpx.MockTransport(answer), model="m", source="a <i>script</i>", run=run)

    return connect


def bench(tmp_path, **more):
    return classroom.bench(**{"task": "Read notes.txt.", "connect": reading(), "workspace": tmp_path, **more})


def until(true, seconds=20):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.01)


def shown(made):
    """The panel of a bench, as a notebook asks for it."""
    made._repr_mimebundle_()
    return made.panel


def said(panel):
    return re.sub("<[^>]+>", "", panel.said.value)


def finish(panel):
    """Press Run, and wait for the end."""
    panel.run.click()
    until(lambda: not panel.run.disabled)


# --- without widgets


def test_importing_the_classroom_needs_no_widgets_and_picks_no_version():
    program = "import sys, classroom; print({'ipywidgets', 'tiny_agent', 'scipy'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True) == "set()\n"


def test_a_run_without_widgets_gives_the_source_the_table_and_the_verdict(tmp_path):
    text = repr(bench(tmp_path, runs=3).run())
    assert text.startswith("a <i>script</i>\n\n")
    assert re.search(r"^first call on the task's path +3 of 3 \(44% to 100%\) +3 of 3", text, re.M)
    assert text.endswith("A 3 of 3, B 3 of 3: p = 1, no difference shown")


def test_each_description_is_a_variant_and_what_the_model_saw_is_what_was_sent(tmp_path):
    seen = []
    made = bench(tmp_path, descriptions=["One", "Two", "Three"], runs=1, connect=reading(seen=seen))
    results = made.run()
    assert [request["tools"][0]["description"] for request in seen] == ["One", "Two", "Three"]
    assert list(results.requests.items()) == list(zip("ABC", seen, strict=True))
    assert results._repr_html_().count("what the model saw") == 3


def test_one_description_is_counted_and_not_tested(tmp_path):
    assert "p =" not in repr(bench(tmp_path, descriptions=["One"], runs=1).run())


def test_before_a_run_the_bench_says_what_to_do(tmp_path):
    assert repr(bench(tmp_path)) == (
        "A bench for 2 descriptions of read_file. Nothing was run yet: bench.run() does, without widgets."
    )
    assert repr(bench(tmp_path).results()) == bench(tmp_path).results()._repr_html_() == "No run was finished."


def test_where_there_are_no_widgets_a_bench_is_shown_as_its_text(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "classroom.panel")
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    made = bench(tmp_path, runs=1)
    made.run()
    assert made._repr_mimebundle_() == {"text/plain": repr(made.results())}


def test_text_of_a_model_or_a_person_is_no_markup(tmp_path):
    made = bench(tmp_path, descriptions=["<script>alert(1)</script>", "b"], task="<b>Go</b>", runs=1)
    made.run()
    page = made.results()._repr_html_()
    assert "a &lt;i&gt;script" in page
    assert "<script" not in page
    assert "<b>Go" not in page


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"tool": "rm"}, "There is no tool 'rm'. There are: read_file, write_file, list_dir."),
        ({"backend": "cloud"}, "There is no backend 'cloud'."),
        ({"descriptions": []}, "A bench needs one description or more, each a text."),
        ({"descriptions": [1]}, "A bench needs one description or more, each a text."),
        ({"runs": 0}, "A variant is run once or more."),
        ({"runs": True}, "A bench has the fields task, tool, runs, backend, descriptions; these are"),
        ({"scene": "nowhere"}, "A scene is named like"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_for_is_said_at_once(asked, words):
    with pytest.raises(ClassroomError, match=re.escape(words)):
        classroom.bench(**asked)


def test_a_description_that_was_not_recorded_is_named(tmp_path):
    made = classroom.bench("03_tools/readme", descriptions=["Read it!"])
    with pytest.raises(ClassroomError, match=r"Read it!"):
        made.run()


def test_a_bench_that_is_running_is_not_run_a_second_time(tmp_path):
    made = bench(tmp_path, runs=1)

    def again():
        with pytest.raises(ClassroomError, match="running already"):
            made.run()

    made.connect = reading(before=again)
    assert len(made.run().records) == 2


# --- the panel


def test_a_bench_is_shown_as_widgets_with_a_text_beside_them(tmp_path):
    made = bench(tmp_path)
    bundle = made._repr_mimebundle_()
    assert bundle["text/plain"] == repr(made)
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == made.panel.box.model_id
    assert made._repr_mimebundle_() == bundle, "shown twice, it is the same bench"


def test_run_shows_the_results_and_the_measures_to_choose_from(tmp_path):
    made = bench(tmp_path, runs=2)
    panel = shown(made)
    finish(panel)
    assert re.fullmatch(r"4 runs, in \d+ s\.", said(panel))
    assert (panel.bar.value, panel.bar.max) == (4, 4)
    assert panel.measure.value == "read_file first"
    assert panel.results.value == made.results()._repr_html_()
    panel.measure.value = "some call failed"
    assert panel.results.value == made.results("some call failed")._repr_html_()


def test_what_is_edited_is_what_is_run(tmp_path):
    seen = []
    panel = shown(bench(tmp_path, runs=5, connect=reading(seen=seen)))
    panel.fields["task"].value, panel.fields["tool"].value, panel.fields["runs"].value = "Go.", "list_dir", 1
    panel.remove.click()
    assert panel.remove.disabled
    panel.add.click()
    panel.descriptions[0][0].value = "List it"
    finish(panel)
    assert [request["messages"][0]["content"] for request in seen] == ["Go.", "Go."]
    assert [request["tools"][2]["description"] for request in seen] == ["List it", ""]
    assert panel.measure.value == "list_dir first"


def test_what_is_edited_during_a_run_is_not_run(tmp_path):
    seen, gate = [], threading.Semaphore(0)
    panel = shown(bench(tmp_path, runs=1, connect=reading(before=gate.acquire, seen=seen)))
    panel.run.click()
    panel.fields["task"].value = "Later."
    gate.release(2)
    until(lambda: not panel.run.disabled)
    assert [request["messages"][0]["content"] for request in seen] == ["Read notes.txt."] * 2


def test_cancel_keeps_what_was_finished_and_the_bench_can_run_again(tmp_path):
    gate = threading.Semaphore(0)
    made = bench(tmp_path, runs=5, connect=reading(before=gate.acquire))
    panel = shown(made)
    panel.run.click()
    assert panel.run.disabled
    gate.release(3)
    until(lambda: said(panel).startswith("3 of 10 runs, about "))
    panel.cancel.click()
    assert said(panel) == "Cancelling: the run that has begun is finished first …"
    gate.release(1)
    until(lambda: not panel.run.disabled)
    assert said(panel) == "Cancelled. 4 runs were finished, and are kept."
    assert len(made.records) == 4
    assert "2 of 2" in panel.results.value
    gate.release(10)
    finish(panel)
    assert len(made.records) == 10


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ClassroomError("Not recorded: <b>."), "Not recorded: &lt;b&gt;."),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
    ],
    ids=repr,
)
def test_an_error_in_a_run_is_said_in_the_panel_and_what_was_finished_is_shown(tmp_path, error, words):
    times = iter(range(10))

    def fail():
        if next(times) == 1:
            raise error

    made = bench(tmp_path, runs=1, connect=reading(before=fail))
    panel = shown(made)
    finish(panel)
    assert said(panel) == words
    assert "1 of 1" in panel.results.value
    finish(panel)
    assert len(made.records) == 2


def test_requests_that_failed_are_counted_as_not_run(tmp_path):
    def fail():
        raise httpx.ConnectError("no route")

    panel = shown(bench(tmp_path, runs=2, connect=reading(before=fail)))
    finish(panel)
    assert "not run, 4 times: no route" in panel.results.value


def test_a_provider_is_asked_after_a_second_press_only(tmp_path):
    seen = []
    panel = shown(bench(tmp_path, runs=2, backend="anthropic", turn_limit=3, connect=reading(seen=seen)))
    panel.run.click()
    assert said(panel) == "anthropic will be sent up to 12 requests. Press Run again to send them."
    panel.fields["runs"].value = 1
    panel.run.click()
    assert said(panel) == "anthropic will be sent up to 6 requests. Press Run again to send them."
    assert not seen
    finish(panel)
    assert seen


# --- save and load


def test_what_is_saved_is_loaded_with_its_results(tmp_path):
    made = bench(tmp_path, descriptions=["One", "Two"], runs=2)
    panel = shown(made)
    finish(panel)
    panel.path.value = str(tmp_path / "kept.json")
    panel.save.click()
    assert said(panel) == f"Saved as {tmp_path / 'kept.json'}."
    other = shown(bench(tmp_path))
    other.path.value = panel.path.value
    other.load.click()
    assert said(other) == f"Loaded from {tmp_path / 'kept.json'}."
    assert (other.bench.fields, other.texts()) == (made.fields, ["One", "Two"])
    assert other.results.value == panel.results.value
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]


def test_a_file_is_saved_whole_or_left_as_it_was(tmp_path, monkeypatch):
    file, made = tmp_path / "kept.json", bench(tmp_path)
    file.write_text("mine")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ClassroomError, match=r"kept\.json was not saved: No space left on device\."):
        made.save(file)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("kept.json", "mine")]
    with pytest.raises(ClassroomError, match="was not saved: No such file or directory"):
        made.save(tmp_path / "no" / "kept.json")
    with pytest.raises(ClassroomError, match="was not saved: Not a directory"):
        made.save(file / "kept.json")


def test_an_older_version_that_cannot_experiment_is_refused_in_words(monkeypatch):
    monkeypatch.setitem(sys.modules, "tiny_agent.experiment", None)
    with pytest.raises(ClassroomError, match=r"The bench needs tiny_agent 0\.4 or newer\."):
        classroom.bench()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda saved: "{",
        lambda saved: "[]",
        lambda saved: b"\xff",
        lambda saved: saved | {"fields": saved["fields"] | {"runs": "many"}},
        lambda saved: saved | {"fields": saved["fields"] | {"tool": "rm"}},
        lambda saved: saved | {"records": [{"variant": "A"}]},
        lambda saved: saved | {"records": 5},
        lambda saved: saved | {"requests": []},
    ],
)
def test_a_broken_file_is_one_clear_line_and_changes_nothing(tmp_path, spoil):
    file, made = tmp_path / "kept.json", bench(tmp_path, runs=1)
    made.run()
    made.save(file)
    broken = spoil(json.loads(file.read_text()))
    file.write_bytes(
        broken if isinstance(broken, bytes) else (broken if isinstance(broken, str) else json.dumps(broken)).encode()
    )
    other = bench(tmp_path)
    panel, before = shown(other), (other.fields, other.records, other.requests)
    panel.path.value = str(file)
    panel.load.click()
    assert "kept.json is no saved bench (" in said(panel)
    assert said(panel).endswith("Nothing was loaded.")
    assert "\n" not in said(panel)
    assert (other.fields, other.records, other.requests) == before


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ClassroomError, match=r"none\.json cannot be read: No such file or directory\."):
        bench(tmp_path).load(tmp_path / "none.json")


# --- the chances


def test_for_another_backend_there_are_no_chances_and_it_says_so(tmp_path):
    panel = shown(bench(tmp_path))
    texts = [chances.value for _, chances in panel.descriptions]
    assert texts == ["<small>The chances are known for the backend local, not for recorded.</small>"] * 2


def test_without_the_local_model_a_line_says_so_and_the_bench_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(llama.importlib.util, "find_spec", lambda name: None)
    panel = shown(bench(tmp_path, backend="local", runs=1))
    until(lambda: all("No chances: " in chances.value for _, chances in panel.descriptions))
    assert "make live" in panel.descriptions[0][1].value
    finish(panel)
    assert said(panel).startswith("2 runs")


def test_the_chances_follow_the_last_words_of_a_burst_and_only_what_was_edited(tmp_path, monkeypatch):
    asked, gate = [], threading.Event()

    def chances(request):
        asked.append(request["tools"][0]["description"])
        gate.wait()
        return classroom.bars([(asked[-1], {"x": 1})])

    monkeypatch.setattr(panel_module, "chances", chances)
    panel = shown(bench(tmp_path, backend="local", descriptions=["One", "Two"]))
    until(lambda: asked)
    for i in range(1, 4):
        panel.descriptions[0][0].value = "Three"[: i + 2]
    gate.set()
    until(lambda: "<b>Three</b>" in panel.descriptions[0][1].value)
    assert asked == ["One", "Two", "Three"], "one question for three keystrokes, and none anew for what was not edited"
    assert "<b>Two</b>" in panel.descriptions[1][1].value


def test_the_local_model_is_asked_what_a_run_would_ask_it(tmp_path):
    made = bench(tmp_path, backend="local", descriptions=["Read a file"])
    panel = shown(made)
    until(lambda: "chances of the next step" in panel.descriptions[0][1].value, seconds=120)
    (request,) = first_requests(made.fields, "smollm2-135m-bare").values()
    assert classroom.chances(request)._repr_html_() in panel.descriptions[0][1].value


# --- the plot


def records(*seen):
    call = {"turn": 1, "name": "read_file", "input": {"path": "a"}, "error": None}
    at = {"task": "t", "tools": ["read_file"], "stopped": "end_turn"}
    return [{"variant": name, "calls": [call] if yes else [], **at} for name, yes in seen]


def test_rates_are_drawn_with_their_intervals_and_read_as_text():
    drawn = classroom.intervals(
        records(("A", True), ("A", True), ("long <b>", False), ("long <b>", True)), "read_file first"
    )
    assert repr(drawn).splitlines() == [
        "read_file first, with 95% intervals",
        "       A               --------------------------o 2 of 2 (34% to 100%)",
        "long <b>     ----------------o----------------     1 of 2 (9% to 91%)",
        "         0%                                   100%",
    ]
    page = drawn._repr_html_()
    assert re.findall(r"left: ([\d.]+)%", page) == ["34.2", "100.0", "9.5", "50.0"]
    assert "<b>long &lt;b&gt;</b>" in page
    assert "currentColor" in page
    assert not re.search("#[0-9a-f]{3}", page), "no colour of its own"


def test_a_variant_of_which_nothing_can_be_asked_has_no_interval():
    drawn = classroom.intervals(records(("A", True)), "another call after a failed one")
    assert repr(drawn).splitlines()[1] == f"A {' ' * 41} -"
    assert "currentColor" not in drawn._repr_html_()


def test_a_measure_that_does_not_exist_is_refused_in_words():
    with pytest.raises(
        ClassroomError, match=r"There is no measure 'luck'\. There are: read_file first, no call at all"
    ):
        classroom.intervals(records(("A", True)), "luck")
    assert classroom.intervals([], "luck").rows == []


# --- in a browser

CELL = """
import time, json, httpx, classroom
from classroom.backends import Client

def connect(run):
    def answer(request):
        time.sleep(0.6)
        words = json.loads(request.content)["tools"][0]["description"]
        call = {"type": "tool_use", "id": "t", "name": "read_file", "input": {"path": f"{words}<u>"}}
        return httpx.Response(200, json={"content": [call], "stop_reason": "tool_use", "usage": {"output_tokens": 1}})
    return Client(httpx.MockTransport(answer), model="smollm2-135m-bare", source="a slow script", run=run)

classroom.bench(backend="local", connect=connect, workspace="ws", task="Read blue<u> now.", descriptions=["blu", "red"])
"""


@pytest.fixture
def lab(tmp_path):
    """JupyterLab on a free port, with one notebook, in a browser: the page. Nobody's own settings are touched."""
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "notes.txt").write_text("x")
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in (CELL, "print(6 * 7, 'free')")]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), tmp_path / "n.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    homes = ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    env = {**os.environ, **{name: str(tmp_path / name) for name in homes}, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", f"--port={port}"]
    line += ["--ServerApp.port_retries=0", "--IdentityProvider.token=t", "--LabApp.expose_app_in_browser=True"]
    with (tmp_path / "lab.log").open("w") as log, sync_playwright() as playwright:
        server = subprocess.Popen(line, cwd=tmp_path, env=env, stdout=log, stderr=log)
        try:
            browser = playwright.chromium.launch(executable_path=chromium(playwright), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1300, "height": 1500})
            until(lambda: answers(port) or server.poll() is not None, seconds=60)
            page.goto(f"http://127.0.0.1:{port}/lab/tree/n.ipynb?token=t")
            yield page
            browser.close()
        finally:
            server.terminate()
            server.wait()


def chromium(playwright):
    """The path of a Chromium: the system's, or the one that `playwright install chromium` has brought."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = [*filter(None, map(shutil.which, names)), playwright.chromium.executable_path]
    if not Path(found[0]).exists():
        none = "No Chromium was found: apt-get install chromium, or python -m playwright install chromium."
        pytest.fail(none) if BROWSER_REQUIRED else pytest.skip(none)
    return found[0]


def answers(port):
    with contextlib.suppress(OSError):
        return socket.create_connection(("127.0.0.1", port), timeout=1).close() is None


def brightness(page, script):
    """0 (black) to 1 (white), of a CSS colour that a script gives."""
    return sum(map(int, re.findall(r"\d+", page.evaluate(script))[:3])) / 3 / 255


def test_in_jupyterlab_the_bench_works_by_keyboard_and_in_the_dark(lab, tmp_path):
    page, press, status = lab, lab.keyboard.press, lab.locator("[role=status]")
    expect(page.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible(timeout=60_000)
    page.locator(".jp-Notebook .cm-content").first.click()
    press("Control+Enter")
    for label in ("Task", "Tool", "Runs of each", "Backend", "Description A", "Description B", "File", "Measure"):
        expect(page.get_by_label(label, exact=True)).to_have_count(1, timeout=60_000)
    run = page.get_by_role("button", name="Run", exact=True)
    expect(page.get_by_text("chances of the next step")).to_have_count(2, timeout=120_000)

    before = page.locator(".jp-OutputArea").first.inner_text()
    page.get_by_label("Description A", exact=True).focus()
    press("End")
    page.keyboard.type("e")
    expect(page.get_by_text("asking for the chances")).to_have_count(1)
    expect(page.get_by_text("asking for the chances")).to_have_count(0, timeout=120_000)
    assert page.locator(".jp-OutputArea").first.inner_text() != before

    run.focus()
    press("Enter")
    expect(status).to_have_text(re.compile(r"[1-9] of 10 runs, about \d+ s left"))
    expect(run).to_be_disabled()
    press("Tab")  # from Run, which cannot be pressed now, to Cancel
    press("Space")
    expect(status).to_have_text(re.compile(r"Cancelled\. [1-9] runs were finished, and are kept\."))
    expect(page.get_by_role("figure")).to_be_visible()

    expect(run).to_be_enabled()
    press("Shift+Tab")
    press("Space")
    page.locator(".jp-Notebook .cm-content").last.click()
    press("Control+Enter")
    expect(page.get_by_text("42 free")).to_be_visible()  # another cell is answered during the runs
    expect(status).to_have_text(re.compile(r"\d of 10 runs"))
    expect(status).to_have_text(re.compile(r"10 runs, in \d+ s\."), timeout=30_000)
    page.get_by_label("Measure", exact=True).select_option("first call on the task's path")
    figure = page.get_by_role("figure")
    expect(figure).to_contain_text("first call on the task's path, with 95% intervals")
    expect(figure).to_contain_text("5 of 5 (57% to 100%)")
    page.locator("summary").first.focus()
    press("Enter")
    expect(page.get_by_text("tool read_file").first).to_be_visible()
    page.screenshot(path=tmp_path / "light.png")

    colour = "getComputedStyle(document.querySelector('[role=figure]')).color"
    assert brightness(page, colour) < 0.3
    page.evaluate("window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    page.wait_for_function("document.body.dataset.jpThemeLight === 'false'")
    until(lambda: brightness(page, colour) > 0.7)
    expect(page.locator("#jupyterlab-splash")).to_have_count(0)
    page.screenshot(path=tmp_path / "dark.png")
