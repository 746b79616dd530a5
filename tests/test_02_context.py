"""Chapter 2: the context holds, pairs, merges, compacts and survives; the loop names why it stopped."""

import itertools
import json

import httpx
import hypothesis
import pytest
from conftest import cells, command, solutions
from hypothesis import strategies as st
from test_01_loop import call, calls, says

import classroom
from classroom import timing
from classroom.versions import CHAPTERS

CHAPTER = "02_context"
tiny_agent = classroom.version("v0.2")
Context, ContextError, run = tiny_agent.Context, tiny_agent.ContextError, tiny_agent.run
WORKSPACE = CHAPTERS / CHAPTER / "workspace"


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def text(words):
    return {"type": "text", "text": words}


def result(id, content="ok"):
    return {"type": "tool_result", "tool_use_id": id, "content": content}


def context_of(*messages, **settings):
    context = Context(**settings)
    for message in messages:
        context.append(message)
    return context


# --- the request


def test_the_request_is_this():
    context = context_of({"role": "user", "content": "Hi."}, system="Be brief.")
    assert json.loads(context.body(model="m", max_tokens=9, tools=tiny_agent.TOOLS)) == {
        "model": "m",
        "max_tokens": 9,
        "tools": tiny_agent.TOOLS,
        "system": "Be brief.",
        "cache_control": {"type": "ephemeral"},
        "messages": [{"role": "user", "content": "Hi."}],
    }


def test_each_request_begins_with_the_bytes_of_the_one_before():
    """The fact that makes prompt caching work, and a turn cheap: the history only grows."""
    bodies = []

    def answer(request):
        bodies.append(request.content)
        n = len(bodies)
        reply = calls(call("read_file", f"toolu_{n}", path="notes.txt")) if n < 6 else says("Done.")
        return httpx.Response(200, json={**reply, "usage": {"input_tokens": 1, "output_tokens": 1}})

    client = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://x")
    run("Go.", client, workspace=WORKSPACE)
    assert len(bodies) == 6
    for before, after in itertools.pairwise(bodies):
        assert after.startswith(before.removesuffix(b"]}"))


@pytest.mark.parametrize("words", ["é", '"\\\n', "\x00", "日本 🙂"])
def test_any_text_can_be_sent_and_comes_back(words):
    context = context_of({"role": "user", "content": words})
    assert json.loads(context.body())["messages"] == context.messages == [{"role": "user", "content": words}]


def test_blocks_that_the_loop_does_not_know_are_sent_back_as_they_came():
    thinking = {"type": "thinking", "thinking": "hm", "signature": "EqQB/+=", "x": {"b": 1, "a": [1.50, None]}}
    server = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "é"}}
    paused = {"stop_reason": "pause_turn", "content": [thinking, server]}
    client = classroom.scripted(paused, says("Done."))
    run("Search.", client)
    assert json.dumps(client.exchanges[1][0]["messages"][1]["content"]) == json.dumps([thinking, server])


def test_half_a_surrogate_pair_is_replaced_before_it_makes_every_later_request_invalid():
    context = Context()
    run("Go.", classroom.scripted(says("half \ud83d, whole \ud83d\ude42")), context=context)
    sent = context.body().decode()  # strict UTF-8
    assert "half ?" in sent


def test_a_blank_text_in_a_reply_is_not_sent_back():
    context = Context()
    blank = {"stop_reason": "tool_use", "content": [text(" \n"), call("read_file", path="notes.txt")]}
    run("Go.", classroom.scripted(blank, says("Done.")), workspace=WORKSPACE, context=context)
    assert context.messages[1] == assistant(call("read_file", path="notes.txt"))


def test_a_run_without_a_task_does_not_go_on_from_an_answer():
    context = Context()
    with pytest.raises(ContextError, match="nothing to answer"):
        run(None, classroom.scripted(), context=context)
    run("Go.", classroom.scripted(says("Done.")), context=context)
    with pytest.raises(ContextError, match="nothing to answer"):
        run(None, classroom.scripted(), context=context)
    assert context.stopped == "end_turn"


