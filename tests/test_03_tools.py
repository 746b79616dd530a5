"""Chapter 3: calls are checked and run in three layers, failures are told, and nothing that a model says breaks it."""

import concurrent.futures
import copy
import importlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading

import httpx
import hypothesis
import jsonschema
import pytest
from conftest import cells, command, solutions
from hypothesis import strategies as st
from test_01_loop import call, calls, says

import classroom
from classroom import timing
from classroom.versions import CHAPTERS

CHAPTER = "03_tools"
tiny_agent = classroom.version("v0.3")
Context, ContextError, run = tiny_agent.Context, tiny_agent.ContextError, tiny_agent.run
run_tool, validate_input, TOOLS = tiny_agent.run_tool, tiny_agent.validate_input, tiny_agent.TOOLS
MAX_OUTPUT = tiny_agent.tools.MAX_OUTPUT
FUZZ = int(os.environ.get("TINY_AGENT_FUZZ", "300"))  # `make fuzz` sets ten thousand


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "notes.txt").write_text("The key is under the blue pot.\n")
    return tmp_path


def tool_use(name, input, id="toolu_1"):
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def results(client):
    """The tool_result blocks of the last request."""
    return [b for b in client.exchanges[-1][0]["messages"][-1]["content"] if b["type"] == "tool_result"]


def told(folder, *blocks):
    """Play a reply with these blocks, and return the results that the model is sent."""
    client = classroom.scripted(calls(*blocks), says("Done."))
    run("Go.", client, workspace=folder)
    return results(client)


# --- the three tools


def test_read_file_gives_the_text(folder):
    assert run_tool("read_file", {"path": "notes.txt"}, folder) == {"content": "The key is under the blue pot.\n"}


@pytest.mark.parametrize(
    ("part", "text"),
    [({"offset": 4}, "key is under the blue pot.\n"), ({"limit": 3}, "The"), ({"offset": 4.0, "limit": 3.0}, "key")],
)
def test_read_file_gives_a_part(folder, part, text):
    assert run_tool("read_file", {"path": "notes.txt", **part}, folder) == {"content": text}


def test_write_file_replaces_what_was_there_and_counts_bytes(folder):
    assert run_tool("write_file", {"path": "notes.txt", "content": "é\n"}, folder) == {
        "content": "Wrote 3 bytes to notes.txt."
    }
    assert (folder / "notes.txt").read_bytes() == b"\xc3\xa9\n"


def test_write_file_makes_no_directories_and_its_description_says_so(folder):
    assert run_tool("write_file", {"path": "lists/a.txt", "content": "x"}, folder) == {
        "error": "No such file or directory: lists/a.txt"
    }
    assert not (folder / "lists").exists()
    assert "Does not make directories" in TOOLS[1]["description"]


def test_list_dir_gives_names_types_and_sizes_in_order(folder):
    (folder / "b").mkdir()
    (folder / "a.txt").write_text("é")
    assert json.loads(run_tool("list_dir", {"path": "."}, folder)["content"]) == [
        {"name": "a.txt", "type": "file", "size": 2},
        {"name": "b", "type": "directory"},
        {"name": "notes.txt", "type": "file", "size": 31},
    ]


def test_a_listing_names_dead_links_and_loops_and_a_pipe(folder):
    (folder / "dead").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    listed = json.loads(run_tool("list_dir", {"path": "."}, folder)["content"])
    assert [(entry["name"], entry["type"]) for entry in listed] == [
        ("dead", "unreadable"),
        ("loop", "unreadable"),
        ("notes.txt", "file"),
        ("pipe", "other"),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbfa = 1\r\nb = 2\r\n",
        b"\xef\xbb\xbf\xef\xbb\xbfb = 2",
        b"a = 1\rb = 2",
        b"a = 1\nb = 2\n",
        "é = 1\u2028b = 2".encode(),
    ],
    ids=["byte order mark and CRLF", "two byte order marks", "CR", "LF", "line separator"],
)
def test_reading_and_writing_back_changes_only_what_was_changed(folder, data):
    (folder / "f").write_bytes(data)
    text = run_tool("read_file", {"path": "f"}, folder)["content"]
    assert text.encode() == data.removeprefix(b"\xef\xbb\xbf")
    run_tool("write_file", {"path": "f", "content": text.replace("2", "3", 1)}, folder)
    assert (folder / "f").read_bytes() == data.replace(b"2", b"3", 1)


