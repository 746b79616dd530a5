"""Chapter 4: the same tools, other words; many runs of each, and numbers that say how sure they are."""

import concurrent.futures
import functools
import importlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time

import httpx
import pytest
from conftest import cells, command, serving, solutions
from scipy import stats
from test_01_loop import call, calls, says

import classroom
from classroom.backends import Client
from classroom.errors import NoAnswer
from classroom.versions import CHAPTERS, ROOT

CHAPTER = "04_prompts"
tiny_agent = classroom.version("v0.4")
experiment = importlib.import_module(f"{tiny_agent.__name__}.experiment")
measures = importlib.import_module(f"{tiny_agent.__name__}.measures")
compare, variant, ExperimentError = experiment.compare, experiment.variant, experiment.ExperimentError
PROMPTS, TOOLS = tiny_agent.PROMPTS, tiny_agent.TOOLS
USAGE = {"input_tokens": 10, "output_tokens": 2}


@pytest.fixture
def folder(tmp_path):
    """A workspace."""
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "notes.txt").write_text("The key is under the blue pot.\n")
    return tmp_path / "ws"


def model(reply):
    """`connect` for a model that is a function: reply(run, request, turn) -> a message or an exception."""

    def connect(run):
        turns = []

        def answer(request):
            turns.append(json.loads(request.content))
            said = reply(run, turns[-1], len(turns))
            if isinstance(said, BaseException):
                raise said
            return httpx.Response(200, json={"usage": USAGE, **said})

        return Client(httpx.MockTransport(answer), model="m", source="a function", run=run)

    return connect


def reads_then_answers(run, request, turn):
    return calls(call("read_file", f"{turn}", path="notes.txt")) if turn == 1 else says("Under the blue pot.")


TWO = {"one": variant(), "two": variant(descriptions={"read_file": "Read. USE THIS"})}


# --- variants


def test_a_variant_changes_one_description_and_nothing_else():
    changed = variant(descriptions={"read_file": "Read it"})
    assert [tool["description"] for tool in changed["tools"]] == ["Read it", *(t["description"] for t in TOOLS[1:])]
    assert changed == {"tools": [{**TOOLS[0], "description": "Read it"}, *TOOLS[1:]], "system": ""}
    assert TOOLS[0]["description"] == "Read a file"


def test_a_variant_may_be_the_order_of_the_tools_or_leave_some_out():
    assert [tool["name"] for tool in variant(order=["list_dir", "read_file"])["tools"]] == ["list_dir", "read_file"]


def test_a_variant_may_be_a_prompt_by_its_name():
    assert variant(prompt="careful")["system"] == PROMPTS["careful"]
    assert variant(system="Be quick.")["system"] == "Be quick."


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"descriptions": {"raed_file": "x"}},
            "There is no tool 'raed_file'. There are: read_file, write_file, list_dir.",
        ),
        ({"order": ["read_file", "rm"]}, "There is no tool 'rm'."),
        ({"prompt": "wild"}, "There is no prompt 'wild'. There are: plain, careful."),
        ({"prompt": "plain", "system": "x"}, "A variant has a prompt or a system, not both."),
    ],
    ids=str,
)
def test_a_variant_of_something_that_does_not_exist_is_refused_in_words(fields, said):
    with pytest.raises(ExperimentError, match=re.escape(said)):
        variant(**fields)


def test_a_system_prompt_is_what_the_model_is_sent(folder):
    seen = []

    def reply(run, request, turn):
        seen.append(request.get("system"))
        return says("Done.")

    compare({"careful": variant(prompt="careful"), "bare": variant()}, "Go.", 1, model(reply), workspace=folder)
    assert seen == [PROMPTS["careful"], None]


# --- runs


def test_a_record_says_what_was_called_what_failed_and_what_it_cost(folder):
    def reply(run, request, turn):
        return [
            calls(call("read_file", "1", path="note.txt"), call("list_dir", "2", path=".")),
            calls(call("write_file", "3", path="a.txt", content="x")),
            says("Done."),
        ][turn - 1]

    (record,) = compare({"one": variant()}, "Go.", 1, model(reply), workspace=folder)
    assert record.pop("seconds") >= 0
    assert len(record.pop("mark")) == len(record.pop("experiment")) == 12
    assert record == {
        "variant": "one",
        "run": "1",
        "task": "Go.",
        "tools": ["read_file", "write_file", "list_dir"],
        "model": "m",
        "source": "a function",
        "calls": [
            {
                "turn": 1,
                "name": "read_file",
                "input": {"path": "note.txt"},
                "error": "No such file or directory: note.txt",
            },
            {"turn": 1, "name": "list_dir", "input": {"path": "."}, "error": None},
            {"turn": 2, "name": "write_file", "input": {"path": "a.txt", "content": "x"}, "error": None},
        ],
        "stopped": "end_turn",
        "answer": "Done.",
        "turns": 3,
        "input_tokens": 30,
        "output_tokens": 6,
        "grades": {},
    }