def test_a_run_that_reached_its_limit_in_a_pause_goes_on_without_a_task():
    context = Context(turn_limit=1)
    run("Go.", classroom.scripted({"stop_reason": "pause_turn", "content": [text(".")]}), context=context)
    assert run(None, classroom.scripted(says("Done.")), context=context) == "Done."


def test_a_change_to_the_decoded_copy_changes_nothing():
    context = context_of({"role": "user", "content": "Hi."})
    context.messages[0]["content"] = "Bye."
    context.messages.clear()
    assert context.messages == [{"role": "user", "content": "Hi."}]


# --- pairing and merging


def test_results_are_put_before_the_text_beside_them_and_nothing_is_lost():
    context = context_of(
        user(text("q")), assistant(call("read_file", "c1")), user(text("also use metric"), result("c1"))
    )
    assert context.messages[2] == user(result("c1"), text("also use metric"))


def test_messages_of_the_same_role_in_a_row_are_joined_in_order():
    context = context_of(
        {"role": "user", "content": "one"}, user(text("two")), assistant(text("a")), assistant(text("b"))
    )
    assert context.messages == [user(text("one"), text("two")), assistant(text("a"), text("b"))]


def test_results_that_come_one_by_one_are_joined_too():
    two = assistant(call("read_file", "c1"), call("read_file", "c2"))
    context = context_of(user(text("q")), two, user(result("c2")), user(text("wait")), user(result("c1")))
    assert context.messages[2] == user(result("c2"), result("c1"), text("wait"))
    assert context.open_calls == []


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([assistant(text("hi"))], "begins with what the user says"),
        ([user(result("c1"))], "answer no open call: c1"),
        ([user(text("q")), assistant(call("f", "c1")), assistant(text("x"))], r"No result yet for the calls f \(c1\)"),
        ([user(text("q")), assistant(call("f", "c1")), user(result("c2"))], "answer no open call: c2"),
        (
            [user(text("q")), assistant(call("f", "c1")), user(result("c1"), result("c1"))],
            "answer no open call: c1, c1",
        ),
        ([user(text("q")), assistant(call("f", "c1")), user(result("c1")), user(result("c1"))], "answer no open call"),
        ([user(text("q")), assistant(call("f", "c1"), call("g", "c1"))], "Two calls share an id"),
        ([user(text("q")), assistant(call("f", ""), call("g", ""))], "Two calls share an id"),
        (
            [user(text("q")), assistant(call("f", "c1")), user(result("c1")), assistant(call("f", "c1"))],
            "earlier call: c1",
        ),
        ([{"role": "user", "content": []}], "begins with what the user says"),
        ([user(text(" \n"))], "a text with nothing in it"),
        ([{"role": "user", "content": ""}], "a text with nothing in it"),
        ([user(text("q")), assistant(text(""))], "a text with nothing in it"),
        ([user(text("q")), {"role": "system", "content": "x"}], "role 'system'"),
        ([user(text("q")), user(call("f", "c1"))], "calls are the assistant's"),
        ([user(text("q")), assistant(result("c1"))], "results yours"),
    ],
)
def test_what_the_api_would_refuse_is_refused_here_and_not_added(messages, said):
    *good, bad = messages
    context = context_of(*good)
    before = (context.messages, context.open_calls)
    with pytest.raises(ContextError, match=said):
        context.append(bad)
    assert (context.messages, context.open_calls) == before


def test_a_history_with_an_open_call_is_not_sent():
    context = context_of(user(text("q")), assistant(call("read_file", "c1")))
    with pytest.raises(ContextError, match=r"No result yet for the calls read_file \(c1\)"):
        context.body()


@pytest.mark.parametrize("bad", [b"bytes", object(), {1, 2}])
def test_what_is_no_json_is_not_added_and_loses_nothing(bad):
    context = context_of({"role": "user", "content": "precious"}, assistant(call("f", "c1")))
    before = (context.messages, context.open_calls)
    with pytest.raises(TypeError):
        context.append(user(result("c1", bad)))
    assert (context.messages, context.open_calls) == before


