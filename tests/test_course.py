"""The course as its readers meet it: notebooks as they are committed, the README, the Makefile."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import nbclient
import nbformat
import pytest
from conftest import cells

import classroom
from classroom import fault_table, pictures, recordings
from classroom.record import execute, notebook_of
from classroom.versions import CHAPTERS, ROOT, chapters, taught

MACHINE_PATH = re.compile(r"/home/|/Users/|/root/|/tmp/|/var/|[A-Z]:\\\\")


def faults(cells, said=""):
    """What is wrong with the committed cells of a notebook, in words; `said` is what models said."""
    code = [cell for cell in cells if cell.cell_type == "code"]
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        yield "cells are not saved with the counts 1..n"
    for cell in code:
        raised = any(output.output_type == "error" for output in cell.outputs)
        if raised != ("raises-exception" in cell.metadata.get("tags", [])):
            yield f"raises, or does not, against its tag: {cell.source[:40]!r}"
        if any(output.get("name") == "stderr" for output in cell.outputs):
            yield f"prints to stderr: {cell.source[:40]!r}"
        if any(len(line) > 88 for line in cell.source.splitlines()):
            yield f"has a line that is wider than a notebook: {cell.source[:40]!r}"
        shown = json.dumps(cell.outputs)
        if found := next((m for m in MACHINE_PATH.finditer(shown) if shown[m.start() : m.end() + 4] not in said), None):
            yield f"shows a path of a machine, {found[0]!r}: {cell.source[:40]!r}"


@pytest.mark.parametrize("chapter", chapters())
def test_a_committed_notebook_is_whole(chapter):
    said = "".join(file.read_text(encoding="utf-8") for file in (CHAPTERS / chapter / "recordings").glob("*.json"))
    assert list(faults(cells(chapter), said)) == []


def test_a_cell_that_should_raise_and_does_not_is_found():
    quiet = nbformat.v4.new_code_cell("x = 1", metadata={"tags": ["raises-exception"]}, execution_count=1)
    loud = nbformat.v4.new_code_cell(f"print({'1' * 90})", execution_count=None)
    loud.outputs = [nbformat.v4.new_output("stream", name="stderr", text="/home/kim/x: warning")]
    assert [fault.split(":")[0] for fault in faults([quiet, loud])] == [
        "cells are not saved with the counts 1..n",
        "raises, or does not, against its tag",
        "prints to stderr",
        "has a line that is wider than a notebook",
        "shows a path of a machine, '/home/'",
    ]


@pytest.mark.parametrize("chapter", chapters())
@pytest.mark.parametrize("where", ["root", "empty"])
def test_a_notebook_runs_wherever_its_kernel_was_started(chapter, where, tmp_path):
    folder = ROOT if where == "root" else tmp_path
    client = nbclient.NotebookClient(
        nbformat.read(notebook_of(chapter), as_version=4),
        timeout=300,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    ran = client.execute().cells
    for now, then in zip(ran, cells(chapter), strict=True):
        assert now.get("outputs") == then.get("outputs")


@pytest.mark.parametrize("chapter", chapters())
def test_a_committed_notebook_is_written_as_jupyter_writes_it(chapter):
    text = notebook_of(chapter).read_bytes().decode()
    assert text == nbformat.writes(nbformat.reads(text, as_version=4)) + "\n"


FEWER = {
    "range(1, 21)": "range(1, 2)",
    "range(1, 11)": "range(1, 2)",
    "range(10)": "range(4)",
    "range(1, 41)": "range(1, 2)",
    "range(41, 121)": "range(41, 42)",
    "range(1, 6)": "range(1, 2)",
    "RUNS = 50": "RUNS = 1",
    "RUNS = 40": "RUNS = 1",
    "compare(pair_of, READ, 5,": "compare(pair_of, READ, 1,",
    "in CUES.items()": "in [*CUES.items()][:1]",
    r"for model in [\"smollm2-135m-bare\", \"smollm2-135m\"]": r"for model in [\"smollm2-135m-bare\"]",
}


def test_what_the_live_test_shortens_stands_in_a_notebook():
    texts = "".join(notebook_of(chapter).read_text(encoding="utf-8") for chapter in chapters())
    assert [long for long in FEWER if long not in texts] == []


@pytest.mark.parametrize("chapter", chapters())
def test_a_notebook_runs_live_on_the_local_model(chapter, tmp_path):
    """The committed notebook with a run or two, so that it takes a minute; words may differ, the cells must run."""
    source = notebook_of(chapter).read_text(encoding="utf-8")
    for long, short in FEWER.items():
        source = source.replace(long, short)
    file = tmp_path / f"{chapter}.ipynb"
    file.write_text(source, encoding="utf-8")
    ran = execute(file, {"TINY_AGENT_BACKEND": "local"})
    first = next(cell for cell in ran.cells if cell.cell_type == "code")
    assert first.outputs[0].text.endswith("Answers: local (no key, no network).\n")
    assert not [o for cell in ran.cells for o in cell.get("outputs", []) if o.get("name") == "stderr"]


@pytest.mark.parametrize("path", sorted(CHAPTERS.glob("*/recordings/*.json")), ids=lambda path: path.stem)
def test_a_committed_recording_is_what_was_recorded_to_the_byte(path):
    recording = recordings.load(path)
    assert recordings.dump(recording).encode() == path.read_bytes()
    assert recording["scene"] == f"{path.parent.parent.name}/{path.stem}"
    assert recordings.KEY_SHAPES.search(path.read_text(encoding="utf-8")) is None


@pytest.mark.parametrize("path", sorted(CHAPTERS.glob("*/recordings/*.json")), ids=lambda path: path.stem)
def test_every_recorded_answer_is_played_each_in_its_run(path):
    recording = recordings.load(path)
    for run in dict.fromkeys(exchange["run"] for exchange in recording["exchanges"]):
        client = classroom.connect(recording["scene"], run=run)
        own = [exchange for exchange in recording["exchanges"] if exchange["run"] == run]
        for exchange in own:
            reply = client.post("/v1/messages", json=exchange["request"])
            assert reply.json() == exchange["response"]["json"]
        assert client._transport.unused() == len(recording["exchanges"]) - len(own)


# --- the README


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_chapter_stands_in_the_readme_and_every_link_leads_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert [link for link in links if not link.startswith("http") and not (ROOT / link).exists()] == []
    for chapter in chapters():
        assert f"`{taught(chapter)}`" in README
        assert f"chapters/{chapter}/{chapter}.ipynb" in links


def test_the_pictures_of_the_readme_are_what_the_command_draws():
    """At an older tag they show later versions too, and are not compared."""
    columns = re.search(r"^\| what the model does \|(.*)$", README, re.M)[1]
    if [taught(chapter) for chapter in chapters()] == re.findall(r"v0\.\d+", columns):
        drawn = {"faults.svg": pictures.faults(fault_table()), "example.svg": pictures.example()}
        assert {name: (pictures.FOLDER / name).read_text(encoding="utf-8") for name in drawn} == drawn


def test_every_make_verb_that_the_readme_and_the_notebooks_name_exists():
    verbs = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    texts = [
        README,
        *(cell.source for chapter in chapters() for cell in cells(chapter) if cell.cell_type == "markdown"),
    ]
    named = {verb for text in texts for verb in re.findall(r"(?:^|`|\d )make ([a-z]+)", text, re.M)}
    assert named
    assert named <= verbs


# --- the Makefile, in a copy of the project whose path has a space and a letter beyond ASCII


@pytest.fixture
def copy(tmp_path):
    root = tmp_path / "my prójects" / "tiny-agent"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", "*.egg-info", ".*_cache"))
    return root


def make(root, *args, **env):
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", *args], cwd=root, capture_output=True, text=True, env={**plain, **env})


def test_make_alone_lists_the_verbs_a_line_each(copy):
    listed = make(copy).stdout.splitlines()
    verbs = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    assert [line.split()[1] for line in listed] == [verb for verb in verbs if verb != "sound"]


def test_a_python_that_is_too_old_is_said_in_a_line(copy):
    old = copy / "python3.9"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.1" || exit 1\n')
    old.chmod(0o755)
    done = make(copy, "lab", f"PYTHON={Path('.') / 'python3.9'}".replace("=python", "=./python"))
    assert done.returncode
    assert "tiny-agent needs Python 3.11 or newer; ./python3.9 is Python 3.9.1." in done.stdout + done.stderr


def test_no_python_at_all_is_said_in_a_line(copy):
    done = make(copy, "lab", "PYTHON=")
    assert "needs Python 3.11 or newer, and none was found" in done.stdout + done.stderr


def test_a_task_reaches_the_agent_as_it_was_typed(copy):
    (copy / ".venv" / "bin").mkdir(parents=True)
    (copy / ".venv" / "bin" / "python").write_text('#!/bin/sh\nfor word; do echo "<$word>"; done\n')
    (copy / ".venv" / "bin" / "python").chmod(0o755)
    (copy / ".venv" / ".ready").touch()
    task = """-h costs $5 in $HOME and $(x) "quoted" 'too'"""
    done = make(copy, "run", f"TASK={task}", "BACKEND=a b; touch broken", "RUN=1 2")
    assert [f"<{word}>" in done.stdout.splitlines() for word in (task, "a b; touch broken", "1 2")] == [True] * 3
    assert not (copy / "broken").exists()


def test_a_half_installed_environment_is_said_in_a_line(copy):
    (copy / ".venv" / "bin").mkdir(parents=True)
    (copy / ".venv" / "bin" / "python").symlink_to("/nowhere/python")
    (copy / ".venv" / ".ready").touch()
    done = make(copy, "run")
    assert done.returncode
    assert "The installation in .venv is not whole. Type 'make clean', then the same command again." in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


# --- the other texts


def test_every_version_that_is_here_stands_in_the_list_of_changes_newest_first():
    entries = re.findall(r"^## (v[\d.]+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert [entry for entry in entries if entry in set(map(taught, chapters()))] == [*map(taught, chapters())][::-1]