PATHS = {
    "a NUL": "a\0b",
    "a long name": "x" * 300,
    "a link to itself": "loop",
    "a directory": "sub",
    "nothing": "",
    "half a surrogate pair": "\ud800",
    "a pipe": "pipe",
    "a directory that is not there": "no/such",
    "a file as a directory": "notes.txt/x",
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("name", ["read_file", "write_file"])
def test_a_path_that_cannot_be_is_one_line_of_error_and_nothing_hangs(folder, name, path):
    (folder / "loop").symlink_to("loop")
    (folder / "sub").mkdir()
    os.mkfifo(folder / "pipe")
    input = {"path": path} if name == "read_file" else {"path": path, "content": "x"}
    outcome = []
    worker = threading.Thread(target=lambda: outcome.append(run_tool(name, input, folder)), daemon=True)
    worker.start()
    worker.join(timeout=10)
    assert outcome, "the tool hangs"
    assert list(outcome[0]) == ["error"]
    assert "\n" not in outcome[0]["error"]
    assert str(folder) not in outcome[0]["error"]


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize("name", ["read_file", "write_file", "list_dir"])
def test_an_error_is_the_same_on_every_machine(tmp_path, name, slash):
    """What the model is told is part of the next request, so a path of this machine in it would spoil a recording."""
    said = set()
    for folder in ("a", "a much longer 'name'"):
        (tmp_path / folder).mkdir()
        for path in ("no/file", "\ud800", "x" * 300):
            input = {"path": path, "content": "x"} if name == "write_file" else {"path": path}
            said.add(run_tool(name, input, f"{tmp_path / folder}{slash}")["error"])
    assert len(said) == 3
    assert str(tmp_path) not in str(said)


@pytest.mark.parametrize("path", [".", "", "a.txt"])
def test_a_workspace_that_is_not_there_is_an_error_without_its_path(tmp_path, path):
    assert str(tmp_path) not in run_tool("list_dir", {"path": path}, tmp_path / "missing")["error"]


def test_a_text_that_cannot_be_encoded_loses_nothing(folder):
    assert "error" in run_tool("write_file", {"path": "notes.txt", "content": "\ud800"}, folder)
    assert (folder / "notes.txt").read_text() == "The key is under the blue pot.\n"


def test_a_write_that_fails_leaves_the_file_as_it_was_and_no_draft(folder):
    """A limit on the size of files stands for a full disk: both fail in the middle of a write."""
    limited = f"""
import resource, signal
from pathlib import Path
import classroom
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
tools = classroom.version("v0.3").tools
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
print(tools.run_tool("write_file", {{"path": "notes.txt", "content": "x" * 5000}}, {str(folder)!r}))
"""
    done = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, check=True)
    assert done.stdout == "{'error': 'File too large: notes.txt'}\n"
    assert os.listdir(folder) == ["notes.txt"]
    assert (folder / "notes.txt").read_text() == "The key is under the blue pot.\n"


def test_a_link_stays_a_link_and_a_file_keeps_its_mode(folder):
    (folder / "notes.txt").chmod(0o751)
    (folder / "link").symlink_to("notes.txt")
    assert run_tool("write_file", {"path": "link", "content": "x"}, folder) == {"content": "Wrote 1 bytes to link."}
    assert (folder / "link").is_symlink()
    assert (folder / "notes.txt").read_text() == "x"
    assert (folder / "notes.txt").stat().st_mode & 0o777 == 0o751


def test_a_new_file_has_the_mode_that_any_new_file_has(folder):
    run_tool("write_file", {"path": "new", "content": "x"}, folder)
    (folder / "by hand").write_text("x")
    assert (folder / "new").stat().st_mode == (folder / "by hand").stat().st_mode