def test_a_task_is_not_added_to_a_history_that_cannot_be_sent():
    context = context_of(user(text("q")), assistant(call("read_file", "c1")))
    with pytest.raises(ContextError, match="No result yet"):
        run("And now?", classroom.scripted(), context=context)
    assert len(context.messages) == 2


# --- why a run stops


@pytest.mark.parametrize(
    "reason", ["end_turn", "stop_sequence", "refusal", "model_context_window_exceeded", "max_tokens"]
)
def test_the_reason_is_named(reason):
    context = Context()
    said = run("Go.", classroom.scripted({"stop_reason": reason, "content": [text("so far")]}), context=context)
    assert (said, context.stopped) == ("so far", reason)


def test_a_reason_that_nobody_knows_yet_stops_and_is_named():
    context = Context()
    run("Go.", classroom.scripted({"stop_reason": "bored", "content": [text("meh")]}), context=context)
    assert context.stopped == "bored (this version cannot go on from it)"


@pytest.mark.parametrize("reason", ["max_tokens", "refusal", "end_turn"])
def test_a_call_in_a_reply_that_did_not_stop_for_it_is_neither_run_nor_kept(tmp_path, reason):
    context = Context()
    cut = {"stop_reason": reason, "content": [text("I write"), call("read_file", path="not")]}
    run("Go.", classroom.scripted(cut), workspace=tmp_path, context=context)  # reading `not` would raise
    assert context.stopped == reason
    assert context.messages[1:] == [assistant(text("I write"))]
    assert run("Go on.", classroom.scripted(says("Done.")), context=context) == "Done."


def test_a_reply_that_says_tool_use_and_calls_nothing_ends_the_run():
    context = Context()
    run("Go.", classroom.scripted({"stop_reason": "tool_use", "content": [text("hm")]}), context=context)
    assert context.stopped == "tool_use (this version cannot go on from it)"


def test_a_model_that_never_stops_is_stopped_by_the_turn_limit():
    context = Context(turn_limit=3)
    again = [calls(call("read_file", f"t{i}", path="notes.txt")) for i in range(9)]
    client = classroom.scripted(*again)
    run("Go.", client, workspace=WORKSPACE, context=context)
    assert (context.stopped, len(client.exchanges)) == ("turn_limit", 3)


def test_a_server_that_pauses_for_ever_is_stopped_by_the_turn_limit():
    context = Context(turn_limit=4)
    client = classroom.scripted(*[{"stop_reason": "pause_turn", "content": [text(".")]}] * 9)
    run("Go.", client, context=context)
    assert (context.stopped, len(client.exchanges)) == ("turn_limit", 4)


def test_an_empty_reply_is_an_empty_answer_and_is_not_sent_back():
    context = Context()
    assert run("Go.", classroom.scripted({"stop_reason": "end_turn", "content": []}), context=context) == ""
    assert context.messages == [{"role": "user", "content": "Go."}]


# --- the crash, and after it


def test_the_run_still_dies_of_a_tool_and_the_context_is_mended_and_run_on(tmp_path):
    context = Context()
    with pytest.raises(FileNotFoundError):
        run("Where?", classroom.scripted(calls(call("read_file", path="no.txt"))), workspace=tmp_path, context=context)
    assert context.stopped is None
    assert [c["input"]["path"] for c in context.open_calls] == ["no.txt"]

    context.append(user(result("toolu_1", "There is no file no.txt.")))
    client = classroom.scripted(says("I do not know."))
    assert run(None, client, context=context) == "I do not know."
    assert client.exchanges[0][0]["messages"] == [
        {"role": "user", "content": "Where?"},
        assistant(call("read_file", path="no.txt")),
        user(result("toolu_1", "There is no file no.txt.")),
    ]