def test_runs_do_not_see_each_other_and_the_workspace_stays_as_it_was(folder):
    def reply(run, request, turn):
        if turn == 1:
            return calls(call("list_dir", "1", path="."))
        if turn == 2:
            return calls(call("write_file", "2", path="mine.txt", content=run))
        return says(request["messages"][2]["content"][0]["content"])

    records = compare(TWO, "Go.", 3, model(reply), workspace=folder)
    assert os.listdir(folder) == ["notes.txt"]
    assert {record["answer"] for record in records} == {'[{"name": "notes.txt", "type": "file", "size": 31}]'}
    assert [(record["run"], record["variant"]) for record in records] == [
        ("1", "one"),
        ("1", "two"),
        ("2", "one"),
        ("2", "two"),
        ("3", "one"),
        ("3", "two"),
    ]


def test_a_grader_sees_the_record_and_the_folder_as_the_run_left_it(folder):
    def reply(run, request, turn):
        return calls(call("write_file", "1", path="a.txt", content=run)) if turn == 1 else says("Done.")

    graders = {
        "wrote its run": lambda record, left: (left / "a.txt").read_text() == record["run"],
        "does not arise": lambda record, left: None,
    }
    records = compare({"one": variant()}, "Go.", 2, model(reply), workspace=folder, graders=graders)
    assert [record["grades"] for record in records] == [{"wrote its run": True, "does not arise": None}] * 2
    assert measures.count(records, "one", measures.rates(records)["does not arise"]) == (0, 0)


def test_a_grader_that_raises_is_named_and_earlier_runs_are_kept(folder, tmp_path):
    def grade(record, left):
        return 1 / (2 - int(record["run"])) > 0

    with pytest.raises(ExperimentError, match=r"The grader 'half', in run 2 of 'one', raised ZeroDivisionError"):
        compare(
            {"one": variant()},
            "Go.",
            3,
            model(reads_then_answers),
            workspace=folder,
            graders={"half": grade},
            out=tmp_path / "o.jsonl",
        )
    assert len((tmp_path / "o.jsonl").read_text().splitlines()) == 1


def test_a_run_of_two_variants_has_the_same_id_and_so_the_same_seed(folder):
    seen = []

    def reply(run, request, turn):
        seen.append((run, request["tools"][0]["description"]))
        return says("Done.")

    compare(TWO, "Go.", 2, model(reply), workspace=folder)
    assert seen == [("1", "Read a file"), ("1", "Read. USE THIS"), ("2", "Read a file"), ("2", "Read. USE THIS")]


# --- requests that fail, and limits


def test_a_request_that_failed_is_no_result_and_stands_in_no_file(folder, tmp_path):
    def reply(run, request, turn):
        return NoAnswer("busy (HTTP 529)") if run == "2" else reads_then_answers(run, request, turn)

    records = compare(TWO, "Go.", 3, model(reply), workspace=folder, out=tmp_path / "o.jsonl")
    assert [record.get("not_run") for record in records] == [None, None, *["busy (HTTP 529)"] * 2, None, None]
    assert measures.count(records, "one", measures.rates(records)["read_file first"]) == (2, 2)
    assert len((tmp_path / "o.jsonl").read_text().splitlines()) == 4
    shown = measures.table(records)
    assert re.search(r"^not run +1 +1$", shown, re.M)
    assert shown.endswith("not run, 2 times: busy (HTTP 529)")
    again = compare(TWO, "Go.", 3, model(reads_then_answers), workspace=folder, out=tmp_path / "o.jsonl")
    assert not any("not_run" in record for record in again)


BUSY = [(429, {"retry-after": "0"}), (529, {}), (503, {}), (400, {})]