@pytest.mark.parametrize("workspace", [".", "ws"])
@pytest.mark.parametrize("path", ["../nope.txt", "./nope.txt", "aws/x.txt", "sub/../nope.txt"])
def test_an_error_names_the_path_as_the_model_gave_it(tmp_path, monkeypatch, workspace, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ws" / "sub").mkdir(parents=True)
    (tmp_path / "sub").mkdir()
    for name, rest in {"read_file": {}, "list_dir": {}}.items():
        assert run_tool(name, {"path": path, **rest}, workspace) == {"error": f"No such file or directory: {path}"}


@pytest.mark.parametrize("name", [["read_file"], {}, None, 7])
def test_a_name_that_is_no_text_is_a_tool_that_does_not_exist(folder, name):
    assert run_tool(name, {}, folder)["error"].startswith(f"There is no tool {name!r}.")


def test_a_tool_of_the_server_may_be_offered_and_is_not_run_here(folder):
    search = {"type": "web_search_20250305", "name": "web_search"}
    assert run_tool("web_search", {}, folder, [search, TOOLS[0]]) == {
        "error": "There is no tool 'web_search'. There are: read_file."
    }


@pytest.mark.parametrize("content", ["x\udcff", "\ud800"])
@pytest.mark.parametrize("path", ["notes.txt", "\udcff.txt"])
def test_half_a_letter_is_refused_before_anything_is_run(folder, path, content):
    outcome = run_tool("write_file", {"path": path, "content": content}, folder)
    assert "holds half of a letter" in outcome["error"]
    assert os.listdir(folder) == ["notes.txt"]


# --- one cap


def test_a_long_result_is_cut_at_the_cap_and_the_notice_says_how_to_go_on(folder):
    text = "é" * (MAX_OUTPUT - 1) + "🙂" + "x" * 100
    (folder / "long").write_text(text)
    content = run_tool("read_file", {"path": "long"}, folder)["content"]
    assert content.startswith("é" * (MAX_OUTPUT - 1) + "🙂\n[Cut off: ")
    assert "the first 20,000 of 20,100 characters" in content
    rest = run_tool("read_file", {"path": "long", "offset": MAX_OUTPUT}, folder)["content"]
    assert content[:MAX_OUTPUT] + rest == text


def test_two_megabytes_in_one_line_are_read_to_the_end_by_the_notice(folder):
    text = "".join(f"{i:06} " for i in range(300_000))
    (folder / "long").write_text(text)
    read, offset = "", 0
    while (part := run_tool("read_file", {"path": "long", "offset": offset}, folder)["content"]).endswith("more.]"):
        read, offset = read + part[:MAX_OUTPUT], offset + MAX_OUTPUT
    assert read + part == text


def test_a_long_listing_and_a_long_error_are_cut_too(folder, monkeypatch):
    for i in range(5000):
        (folder / f"{i:04}").touch()
    assert len(run_tool("list_dir", {"path": "."}, folder)["content"]) < MAX_OUTPUT + 300

    def fails(workspace, path):
        raise ValueError("x" * 300_000)

    monkeypatch.setitem(tiny_agent.tools.FUNCTIONS, "read_file", fails)
    assert len(run_tool("read_file", {"path": "a"}, folder)["error"]) < MAX_OUTPUT + 300
    assert len(run_tool("x" * 300_000, {}, folder)["error"]) < MAX_OUTPUT + 300
    assert len(run_tool("read_file", {"x" * 300_000: 1}, folder)["error"]) < MAX_OUTPUT + 300


# --- the check of the input


@pytest.mark.parametrize(
    ("input", "faults"),
    [
        ({"path": "a.txt"}, []),
        ({"path": "a.txt", "limit": 5}, []),
        ({"path": "a.txt", "limit": 30.0}, []),
        ([], ["input: expected an object, got an array"]),
        ("{}", ["input: expected an object, got a string"]),
        (None, ["input: expected an object, got null (a field without a value is left out)"]),
        ({}, ["input.path: missing"]),
        ({"path": 7}, ["input.path: expected a string, got an integer"]),
        ({"path": None}, ["input.path: expected a string, got null (a field without a value is left out)"]),
        (
            {"path": "a", "limit": None},
            ["input.limit: expected an integer, got null (a field without a value is left out)"],
        ),
        ({"path": "a", "limit": True}, ["input.limit: expected an integer, got a boolean"]),
        ({"path": "a", "limit": False}, ["input.limit: expected an integer, got a boolean"]),
        ({"path": "a", "limit": 0}, ["input.limit: expected 1 or more"]),
        ({"path": "a", "limit": -1}, ["input.limit: expected 1 or more"]),
        ({"path": "a", "limit": 1.5}, ["input.limit: expected an integer, got a number"]),
        ({"path": "a", "limit": float("nan")}, ["input.limit: expected an integer, got a number"]),
        ({"path": "a", "limt": 5}, ["input.limt: unknown, there are path, offset, limit"]),
        (
            {"limit": "5", "ofset": 1},
            [
                "input.path: missing",
                "input.ofset: unknown, there are path, offset, limit",
                "input.limit: expected an integer, got a string",
            ],
        ),
    ],
    ids=str,
)
def test_all_faults_are_named_in_the_words_of_json(input, faults):
    assert validate_input(TOOLS[0]["input_schema"], input) == faults


@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_is_no_number(value):
    schema = {"properties": {"n": {"type": "number"}}}
    assert validate_input(schema, {"n": value}) == ["input.n: expected a number, got a boolean"]
    assert validate_input(schema, {"n": 1}) == validate_input(schema, {"n": 1.5}) == []


def test_nan_is_below_any_minimum():
    schema = {"properties": {"n": {"type": "number", "minimum": 0}}}
    assert validate_input(schema, {"n": float("nan")}) == ["input.n: expected 0 or more"]


KINDS = ["object", "array", "string", "integer", "number", "boolean", "null"]
NAMES = st.sampled_from(["a", "b", "c", "path"])
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0.0, 1.0, -0.0, 30.0, 1e300])
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
SCHEMAS = st.recursive(
    st.fixed_dictionaries({}, optional={"type": st.sampled_from(KINDS) | st.lists(st.sampled_from(KINDS), min_size=1)}),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "object", *KINDS]),
            "required": st.lists(NAMES, unique=True, max_size=3),
            "properties": st.dictionaries(NAMES, inner | st.booleans(), max_size=4),
        },
    ),
    max_leaves=6,
)