def test_a_context_is_saved_loaded_and_run_on_with_the_same_bytes(tmp_path):
    context = Context("Be brief.", turn_limit=7, compact_above=99)
    run(
        "One.",
        classroom.scripted(calls(call("read_file", path="notes.txt")), says("1")),
        workspace=WORKSPACE,
        context=context,
    )
    context.save(tmp_path / "context.json")
    loaded = Context.load(tmp_path / "context.json")
    assert vars(loaded) == {**vars(context), "_ids": loaded._ids}
    assert loaded.body(model="m") == context.body(model="m")
    assert run("Two.", classroom.scripted(says("2")), context=loaded) == "2"


def test_a_context_with_an_open_call_survives_too(tmp_path):
    context = context_of(user(text("q")), assistant(call("read_file", "c1")))
    context.save(tmp_path / "context.json")
    assert Context.load(tmp_path / "context.json").open_calls == [call("read_file", "c1")]


def test_a_saved_context_may_be_mended_in_the_file(tmp_path):
    file = tmp_path / "context.json"
    context_of(user(text("q")), assistant(call("read_file", "c1"))).save(file)
    saved = json.loads(file.read_text())
    saved["messages"].append(user(result("c1")))
    file.write_text(json.dumps(saved))
    assert Context.load(file).open_calls == []


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"messages": [], "colour": 1}'])
def test_a_file_that_holds_no_context_is_said_in_a_line(tmp_path, content):
    (tmp_path / "context.json").write_text(content)
    with pytest.raises(ContextError, match=r"context.json holds"):
        Context.load(tmp_path / "context.json")


def test_the_command_answers_the_default_task_of_make_run_from_its_own_recording():
    done = command(CHAPTER, "Read notes.txt and tell me what it says.")
    assert (done.returncode, done.stdout) == (0, "The key is under the blue pot.\n")


def test_the_command_goes_on_from_the_context_of_a_crash(tmp_path):
    file = tmp_path / "context.json"
    crash = command(
        CHAPTER, "What is on my shopping list?", "--run", "1", "--scene", f"{CHAPTER}/crash", "--context", str(file)
    )
    assert crash.stderr.endswith("No such file or directory: 'workspace/my_shopping_list.txt'\n")
    again = command(CHAPTER, "And now?", "--scene", f"{CHAPTER}/crash", "--context", str(file))
    assert "No result yet for the calls read_file" in again.stderr
    assert "Traceback" not in again.stderr
    assert Context.load(file).open_calls[0]["input"] == {"path": "my_shopping_list.txt"}


# --- compaction


def a_history(data):
    """A random history that the API would take, of user texts, answers, and exchanges of one to three calls."""
    messages = [user(text("task"))]
    for i, kind in enumerate(data):
        if kind == 0:
            messages += [assistant(text(f"answer {i}")), user(text(f"question {i}"))]
        else:
            ids = [f"c{i}_{j}" for j in range(kind)]
            messages += [assistant(*[call("f", id) for id in ids]), user(*[result(id) for id in ids])]
    return messages


@hypothesis.given(data=st.lists(st.integers(0, 3), max_size=12), keep=st.integers(1, 6))
def test_a_cut_never_parts_a_call_from_its_result_and_nothing_is_lost(data, keep):
    context = context_of(*a_history(data))
    messages = context.messages
    cut = tiny_agent.safe_cut(messages, keep)
    assert len(messages) - cut >= min(keep, len(messages))
    if cut < 2:
        return
    context.summarised("short", cut)  # append refuses a history that does not pair
    assert context.open_calls == []
    first, *kept = context.messages
    assert first["role"] == "user"
    assert first["content"][:2] == [text("task"), text("What was done so far, in short: short")]
    assert [*context.archive, user(*first["content"][2:]), *kept][-len(kept) :] == messages[-len(kept) :]
    assert context.archive == messages[:cut]


@pytest.mark.parametrize(
    "bad",
    [
        {"stop_reason": "refusal", "content": []},
        {"stop_reason": "max_tokens", "content": [{"type": "text", "text": "ha"}]},
    ],
)
def test_a_summary_that_was_refused_or_cut_off_replaces_nothing(bad):
    context = context_of(
        user(text("task")), assistant(text("a")), user(text("b")), assistant(text("c")), user(text("d"))
    )
    before = context.messages
    tiny_agent.compact(context, classroom.scripted(bad), "m", keep=1)
    assert (context.messages, context.archive) == (before, [])