@pytest.mark.parametrize(("status", "headers"), BUSY, ids=str)
def test_a_provider_that_stays_busy_or_refuses_one_request_is_a_run_not_run(folder, monkeypatch, status, headers):
    monkeypatch.setattr("classroom.providers.Provider.__init__.__defaults__", (lambda seconds: None,))
    with serving(rest=(status, headers, b'{"error": {"message": "no"}}')) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
        connect = functools.partial(classroom.connect, "01_loop/read", backend="anthropic")
        records = compare({"one": variant()}, "Go.", 2, connect, workspace=folder)
    assert all(f"HTTP {status}" in record["not_run"] for record in records)
    assert len(server.seen) == (2 if status == 400 else 10)


def test_a_key_that_is_refused_ends_the_experiment_and_keeps_what_is_finished(folder, tmp_path, monkeypatch):
    message = json.dumps({**says("Done."), "usage": USAGE}).encode()
    good = (200, {"content-type": "application/json"}, message)
    with serving(good, rest=(401, {}, b'{"error": {"message": "who?"}}')) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
        connect = functools.partial(classroom.connect, "01_loop/read", backend="anthropic")
        with pytest.raises(classroom.ClassroomError, match="refused the key"):
            compare({"one": variant()}, "Go.", 5, connect, workspace=folder, out=tmp_path / "o.jsonl")
    assert len(server.seen) == 2
    assert len((tmp_path / "o.jsonl").read_text().splitlines()) == 1


def test_a_budget_is_never_passed_and_what_was_not_begun_is_marked(folder, tmp_path):
    """A model that asks without end for a tool that it is denied: 3 variants, 10 runs, 20 requests."""
    asked = []

    def reply(run, request, turn):
        asked.append(run)
        return calls(call("delete_file", f"{turn}", path=f"{turn}"))

    three = {**TWO, "three": variant(prompt="careful")}
    at = {"workspace": folder, "turn_limit": 4, "out": tmp_path / "o.jsonl"}
    records = compare(three, "Go.", 10, model(reply), **at, max_calls=20)
    assert len(asked) <= 20
    assert sum("not_run" not in record for record in records) == 5
    assert records[-1]["not_run"] == "no more than 20 requests were allowed"
    assert len((tmp_path / "o.jsonl").read_text().splitlines()) == 5


# --- broken off and gone on with


def test_what_a_file_holds_is_not_run_again(folder, tmp_path):
    asked = []

    def reply(run, request, turn):
        asked.append(run)
        return reads_then_answers(run, request, turn)

    first = compare(TWO, "Go.", 2, model(reply), workspace=folder, out=tmp_path / "o.jsonl")
    more = compare(TWO, "Go.", 3, model(reply), workspace=folder, out=tmp_path / "o.jsonl")
    assert more[:4] == first
    assert set(asked[8:]) == {"3"}


def test_a_line_that_a_kill_cut_off_is_run_again(folder, tmp_path):
    out = tmp_path / "o.jsonl"
    whole = compare(TWO, "Go.", 2, model(reads_then_answers), workspace=folder, out=out)
    out.write_bytes(out.read_bytes()[:-30])
    again = compare(TWO, "Go.", 2, model(reads_then_answers), workspace=folder, out=out)
    assert [timeless(record) for record in again] == [timeless(record) for record in whole]
    assert [json.loads(line)["run"] for line in out.read_text().splitlines()] == ["1", "1", "2", "2"]


@pytest.mark.parametrize(
    "line", ["{}\n", "7\n", "half of {\n", '{"variant": "one"}\n', "precious", '{"a": 1,\n "b": 2}']
)
def test_a_file_of_something_else_is_left_alone(folder, tmp_path, line):
    out = tmp_path / "o.jsonl"
    out.write_text(line)
    with pytest.raises(ExperimentError, match=r"o\.jsonl, line 1 is no record of a run"):
        compare(TWO, "Go.", 2, model(reads_then_answers), workspace=folder, out=out)
    assert out.read_text() == line


