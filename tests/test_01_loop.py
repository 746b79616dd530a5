"""Chapter 1: the bare loop does what its page says, and fails as its page says."""

import re
from pathlib import Path

import pytest
from conftest import cells, command, solutions

import classroom
from classroom.versions import CHAPTERS

tiny_agent = classroom.version("v0.1")
WORKSPACE = CHAPTERS / "01_loop" / "workspace"


def call(name, id="toolu_1", **input):
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def calls(*blocks):
    return {"stop_reason": "tool_use", "content": list(blocks)}


def says(text):
    return {"stop_reason": "end_turn", "content": [{"type": "text", "text": text}]}


def test_an_answer_without_a_call_ends_the_run_after_one_request():
    client = classroom.scripted(says("Hello."))
    assert tiny_agent.run("Say hello.", client) == "Hello."
    assert client.exchanges[0][0] == {
        "model": "smollm2-135m",
        "max_tokens": 1024,
        "tools": [
            {
                "name": "read_file",
                "description": "Read a file",
                "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
            }
        ],
        "messages": [{"role": "user", "content": "Say hello."}],
    }


def test_a_call_is_run_and_its_result_sent_back_with_the_whole_list():
    client = classroom.scripted(calls(call("read_file", path="notes.txt")), says("Under the pot."))
    assert tiny_agent.run("Where is the key?", client, workspace=WORKSPACE) == "Under the pot."
    assert client.exchanges[1][0]["messages"] == [
        {"role": "user", "content": "Where is the key?"},
        {"role": "assistant", "content": [call("read_file", path="notes.txt")]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "The key is under the blue pot.\n"},
            ],
        },
    ]


def test_two_calls_in_one_reply_get_their_results_in_one_message_in_order():
    two = calls(call("read_file", "toolu_a", path="shopping.md"), call("read_file", "toolu_b", path="notes.txt"))
    client = classroom.scripted(two, says("Both."))
    tiny_agent.run("Read both.", client, workspace=WORKSPACE)
    results = client.exchanges[1][0]["messages"][2]["content"]
    assert [(r["tool_use_id"], r["content"][:5]) for r in results] == [("toolu_a", "# Sho"), ("toolu_b", "The k")]


def test_text_around_a_call_stays_in_the_conversation_and_only_the_last_text_is_returned():
    first = {
        "stop_reason": "tool_use",
        "content": [{"type": "text", "text": "I look."}, call("read_file", path="notes.txt")],
    }
    client = classroom.scripted(first, says("Found."))
    assert tiny_agent.run("Look.", client, workspace=WORKSPACE) == "Found."
    assert client.exchanges[1][0]["messages"][1]["content"] == first["content"]


@pytest.mark.parametrize(
    ("broken_call", "error"),
    [
        (call("read_file", path="my_shopping_list.txt"), FileNotFoundError),
        (call("read_file", path="."), IsADirectoryError),
        (call("read_file", path="tap.png"), UnicodeDecodeError),
        (call("read_file"), KeyError),
        (call("read_file", path=7), TypeError),
        ({**call("read_file"), "input": ["notes.txt"]}, TypeError),
    ],
)
def test_a_call_that_raises_crashes_the_run(broken_call, error):
    with pytest.raises(error):
        tiny_agent.run("…", classroom.scripted(calls(broken_call)), workspace=WORKSPACE)


def test_an_unknown_tool_is_answered_with_ordinary_text_and_the_model_may_claim_success():
    client = classroom.scripted(calls(call("delete_file", path="notes.txt")), says("Deleted."))
    assert tiny_agent.run("Delete my notes.", client, workspace=WORKSPACE) == "Deleted."
    result = client.exchanges[1][0]["messages"][2]["content"][0]
    assert result == {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": "There is no tool named delete_file.",
    }


def test_a_reply_that_was_cut_off_counts_as_an_answer():
    cut = {"stop_reason": "max_tokens", "content": [{"type": "text", "text": "The key is un"}]}
    assert tiny_agent.run("…", classroom.scripted(cut)) == "The key is un"


def test_the_command_prints_the_answer_and_a_line_for_each_turn():
    done = command("01_loop", "Read notes.txt and tell me what it says.", "--run", "2")
    assert done.stdout == "The key is under the blue pot.\n"
    assert re.fullmatch(
        r"\[recorded .+\]\n\[turn 1 · read_file notes.txt · in=\d+ out=\d+\]\n\[turn 2 · end_turn · in=\d+ out=\d+\]\n",
        done.stderr,
    )
    assert done.returncode == 0


def test_the_command_says_in_words_that_a_task_was_not_recorded():
    done = command("01_loop", "Read notes.txt and sing it.")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "messages[0].content: recorded" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_crashes_like_the_loop():
    done = command("01_loop", "What is on my shopping list?", "--scene", "01_loop/crash")
    assert done.returncode == 1
    assert done.stderr.endswith("No such file or directory: 'workspace/my_shopping_list.txt'\n")


def test_the_solutions_in_the_notebook_pass_the_checks_of_the_notebook(monkeypatch, capsys):
    notebook = cells("01_loop")
    first = next(i for i, c in enumerate(notebook) if c.source.startswith("## Exercise 1"))
    names = {"classroom": classroom, "tiny_agent": tiny_agent, "Path": Path}
    monkeypatch.chdir(CHAPTERS / "01_loop")
    for cell in notebook[first:]:
        if cell.cell_type == "code":
            exec(cell.source, names)
    capsys.readouterr()
    loop, runs = solutions(notebook[first:])
    exec(loop, names)
    assert names["check_loop"](names["my_run"]) == "done"
    exec(runs, names)
    assert capsys.readouterr().out.splitlines() == [f"{goal}: done" for goal in names["runs"]]
    assert names["ending"]([names["says"]("There is no tool")]) == "an answer"