@hypothesis.settings(max_examples=FUZZ, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(schema=SCHEMAS, input=JSON_VALUES)
def test_the_check_agrees_with_jsonschema_on_type_and_required(schema, input):
    schema = {"type": "object", **schema}  # as the API demands of an input_schema
    theirs = jsonschema.Draft202012Validator(schema).is_valid(input)
    assert (validate_input(schema, input) == []) is theirs


@hypothesis.settings(max_examples=FUZZ, deadline=None)
@hypothesis.given(schema=SCHEMAS, value=st.from_type(type).flatmap(st.from_type) | JSON_VALUES)
def test_the_check_never_raises(schema, value):
    assert isinstance(validate_input(schema, value), list)
    assert isinstance(validate_input(schema, {"a": value, "path": value}), list)


# --- three layers, in this order


def test_an_unknown_tool_is_told_with_those_that_there_are_before_its_input_is_looked_at(folder):
    assert run_tool("delete_file", ["not", "an", "object"], folder) == {
        "error": "There is no tool 'delete_file'. There are: read_file, write_file, list_dir."
    }
    assert run_tool("", {}, folder)["error"].startswith("There is no tool ''.")


def test_a_tool_that_was_not_offered_is_unknown_to_this_caller(folder):
    assert run_tool("write_file", {"path": "a", "content": "x"}, folder, TOOLS[:1]) == {
        "error": "There is no tool 'write_file'. There are: read_file."
    }
    assert not (folder / "a").exists()


def test_input_that_does_not_fit_never_reaches_the_tool(folder, monkeypatch):
    monkeypatch.setitem(tiny_agent.tools.FUNCTIONS, "read_file", lambda *a, **k: pytest.fail("the tool was run"))
    assert run_tool("read_file", {"path": 7}, folder) == {
        "error": "read_file was not run. input.path: expected a string, got an integer."
    }


@pytest.mark.parametrize(
    "error", [ValueError("x"), RuntimeError("Symlink loop"), MemoryError(), RecursionError("deep")]
)
def test_whatever_a_tool_raises_is_an_error_in_words(folder, monkeypatch, error):
    def fails(workspace, path):
        raise error

    monkeypatch.setitem(tiny_agent.tools.FUNCTIONS, "read_file", fails)
    assert run_tool("read_file", {"path": "a"}, folder)["error"].startswith(f"{type(error).__name__}: ")


# --- what the model is told


def test_a_failed_call_is_flagged_and_a_good_one_is_not(folder):
    good, bad = told(folder, call("read_file", "a", path="notes.txt"), call("read_file", "b", path="note.txt"))
    assert good == {"type": "tool_result", "tool_use_id": "a", "content": "The key is under the blue pot.\n"}
    assert bad == {
        "type": "tool_result",
        "tool_use_id": "b",
        "content": "No such file or directory: note.txt",
        "is_error": True,
    }


def test_every_call_of_a_reply_gets_its_result_in_order_whatever_one_of_them_does(folder):
    four = [
        call("read_flie", "1", path="notes.txt"),
        call("read_file", "2", path="notes.txt"),
        tool_use("read_file", [], "3"),
        call("list_dir", "4", path="."),
    ]
    assert [(r["tool_use_id"], r.get("is_error", False)) for r in told(folder, *four)] == [
        ("1", True),
        ("2", False),
        ("3", True),
        ("4", False),
    ]


def test_a_model_that_is_told_can_repair_its_call(folder):
    client = classroom.scripted(
        calls(tool_use("read_file", {}, "1")), calls(call("read_file", "2", path="notes.txt")), says("Under the pot.")
    )
    context = Context()
    assert run("Where?", client, workspace=folder, context=context) == "Under the pot."
    assert context.stopped == "end_turn"


@pytest.mark.parametrize("input", [None, {}, "absent"])
def test_no_input_at_all_is_an_empty_object_or_is_told(folder, input):
    block = {"type": "tool_use", "id": "1", "name": "list_dir"} | ({} if input == "absent" else {"input": input})
    assert told(folder, block)[0]["is_error"] is True


# --- ids


@pytest.mark.parametrize("id", ["tu_1", "", None, 7, "two words"])
def test_two_calls_with_one_id_each_get_their_own_result_and_the_change_is_noted(folder, id):
    context = Context()
    client = classroom.scripted(
        calls(call("list_dir", id, path="."), call("read_file", id, path="notes.txt")), says("Done.")
    )
    run("Go.", client, workspace=folder, context=context)
    _, reply, answer, _ = context.messages
    ids = [block["id"] for block in reply["content"]]
    assert len(set(ids)) == 2
    assert [(r["tool_use_id"], r["content"][:3]) for r in answer["content"]] == [(ids[0], '[{"'), (ids[1], "The")]
    assert len(context.notes) == (1 if id == "tu_1" else 2)
    assert f"had the id {id!r} and was given {ids[1]!r}" in context.notes[-1]
    context.check()


def test_an_id_of_an_earlier_turn_is_replaced_too(folder):
    context = Context()
    same = [calls(call("read_file", "tu_1", path="notes.txt")) for _ in range(3)]
    run("Go.", classroom.scripted(*same, says("Done.")), workspace=folder, context=context)
    ids = [block["id"] for message in context.messages[1:-1:2] for block in message["content"]]
    assert len(set(ids)) == 3
    assert json.loads(context.body())["messages"] == context.messages


# --- a history that the API takes


@pytest.mark.parametrize("input", [None, [], "{broken", 7, ["a", {"b": 1}]])
def test_an_input_that_is_no_object_is_stored_in_one_and_told_as_it_came(folder, input):
    context, client = Context(), classroom.scripted(calls(tool_use("read_file", input)), says("Done."))
    run("Go.", client, workspace=folder, context=context)
    assert context.messages[1]["content"][0]["input"] == {"invalid": input}
    assert "input: expected an object, got a" in results(client)[0]["content"] or input is None
    assert results(client)[0]["is_error"] is True
    assert context.notes == [f"A call of read_file had the input {input!r} and was given {{'invalid': {input!r}}}."]


@pytest.mark.parametrize(
    ("name", "stored"), [("", "_"), ("delete a file", "delete_a_file"), ("é\0", "__"), ("x" * 300, "x" * 64)]
)
def test_a_name_that_the_api_would_refuse_is_stored_in_another_form_and_told_as_it_came(folder, name, stored):
    """The API takes names of 1 to 64 letters, digits, _ and - (platform.claude.com/docs, "Define tools")."""
    context, client = Context(), classroom.scripted(calls(tool_use(name, {})), says("Done."))
    run("Go.", client, workspace=folder, context=context)
    assert context.messages[1]["content"][0]["name"] == stored
    assert results(client)[0]["content"].startswith(f"There is no tool {name!r}.")
    assert len(context.notes) == 1


def test_a_call_in_a_reply_that_says_it_is_done_is_run(folder):
    reply = {"stop_reason": "end_turn", "content": [call("read_file", "a", path="notes.txt")]}
    client = classroom.scripted(reply, says("Under the pot."))
    assert run("Where?", client, workspace=folder) == "Under the pot."
    assert results(client) == [
        {"type": "tool_result", "tool_use_id": "a", "content": "The key is under the blue pot.\n"}
    ]


@pytest.mark.parametrize("reason", ["refusal", "stop_sequence", "model_context_window_exceeded", "bored"])
def test_a_call_in_a_reply_that_stopped_for_another_reason_is_left_out_and_noted(folder, reason):
    context = Context()
    reply = {
        "stop_reason": reason,
        "content": [{"type": "text", "text": "x"}, call("write_file", path="a", content="")],
    }
    run("Go.", classroom.scripted(reply), workspace=folder, context=context)
    assert context.stopped.startswith(reason)
    assert context.notes == [f"Left out: a call of write_file, in a {reason}."]
    assert not (folder / "a").exists()
    context.check()


# --- giving up


def test_a_run_that_ends_at_the_limit_of_turns_does_not_return_words_of_the_model(folder):
    context = Context(turn_limit=2)
    talk = [calls({"type": "text", "text": "All done!"}, call("read_file", f"{i}", path="notes.txt")) for i in range(2)]
    said = run("Go.", classroom.scripted(*talk), workspace=folder, context=context)
    assert (said, context.stopped) == ("Gave up: no answer within the limit of turns (2)", "turn_limit")


def test_a_run_that_repeats_a_failing_call_gives_up_and_says_so(folder):
    context = Context()
    client = classroom.scripted(
        *[calls({**call("read_file", f"t{i}", path="note.txt")}, {"type": "text", "text": "Done!"}) for i in range(9)]
    )
    said = run("Go.", client, workspace=folder, context=context)
    assert said == "Gave up: 3 times in this run: No such file or directory: note.txt"
    assert context.stopped == "repeated_failure"
    assert len(client.exchanges) == 3
    context.check()  # every call has its result, so the context can be run on


def test_the_same_failure_in_one_reply_counts_once(folder):
    three = calls(*[call("read_file", f"t{i}", path="note.txt") for i in range(3)])
    assert run("Go.", classroom.scripted(three, says("Done.")), workspace=folder) == "Done."


def test_failures_that_differ_do_not_end_a_run(folder):
    context = Context()
    different = [calls(call("read_file", f"t{i}", path=f"{i}.txt")) for i in range(6)]
    assert run("Go.", classroom.scripted(*different, says("Done.")), workspace=folder, context=context) == "Done."


def test_the_same_call_that_works_may_be_repeated(folder):
    again = [calls(call("read_file", f"t{i}", path="notes.txt")) for i in range(6)]
    assert run("Go.", classroom.scripted(*again, says("Done.")), workspace=folder) == "Done."


def cut(*blocks, tokens=1024):
    return {"stop_reason": "max_tokens", "content": list(blocks), "usage": {"input_tokens": 1, "output_tokens": tokens}}


def test_a_reply_that_was_cut_off_runs_nothing_and_the_model_is_told(folder):
    half = tool_use("write_file", {"path": "r.md", "content": "# Title\n## One\nhalf a sen"})
    client = classroom.scripted(cut(call("read_file", "a", path="notes.txt"), half), says("Done."))
    assert run("Write.", client, workspace=folder) == "Done."
    assert not (folder / "r.md").exists()
    assert [(r["tool_use_id"], r["is_error"]) for r in results(client)] == [("a", True), ("toolu_1", True)]
    assert "cut off at 1024 tokens" in results(client)[1]["content"]
    assert "in parts" in results(client)[1]["content"]


def test_a_run_stops_after_three_replies_that_were_cut_off(folder):
    context = Context()
    halves = [cut(tool_use("write_file", {"path": f"{i}"}, f"t{i}"), tokens=1000 + i) for i in range(9)]
    client = classroom.scripted(*halves)
    assert run("Write.", client, workspace=folder, context=context) == "Gave up: 3 times in this run: reply cut off"
    assert (context.stopped, len(client.exchanges)) == ("max_tokens", 3)


# --- replies that are no messages


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no JSON"),
        (b"<html>", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "expected an object, got an array"),
        (b"{}", "reply.content: missing; reply.stop_reason: missing; reply.usage: missing"),
        (b'{"content": null, "stop_reason": "end_turn", "usage": {}}', "reply.content: expected an array, got null"),
        (b'{"content": [7], "stop_reason": "end_turn", "usage": {}}', "expected an object, got an integer"),
        (b'{"content": [{}], "stop_reason": "end_turn", "usage": {}}', "reply.content[0].type: missing"),
        (b'{"content": [{"type": "text"}], "stop_reason": "end_turn", "usage": {}}', "reply.content[0].text: missing"),
        (
            b'{"content": [{"type": "tool_use"}], "stop_reason": "tool_use", "usage": {}}',
            "reply.content[0].name: missing",
        ),
        (
            b'{"content": [], "stop_reason": "end_turn", "usage": {"input_tokens": "5"}}',
            "reply.usage.input_tokens: expected an integer or null, got a string",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_reply_that_is_no_message_stops_the_run_and_is_not_stored(body, said):
    context = Context()
    client = httpx.Client(
        transport=httpx.MockTransport(lambda _: httpx.Response(200, content=body)), base_url="http://x"
    )
    assert run("Go.", client, context=context).startswith("Gave up: The reply is no ")
    assert context.stopped.startswith("malformed_reply (")
    assert said in context.stopped
    assert context.messages == [{"role": "user", "content": "Go."}]


def test_a_result_in_a_reply_stops_the_run_too():
    context, result = Context(), {"type": "tool_result", "tool_use_id": "1", "content": "x"}
    said = run("Go.", classroom.scripted({"content": [result], "stop_reason": "end_turn"}), context=context)
    assert said.startswith("Gave up: A message of the role 'assistant' cannot hold this")
    assert context.messages == [{"role": "user", "content": "Go."}]


@pytest.mark.parametrize("count", [-1, 10**400, 1e400, [1], "5"])
@pytest.mark.parametrize("kind", ["input_tokens", "cache_read_input_tokens", "output_tokens"])
def test_a_number_of_tokens_that_cannot_be_is_no_message(kind, count):
    usage = json.dumps({kind: count, "cache_creation_input_tokens": 1.0})
    body = f'{{"content": [], "stop_reason": "end_turn", "usage": {usage}}}'
    client = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, text=body)), base_url="http://x")
    context = Context(compact_above=1)
    run("Go.", client, context=context)
    assert f"reply.usage.{kind}: expected" in context.stopped


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "9" * 400])
def test_a_number_that_json_does_not_have_is_told_and_the_next_request_is_json(folder, number):
    body = """{"stop_reason": "tool_use", "usage": {}, "content": [
        {"type": "tool_use", "id": "1", "name": "read_file", "input": {"path": "notes.txt", "limit": %s}}]}"""
    done = json.dumps({**says("Done."), "usage": {}})
    replies = iter([body % number, done])
    requests = []

    def answer(request):
        requests.append(json.loads(request.content, parse_constant=pytest.fail))
        return httpx.Response(200, text=next(replies))

    client = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://x")
    assert run("Go.", client, workspace=folder) == "Done."
    sent = requests[1]["messages"][2]["content"][0]
    assert sent["is_error"] is True
    assert "input.limit: expected an integer, got a string" in sent["content"]