CHANGES = {
    "words": {"variants": {"one": variant(descriptions={"list_dir": "x"})}},
    "task": {"task": "Stop."},
    "turn limit": {"turn_limit": 3},
    "grader": {"graders": {"g": lambda record, left: True}},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_runs_of_another_experiment_are_not_mixed_in(folder, tmp_path, change):
    asked = {"variants": {"one": variant()}, "task": "Go.", "runs": 1, "connect": model(reads_then_answers)}
    asked |= {"workspace": folder, "out": tmp_path / "o.jsonl"}
    compare(**asked)
    with pytest.raises(ExperimentError, match="holds runs of 'one' with other words, another task"):
        compare(**{**asked, **change})


def test_a_changed_workspace_is_another_experiment(folder, tmp_path):
    asked = {"workspace": folder, "out": tmp_path / "o.jsonl"}
    compare(TWO, "Go.", 1, model(reads_then_answers), **asked)
    (folder / "notes.txt").write_text("Another key.\n")
    with pytest.raises(ExperimentError, match="workspace"):
        compare(TWO, "Go.", 1, model(reads_then_answers), **asked)


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("ws/o.jsonl", "is in the workspace, where each run would find it"),
        ("ws/../ws/o.jsonl", "is in the workspace"),
        ("ws", "is in the workspace"),
        ("nowhere/o.jsonl", "cannot be written: No such file or directory"),
        (".", "cannot be written: Is a directory"),
    ],
)
def test_a_file_that_cannot_be_used_is_said_before_anything_is_asked(folder, tmp_path, out, said):
    def reply(run, request, turn):
        pytest.fail("a model was asked")

    with pytest.raises(ExperimentError, match=said):
        compare(TWO, "Go.", 1, model(reply), workspace=folder, out=tmp_path / out)


def test_runs_of_another_experiment_under_another_name_are_not_mixed_in_either(folder, tmp_path):
    asked = {"runs": 1, "connect": model(reads_then_answers), "workspace": folder, "out": tmp_path / "o.jsonl"}
    compare({"one": variant()}, "Go.", **asked)
    with pytest.raises(ExperimentError, match="holds runs of 'one' with other words, another task"):
        compare({"two": variant()}, "Stop.", **asked)


@pytest.mark.parametrize("odd", ["pipe", "loop", "dead link"])
def test_a_workspace_that_cannot_be_copied_is_said_in_words(folder, odd):
    if odd == "pipe":
        os.mkfifo(folder / "pipe")
    else:
        (folder / "link").symlink_to("link" if odd == "loop" else "nowhere")
    with pytest.raises(ExperimentError, match="cannot be copied"):
        compare(TWO, "Go.", 1, model(reads_then_answers), workspace=folder)


def test_a_new_empty_folder_in_the_workspace_is_another_experiment(folder, tmp_path):
    asked = {"workspace": folder, "out": tmp_path / "o.jsonl"}
    compare(TWO, "Go.", 1, model(reads_then_answers), **asked)
    (folder / "sub").mkdir()
    with pytest.raises(ExperimentError, match="workspace"):
        compare(TWO, "Go.", 1, model(reads_then_answers), **asked)


@pytest.mark.parametrize("said", [2, 0.5, "yes", {1}, []])
def test_a_grade_is_yes_or_no_or_nothing(folder, said):
    with pytest.raises(
        ExperimentError, match=r"The grader 'g', in run 1 of 'one', said .* It says True, False or None\."
    ):
        compare(TWO, "Go.", 1, model(reads_then_answers), workspace=folder, graders={"g": lambda record, left: said})


def test_a_grade_of_another_library_is_stored_as_a_plain_one(folder):
    grades = {"p": lambda record, left: stats.binomtest(5, 10).pvalue > 0.05}
    records = compare(TWO, "Go.", 1, model(reads_then_answers), workspace=folder, graders=grades)
    assert json.dumps(records[0]["grades"]) == '{"p": true}'


@pytest.mark.parametrize(("limits", "asked"), [({"max_calls": -8}, 0), ({"max_calls": 3}, 0), ({"max_calls": 8}, 4)])
def test_a_budget_of_too_little_begins_nothing(folder, limits, asked):
    turns = []

    def reply(run, request, turn):
        turns.append(turn)
        return reads_then_answers(run, request, turn)

    compare(TWO, "Go.", 3, model(reply), workspace=folder, turn_limit=4, **limits)
    assert len(turns) == asked


def test_runs_that_end_after_an_interrupt_are_kept_too(folder, tmp_path):
    def progress(finished, of):
        if len(finished) == 1:
            time.sleep(0.3)
            raise KeyboardInterrupt

    asked = {"workspace": folder, "out": tmp_path / "o.jsonl", "progress": progress}
    with concurrent.futures.ThreadPoolExecutor(2) as executor, pytest.raises(KeyboardInterrupt):
        compare(TWO, "Go.", 5, model(reads_then_answers), **asked, executor=executor)
    assert len((tmp_path / "o.jsonl").read_text().splitlines()) == 10