def test_a_cut_between_a_call_and_its_result_changes_nothing():
    context = context_of(user(text("q")), assistant(call("f", "c1")), user(result("c1")), assistant(text("a")))
    before = context.messages
    with pytest.raises(ContextError):
        context.summarised("short", 2)
    assert (context.messages, context.archive) == (before, [])


def test_the_archive_holds_what_was_said_and_no_summary_and_the_whole_task_stays():
    context = context_of(user(text("Here is the file."), text("THE TASK")), assistant(text("a1")), user(text("q2")))
    context.append(assistant(text("a2")))
    context.summarised("one", 2)
    context.summarised("two", 2)
    asked, answered = user(text("Here is the file."), text("THE TASK")), assistant(text("a1"))
    assert context.archive == [asked, answered, user(text("q2")), assistant(text("a2"))]
    whole = [text("Here is the file."), text("THE TASK"), text("What was done so far, in short: two")]
    assert context.messages == [user(*whole)]


def test_every_window_from_1_to_6_on_the_smallest_case():
    exchange = [assistant(call("f", "c1"), call("g", "c2")), user(result("c1"), result("c2"))]
    messages = [user(text("q")), *exchange, assistant(text("a")), user(text("q2"))]
    assert [tiny_agent.safe_cut(messages, keep) for keep in range(1, 7)] == [4, 3, 1, 1, 0, 0]


def test_a_long_context_is_summarised_by_the_model_before_the_next_request():
    context = Context(compact_above=0)
    replies = [calls(call("read_file", f"t{i}", path="notes.txt")) for i in range(4)]
    client = scripted_with_tokens(*replies[:3], says("the key is under the pot"), says("Done."))
    assert run("Go.", client, workspace=WORKSPACE, context=context) == "Done."
    asked = client.exchanges[3][0]
    assert set(asked) == {"model", "max_tokens", "messages"}
    assert "under the blue pot" in asked["messages"][0]["content"]
    sent = client.exchanges[4][0]["messages"]
    assert sent[0]["content"][0] == text("Go.")
    assert sent[0]["content"][1] == text("What was done so far, in short: the key is under the pot")
    assert len(context.archive) == 3
    assert len(context.usage) == 5


def test_a_context_below_the_threshold_is_left_alone():
    context = Context(compact_above=10)
    run(
        "Go.",
        scripted_with_tokens(calls(call("read_file", path="notes.txt")), says("x")),
        workspace=WORKSPACE,
        context=context,
    )
    assert context.archive == []


def test_nothing_kept_is_cut_at_the_end():
    assert tiny_agent.safe_cut([user(text("q")), assistant(text("a"))], 0) == 2


def scripted_with_tokens(*replies):
    return classroom.scripted(*[{**reply, "usage": {"input_tokens": 5, "output_tokens": 1}} for reply in replies])


def test_tokens_from_the_cache_count_as_input():
    usage = {"input_tokens": 5, "cache_read_input_tokens": 900, "cache_creation_input_tokens": None, "output_tokens": 7}
    assert tiny_agent.input_tokens(usage) == 905


# --- the price of a turn


def test_a_turn_costs_about_the_same_late_as_early():
    """The exact ratios are printed by `make bench`; this only finds a return to encoding all of it each turn."""
    ratios = timing.turn_cost(tiny_agent, turns=400, early=50)
    assert ratios["late / early"] < 3


# --- the notebook


def test_the_solution_in_the_notebook_passes_the_check_of_the_notebook():
    notebook = cells(CHAPTER)
    first = next(i for i, cell in enumerate(notebook) if cell.source.startswith("## Exercise"))
    names = {"tiny_agent": tiny_agent}
    for cell in notebook[first:]:
        if cell.cell_type == "code":
            exec(cell.source, names)
    assert names["check_cut"](names["my_cut"]).startswith("not yet")
    (solution,) = solutions(notebook[first:])
    exec(solution, names)
    assert names["check_cut"](names["my_cut"]) == "done"