def test_an_empty_reply_is_no_answer():
    context = Context()
    run("Go.", classroom.scripted({"stop_reason": "end_turn", "content": []}), context=context)
    assert context.stopped == "empty_reply"


def test_a_summary_that_is_no_message_replaces_nothing():
    context = Context()
    for message in ("a", "b", "c", "d"):
        context.append({"role": "user" if message in "ac" else "assistant", "content": message})
    before = context.messages
    tiny_agent.compact(context, classroom.scripted({"content": 7}), "m", keep=1)
    assert (context.messages, context.archive) == (before, [])


# --- whatever comes


GOOD = [
    calls(call("read_file", "1", path="notes.txt"), call("list_dir", "2", path=".")),
    {
        "stop_reason": "tool_use",
        "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, call("list_dir")],
    },
    calls(call("write_file", "3", path="new.txt", content="x")),
    says("Done."),
    {"stop_reason": "pause_turn", "content": [{"type": "server_tool_use", "id": "s", "name": "search", "input": {}}]},
]
WORDS = [
    "",
    "tool_use",
    "text",
    "tool_result",
    "max_tokens",
    "end_turn",
    "read_file",
    "1",
    ".",
    "a\0b",
    "\ud800",
    "x" * 70_000,
]
STRANGE = JSON_VALUES | st.sampled_from([*WORDS, float("nan"), float("inf"), 10**400, [[[[[[]]]]]], {"type": "text"}])