def test_an_interrupt_keeps_what_is_finished_and_begins_nothing_more(folder, tmp_path):
    begun = []

    def reply(run, request, turn):
        begun.append(run)
        time.sleep(0.01)
        return reads_then_answers(run, request, turn)

    def progress(finished, of):
        if len(finished) == 4:
            raise KeyboardInterrupt

    asked = {"workspace": folder, "out": tmp_path / "o.jsonl", "progress": progress}
    with concurrent.futures.ThreadPoolExecutor(2) as executor, pytest.raises(KeyboardInterrupt):
        compare(TWO, "Go.", 50, model(reply), **asked, executor=executor)
    assert 4 <= len((tmp_path / "o.jsonl").read_text().splitlines()) < 12
    assert len(begun) < 40


# --- measures


def record(*called, task="Read notes.txt.", **fields):
    made = [
        {"turn": i, "name": name, "input": input, "error": error} for i, (name, input, error) in enumerate(called, 1)
    ]
    return {
        "variant": "a",
        "run": "1",
        "task": task,
        "tools": ["read_file"],
        "calls": made,
        "stopped": "end_turn",
        **fields,
    }


READ, WRITE = ("read_file", {"path": "notes.txt"}, None), ("write_file", {"path": "notes.txt", "content": "x"}, None)
MISS = ("read_file", {"path": "note.txt"}, "No such file")


@pytest.mark.parametrize(
    ("measure", "called", "value"),
    [
        ("first call on the task's path", [READ], True),
        ("first call on the task's path", [MISS, READ], False),
        ("first call on the task's path", [], False),
        ("read_file first", [READ, WRITE], True),
        ("read_file first", [WRITE, READ], False),
        ("no call at all", [], True),
        ("some call failed", [READ, MISS], True),
        ("some call failed", [READ], False),
        ("another call after a failed one", [MISS, MISS], False),
        ("another call after a failed one", [MISS, READ], True),
        ("another call after a failed one", [MISS], None),
        ("another call after a failed one", [READ, READ], None),
        ("read before it was written", [READ, WRITE], True),
        ("read before it was written", [WRITE, READ], False),
        ("read before it was written", [MISS, WRITE], False),
        ("read before it was written", [READ], None),
    ],
)
def test_a_measure_is_a_function_of_the_record(measure, called, value):
    one = record(*called)
    assert measures.rates([one])[measure](one) is value


def test_a_question_that_arose_in_no_run_has_no_row_nor_has_the_turn_where_each_run_has_one():
    one = record(READ, turns=1, input_tokens=9, output_tokens=3)
    rows = [line.split("  ")[0] for line in measures.table([one]).splitlines()]
    assert {"read_file first", "calls of read_file, a run", "turns, a run"} <= set(rows)
    assert not {"another call after a failed one", "read before it was written", "first read_file at turn"} & set(rows)
    assert "first read_file at turn" in measures.table(
        [one, record(READ, READ, turns=2, input_tokens=9, output_tokens=3)]
    )


# --- statistics


@pytest.mark.parametrize(
    ("k", "n", "low", "high"), [(16, 20, 0.584, 0.919), (12, 20, 0.387, 0.781), (0, 20, 0.0, 0.161), (0, 0, 0, 1)]
)
def test_the_interval_is_wilsons(k, n, low, high):
    assert measures.wilson(k, n) == pytest.approx((low, high), abs=0.001)


def runs_of(**counts):
    return [
        record(*([READ] if i < k else []), variant=name, run=str(i))
        for name, (k, n) in counts.items()
        for i in range(n)
    ]


def test_a_difference_between_two_is_tested_exactly_and_said_in_words():
    assert measures.verdict(runs_of(a=(3, 50), b=(30, 50)), "read_file first") == (
        "read_file first (p by Fisher's exact test)\n  a 3 of 50, b 30 of 50: p = 6.5e-09, a difference"
    )
    assert measures.verdict(runs_of(a=(22, 50), b=(26, 50)), "read_file first") == (
        "read_file first (p by Fisher's exact test)\n"
        "  a 22 of 50, b 26 of 50: p = 0.55, no difference shown (to show it: 611 runs of each or more)"
    )
    assert measures.verdict(runs_of(a=(25, 50), b=(25, 50)), "read_file first").endswith("p = 1, no difference shown")


def test_several_pairs_are_corrected_by_holm():
    found = measures.differences(runs_of(a=(1, 20), b=(9, 20), c=(10, 20)), "read_file first")
    p = {one["pair"]: one["p"] for one in found}
    corrected = {one["pair"]: one["corrected"] for one in found}
    assert corrected["a", "c"] == pytest.approx(3 * p["a", "c"])
    assert corrected["a", "b"] == pytest.approx(2 * p["a", "b"])
    assert corrected["b", "c"] == 1
    assert sorted(corrected.values()) == [corrected[pair] for pair in sorted(p, key=p.get)]


def test_five_equal_variants_are_seldom_said_to_differ():
    """The whole report, all ten pairs, claims a difference no more often than the level says."""
    draw, claimed = random.Random(1), 0
    for _ in range(200):
        equal = runs_of(**{name: (sum(draw.random() < 0.5 for _ in range(20)), 20) for name in "abcde"})
        claimed += any(one["corrected"] < measures.LEVEL for one in measures.differences(equal, "read_file first"))
    assert claimed <= stats.binom.isf(0.001, 200, measures.LEVEL)


def test_two_equal_variants_of_three_runs_show_no_difference(folder):
    """A model that succeeds half of the time, three runs of each, two hundred times."""
    draw, shown = random.Random(2), 0

    def reply(run, request, turn):
        return says("yes" if draw.random() < 0.5 else "no")

    graders = {"yes": lambda record, left: record["answer"] == "yes"}
    for _ in range(200):
        records = compare(TWO, "Go.", 3, model(reply), workspace=folder, graders=graders)
        shown += "no difference shown" in measures.verdict(records, "yes")
    assert shown == 200
    assert re.search(r"^yes +\d of 3 \(\d+% to \d+%\) +\d of 3", measures.table(records), re.M)


@pytest.mark.parametrize(("p", "q"), [(0.1, 0.5), (0.5, 0.8), (0.06, 0.6)])
def test_so_many_runs_show_the_difference_in_most_tries(p, q):
    n, draw = measures.needed(p, q), random.Random(3)
    found = 0
    for _ in range(400):
        a, b = (sum(draw.random() < rate for _ in range(n)) for rate in (p, q))
        found += stats.fisher_exact([[a, n - a], [b, n - b]]).pvalue < measures.LEVEL
    assert 0.6 < found / 400 < 0.95  # Fisher's test is strict, so a little under the 0.8 that the formula aims at


@pytest.mark.parametrize(("a", "b"), [((0, 3), (3, 3)), ((0, 5), (1, 5)), ((19, 20), (20, 20))])
def test_so_many_runs_are_never_fewer_than_would_pass_the_test_with_the_very_rates_seen(a, b):
    n = measures.needed(a[0] / a[1], b[0] / b[1])
    k, m = round(a[0] / a[1] * n), round(b[0] / b[1] * n)
    assert stats.fisher_exact([[k, n - k], [m, n - m]]).pvalue < measures.LEVEL


def test_where_nothing_was_run_no_number_is_said():
    assert (
        measures.differences([*runs_of(a=(3, 5)), record(variant="b", not_run="busy")], "read_file first")[0]["needed"]
        is None
    )
    assert measures.verdict(runs_of(a=(3, 5)), "read_file first") == (
        "read_file first: one variant, so nothing to compare."
    )


def test_no_number_of_runs_shows_a_difference_of_nothing():
    assert measures.needed(0.5, 0.5) is None


def timeless(record):
    return {key: value for key, value in record.items() if key != "seconds"}


# --- the same lines, however the runs are run


SCENE = "04_prompts/edit"
EDIT = "Add the line buy eggs to shopping.md."
PLAYED = functools.partial(classroom.connect, SCENE)
AT = {"workspace": CHAPTERS / CHAPTER / "workspace", "turn_limit": 4}
PROMPTED = {name: variant(prompt=name) for name in PROMPTS}


def lines(path):
    return sorted(json.dumps(timeless(json.loads(line))) for line in path.read_text().splitlines())


@pytest.fixture(scope="module")
def in_sequence(tmp_path_factory):
    out = tmp_path_factory.mktemp("sequence") / "o.jsonl"
    compare(PROMPTED, EDIT, 12, PLAYED, **AT, out=out)
    return lines(out)


def test_threads_give_the_same_lines(in_sequence, tmp_path):
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        compare(PROMPTED, EDIT, 12, PLAYED, **AT, out=tmp_path / "o.jsonl", executor=executor)
    assert lines(tmp_path / "o.jsonl") == in_sequence