@st.composite
def mutated(draw):
    """A good reply with up to three of its places dropped, doubled, retyped or nested."""
    reply = json.loads(json.dumps({**draw(st.sampled_from(GOOD)), "usage": {"input_tokens": 1, "output_tokens": 1}}))
    for _ in range(draw(st.integers(0, 3))):
        holder = reply
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(holder[key], dict | list) and draw(st.integers(0, 3)):
                holder = holder[key]
                continue
            match draw(st.sampled_from(["drop", "double", "retype", "nest"])):
                case "drop":
                    del holder[key]
                case "double" if isinstance(holder, list):
                    holder.append(holder[key])
                case "double":
                    holder[f"{key}{key}"] = holder[key]
                case "retype":
                    holder[key] = copy.deepcopy(draw(STRANGE))
                case "nest":
                    for _ in range(draw(st.sampled_from([1, 2, 300]))):
                        holder[key] = draw(st.sampled_from([[holder[key]], {"content": holder[key]}]))
            break
    return reply


@hypothesis.settings(max_examples=FUZZ, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(replies=st.lists(mutated(), min_size=1, max_size=5), compact_above=st.sampled_from([None, 0]))
def test_nothing_that_a_model_says_breaks_the_loop(tmp_path_factory, replies, compact_above):
    waiting = iter([*replies, *itertools.repeat({**says("Done."), "usage": {}}, 20)])

    def answer(request):
        json.loads(request.content.decode(), parse_constant=pytest.fail)  # what is sent is JSON in UTF-8
        return httpx.Response(200, content=json.dumps(next(waiting)).encode())

    folder = tmp_path_factory.getbasetemp() / "fuzz"
    folder.mkdir(exist_ok=True)
    (folder / "notes.txt").write_text("The key.\n")
    context = Context(compact_above=compact_above)
    client = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://x")
    assert isinstance(run("Go.", client, workspace=folder, context=context), str)
    assert context.stopped
    context.check()
    json.loads(context.body().decode(), parse_constant=pytest.fail)
    context.save(folder / "context.json")
    assert Context.load(folder / "context.json").body() == context.body()


@pytest.mark.parametrize("depth", [1, 95, 96, 97, 330, 480, 500, 950, 990, 1000, 2000])
def test_a_reply_nested_to_any_depth_is_run_and_can_be_saved_or_is_refused(folder, depth):
    """Near the limit of Python's own parser a text may be read that cannot be written any more."""
    deep = "[" * depth + "]" * depth
    body = f'{{"content": [{{"type": "tool_use", "id": "1", "name": "read_file", "input": {{"path": {deep}}}}}],'
    body += '"stop_reason": "tool_use", "usage": {}}'
    replies = iter([body, json.dumps({**says("Done."), "usage": {}})])
    client = httpx.Client(
        transport=httpx.MockTransport(lambda _: httpx.Response(200, text=next(replies))), base_url="http://x"
    )
    context = Context()
    run("Go.", client, workspace=folder, context=context)
    assert context.stopped == "end_turn" if depth <= 96 else context.stopped.startswith("malformed_reply")
    context.check()
    context.save(folder / "context.json")
    assert Context.load(folder / "context.json").messages == context.messages


def test_a_context_that_was_saved_whole_may_have_any_limits(tmp_path):
    for context in (Context(turn_limit=0), Context(compact_above=0.5), Context(turn_limit=5)):
        context.save(tmp_path / "c.json")
        assert vars(Context.load(tmp_path / "c.json")) == vars(context)


def test_two_who_save_to_one_file_never_leave_half_of_it(tmp_path):
    """Each writes a draft of its own."""
    context = Context()
    context.append({"role": "user", "content": "x" * 100_000})

    def save_and_load():
        for _ in range(20):
            context.save(tmp_path / "c.json")
            assert Context.load(tmp_path / "c.json").messages == context.messages

    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        for done in [executor.submit(save_and_load) for _ in range(4)]:
            done.result()
    assert os.listdir(tmp_path) == ["c.json"]


def test_a_run_goes_on_after_a_malformed_reply_to_a_paused_one(folder):
    paused = {"stop_reason": "pause_turn", "content": [{"type": "text", "text": "So far."}]}
    context = Context()
    run("Go.", classroom.scripted(paused, {"content": None}), workspace=folder, context=context)
    assert context.stopped.startswith("malformed_reply")
    assert run(None, classroom.scripted(says("Done.")), workspace=folder, context=context) == "Done."


@pytest.mark.parametrize(
    "saved",
    [
        "",
        "7",
        "[]",
        "{}",
        "[" * 5000,
        '{"messages": null}',
        '{"messages": [7]}',
        '{"messages": [{"role": "user"}]}',
        '{"messages": [{"role": "user", "content": null}]}',
        '{"messages": [{"role": "user", "content": [7]}]}',
        '{"messages": [{"role": "user", "content": [{"type": "tool_use", "id": []}]}]}',
        '{"messages": [{"role": "assistant", "content": "x"}]}',
        '{"messages": [], "turn_limit": "20"}',
        '{"messages": [], "turn_limit": -1}',
        '{"messages": [], "turn_limit": Infinity}',
        '{"messages": [{"role": "user", "content": [{"type": "x", "n": NaN}]}]}',
        '{"messages": [], "usage": 7}',
        '{"messages": [], "usage": [7]}',
        '{"messages": [], "usage": [{"input_tokens": "x"}]}',
        '{"messages": [], "compact_above": []}',
        '{"messages": [], "_history": ""}',
        '{"messages": [], "check": 7}',
        '{"messages": [], "more": 7}',
    ],
    ids=lambda value: value[:60],
)
def test_a_file_that_holds_no_context_is_refused_in_words(tmp_path, saved):
    (tmp_path / "c.json").write_text(saved)
    with pytest.raises(ContextError, match=r"c\.json holds no saved context of this version"):
        Context.load(tmp_path / "c.json")


# --- the chapter and the command


def test_the_solutions_in_the_notebook_pass_the_checks_of_the_notebook(monkeypatch):
    notebook = cells(CHAPTER)
    first = next(i for i, cell in enumerate(notebook) if cell.source.startswith("## Exercise 1"))
    names = {"tiny_agent": tiny_agent, "classroom": classroom, "tempfile": tempfile}
    monkeypatch.chdir(CHAPTERS / CHAPTER)
    wanted = ("def first_call", "READ = ")
    for i, cell in enumerate(notebook):
        if cell.cell_type == "code" and (i > first or any(w in cell.source for w in wanted)):
            exec(cell.source.split("\n\n\nNOTES =")[0].split("\n\n\ndef bare")[0], names)
    assert names["check_check"](names["my_check"]).startswith("not yet")
    assert names["check_counts"](names["COUNTS"]) == "not yet: short"
    check, counts = solutions(notebook[first:])
    exec(check, names)
    assert names["check_check"](names["my_check"]) == "done"
    exec(counts, names)
    assert names["check_counts"](names["COUNTS"]) == "done"


def test_the_command_answers_the_default_task_of_make_run_from_its_own_recording():
    done = command(CHAPTER, "Read notes.txt and tell me what it says.")
    assert done.returncode == 0
    assert "The key is under the blue pot." in done.stdout
    assert re.search(r"\[turn 1 · read_file notes.txt · in=\d+ out=\d+\]\n\[turn 2 · end_turn", done.stderr)


def test_the_command_prints_a_line_for_a_reply_that_is_no_message(capsys):
    tiny_agent_main = importlib.import_module(f"{tiny_agent.__name__}.__main__")
    strange = {**calls(tool_use("write_file", ["a\nb", 7]), tool_use("f", None)), "usage": {}}
    for body in ({}, strange):
        tiny_agent_main.print_turn(1, httpx.Response(200, json=body))
    assert capsys.readouterr().err.splitlines() == [
        "[turn 1 · The reply is no message (reply.content: missing; reply.stop_reason: missing; "
        "reply.usage: missing).]",
        "[turn 1 · write_file ['a\\nb', 7], f None · in=0 out=None]",
    ]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--workspace", "nowhere"], "--workspace nowhere is no folder"),
        (["--context", "nowhere/c.json"], "--context nowhere/c.json is no file, or in a folder that is not there"),
        (["--context", "x" * 300], "File name too long: '" + "x" * 300 + "'"),
        (["--context", "."], "--context . is no file, or in a folder that is not there"),
    ],
    ids=str,
)
def test_the_command_refuses_a_path_that_is_not_there_before_anything_is_asked(option, said):
    done = command(CHAPTER, "Go.", *option)
    assert done.returncode
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].endswith(said)


def test_the_command_prints_what_no_terminal_takes_in_another_form(tmp_path, monkeypatch):
    main = importlib.import_module(f"{tiny_agent.__name__}.__main__")
    client = classroom.scripted(calls(call("a\x1b[2Jb", path="\ud800\0")), says("half: \ud800"))
    client.source, client.model = "scripted", "m"
    monkeypatch.setattr(main, "connect", lambda *a, **k: client)
    monkeypatch.setattr(sys, "argv", ["tiny_agent", "Go.", "--workspace", str(tmp_path)])
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    main.main()
    assert out.buffer.getvalue() == b"half: ?\n"
    assert "[turn 1 · a\N{REPLACEMENT CHARACTER}[2Jb " in err.buffer.getvalue().decode()


def test_the_price_of_a_turn_is_still_the_same_late_as_early():
    assert timing.turn_cost(tiny_agent, turns=400, early=50)["late / early"] < 3