KILLED = """
import functools, sys, time
import classroom
from tiny_agent.experiment import compare, variant

def slowly(finished, of):
    print(len(finished), flush=True)
    time.sleep(0.05)

task, scene, workspace, out = sys.argv[1:]
variants = {name: variant(prompt=name) for name in ("plain", "careful")}
connect = functools.partial(classroom.connect, scene)
compare(variants, task, 12, connect, workspace=workspace, turn_limit=4, out=out, progress=slowly)
"""
ON_A_CLUSTER = """
import functools, sys
import classroom
from distributed import Client, LocalCluster
from tiny_agent.experiment import compare, variant

def main():
    task, scene, workspace, out = sys.argv[1:]
    variants = {name: variant(prompt=name) for name in ("plain", "careful")}
    at = {"workspace": workspace, "turn_limit": 4, "out": out}
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        print("worker processes:", len(client.ncores()))
        executor = client.get_executor()
        compare(variants, task, 12, functools.partial(classroom.connect, scene), **at, executor=executor)

if __name__ == "__main__":
    main()
"""


def script(tmp_path, text):
    (tmp_path / "script.py").write_text(text)
    out = tmp_path / "o.jsonl"
    return out, [sys.executable, str(tmp_path / "script.py"), EDIT, SCENE, str(AT["workspace"]), str(out)]


def test_a_run_that_was_killed_and_gone_on_with_gives_the_same_lines(in_sequence, tmp_path):
    out, args = script(tmp_path, KILLED)
    with subprocess.Popen(args, stdout=subprocess.PIPE, text=True) as going:
        for line in going.stdout:
            if int(line) == 7:
                going.kill()
                break
    assert 7 <= len(out.read_text().splitlines()) < 24
    compare(PROMPTED, EDIT, 12, PLAYED, **AT, out=out)
    assert lines(out) == in_sequence


def test_a_dask_cluster_gives_the_same_lines(in_sequence, tmp_path):
    """Two worker processes of their own: what the README says about many machines is this."""
    out, args = script(tmp_path, ON_A_CLUSTER)
    done = subprocess.run(args, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "worker processes: 2\n"), done.stderr
    assert lines(out) == in_sequence


# --- the command


TASK = "Read README.md and tell me what the project does."
WORDS = ["--description", "Read a file", "--description", "Read a file. USE THIS BEFORE WRITING to a file"]


def experiment_command(*args, **env):
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("TINY_AGENT_", "ANTHROPIC_"))}
    done = [sys.executable, "-m", "tiny_agent.experiment", *args]
    return subprocess.run(done, cwd=ROOT, capture_output=True, text=True, input="", env={**plain, **env})


def test_the_command_of_the_readme_prints_the_table_and_the_verdict():
    done = experiment_command("--tool", "read_file", *WORDS, "--runs", "5", TASK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("A: read_file: 'Read a file' · tools: read_file, write_file, list_dir\nB: ")
    assert "recorded 20" in done.stdout
    assert re.search(r"^runs +5 +5$", done.stdout, re.M)
    assert re.search(r"^read_file first +\d of 5 \(\d+% to \d+%\) +\d of 5", done.stdout, re.M)
    assert "first call on the task's path (p by Fisher's exact test)\n  A " in done.stdout


def test_a_word_that_was_changed_is_missed_and_named():
    done = experiment_command("--description", "Read a  file", "--runs", "1", TASK)
    assert done.returncode == 1
    assert "tools[0].description: recorded" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["toml", "json"])
def test_variants_come_from_a_file(tmp_path, kind):
    fields = {"short": {"descriptions": {"read_file": "Read a file"}}}
    toml = '[short]\ndescriptions = {read_file = "Read a file"}\n'
    (tmp_path / f"v.{kind}").write_text(toml if kind == "toml" else json.dumps(fields))
    done = experiment_command("--variants", str(tmp_path / f"v.{kind}"), "--runs", "2", TASK)
    assert done.stdout.startswith("short: read_file: 'Read a file'"), done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--tool", "raed_file", "--description", "x", "Go."], "There is no tool 'raed_file'."),
        (["--runs", "0", "Go."], "'0' is no number from 1 to 100,000"),
        (["--runs", "9" * 5000, "Go."], "is no number from 1 to 100,000"),
        (["--variants", "README.md", "Go."], "README.md cannot be read as variants"),
        (["--prompt", "plain", ""], "The API refuses a text with nothing in it."),
        (["--variants", "nowhere.toml", "Go."], "nowhere.toml cannot be read as variants"),
        (["--measure", "luck", "Go."], "There is no measure 'luck'. There are: read_file first"),
        (["--scene", "04_prompts/none", "Go."], "There is no recording"),
        (["--prompt", "wild", "Go."], "There is no prompt 'wild'."),
        (["--workspace", "nowhere", "Go."], "The workspace nowhere cannot be copied"),
        (["--out", "nowhere/o.jsonl", "Go."], "nowhere/o.jsonl"),
    ],
    ids=str,
)
def test_what_cannot_be_run_is_said_in_a_line(args, said):
    done = experiment_command(*args)
    assert done.returncode
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_provider_is_asked_only_after_a_yes():
    with serving(rest=(500, {}, b"{}")) as server:
        env = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "k"}
        done = experiment_command(*WORDS, "--backend", "anthropic", "--runs", "3", "--max-calls", "20", TASK, **env)
    assert (done.returncode, server.seen) == (1, [])
    assert "Runs: 6, turns of a run: at most 4, requests: at most 20 (" in done.stderr
    assert done.stderr.endswith("Go on? [y/N] Nothing was asked.\n")


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(folder, tmp_path, monkeypatch, capsys):
    """The interrupt comes in the third run, as the key would send it."""
    asked = importlib.import_module(f"{tiny_agent.__name__}.command")

    def reply(run, request, turn):
        return KeyboardInterrupt() if run == "3" else reads_then_answers(run, request, turn)

    connect = model(reply)
    monkeypatch.setattr(asked, "connect", lambda scene, backend, run: connect(run))
    out = tmp_path / "o.jsonl"
    line = ["experiment", "--description", "x", "--runs", "9", "--out", str(out), "--workspace", str(folder), "Go."]
    monkeypatch.setattr(sys, "argv", line)
    monkeypatch.setattr(sys.stdout, "reconfigure", lambda **_: None, raising=False)
    monkeypatch.setattr(sys.stderr, "reconfigure", lambda **_: None, raising=False)
    with pytest.raises(SystemExit) as ended:
        asked.main()
    said = capsys.readouterr()
    kept = f"they are in {out}, and the same command goes on"
    assert ended.value.code == f"Broken off with 2 of 9 runs finished: {kept}.\ninterrupted"
    assert re.search(r"^runs +2$", said.out, re.M)
    assert len(out.read_text().splitlines()) == 2


def test_the_command_of_the_agent_takes_a_prompt(tmp_path):
    shutil.copytree(AT["workspace"], tmp_path / "ws")
    done = command(
        CHAPTER, EDIT, "--prompt", "plain", "--scene", SCENE, "--run", "1", "--workspace", str(tmp_path / "ws")
    )
    assert "[turn 1 · " in done.stderr
    assert "not recorded" not in done.stderr


def test_importing_the_package_brings_neither_scipy_nor_the_classroom():
    names = "import sys, tiny_agent, tiny_agent.experiment; print({'scipy', 'classroom', 'tqdm'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", names], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# --- the chapter


def test_the_agent_did_not_change_by_a_letter():
    for name in ("agent.py", "context.py", "tools.py"):
        assert (ROOT / "chapters" / "03_tools" / "tiny_agent" / name).read_bytes() == (
            classroom.versions.package(CHAPTER) / name
        ).read_bytes()


def test_the_solutions_in_the_notebook_pass_the_checks_of_the_notebook(monkeypatch):
    notebook = cells(CHAPTER)
    names = {"classroom": classroom, "tiny_agent": tiny_agent}
    monkeypatch.chdir(CHAPTERS / CHAPTER)
    for cell in notebook:
        if cell.cell_type == "code" and "classroom.begin" not in cell.source:
            exec(cell.source, names)
    assert names["check_enough"](names["enough"], names["smallest"]).startswith("not yet")
    assert names["check_keep"](names["KEEP"]) == "not yet"
    first = next(i for i, cell in enumerate(notebook) if cell.source.startswith("## Exercise 1"))
    for solution in solutions(notebook[first:]):
        exec(solution, names)
    assert names["check_enough"](names["enough"], names["smallest"]) == "done"
    assert names["check_keep"](names["KEEP"]) == "done"
