"""What the model saw and the chances of its next step: both are held against the local model itself."""

import json
import re
from collections import Counter

import pytest
from scipy.stats import binomtest

from classroom import ClassroomError, llama, local, smollm
from classroom.chances import ANSWER, INVENTED, chances
from classroom.explain import explain


def tool(name, description, *fields):
    schema = {"type": "object", "properties": {f: {"type": "string"} for f in fields}, "required": list(fields)}
    return {"name": name, "description": description, "input_schema": schema}


READ = tool("read_file", "Read a file", "path")
WRITE = tool("write_file", "Write text to a file", "path", "content")
LIST = tool("list_dir", "List the files in a directory", "path")
NOTES = tool("read_notes", "Read the notes")
TASK = [{"role": "user", "content": "Add the line buy eggs to notes.txt."}]
STEPS = [
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t", "name": "read_file", "input": {"path": "ü\u2028.txt"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t", "content": "no 😀 <|im_end|>\n", "is_error": True},
            {"type": "text", "text": "Go on."},
        ],
    },
]


def request(model="smollm2-135m-bare", tools=(LIST, READ, WRITE), messages=TASK, **more):
    return {"model": model, "max_tokens": 1, "messages": messages, **({"tools": list(tools)} if tools else {}), **more}


def names(explained):
    return [layer["name"] for layer in explained.layers]


def layer(explained, name):
    (found,) = [layer for layer in explained.layers if layer["name"] == name]
    return found


# --- what the model saw


@pytest.mark.parametrize("model", smollm.IDS)
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"system": "Be brief."},
        {"messages": [*TASK, *STEPS]},
        {"tools": [tool("now", "")], "system": [{"type": "text", "text": "s"}, {"type": "text", "text": "t"}]},
        {"tools": ()},
        {"tools": (), "system": "Be\nbrief.", "messages": [*TASK, {"role": "assistant", "content": "ü 😀"}, *TASK]},
        {"tools": (), "messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}]},
    ],
)
def test_the_layers_are_the_whole_prompt_and_their_tokens_add_up_to_what_the_model_reports(model, asked):
    body = request(model, **asked)
    explained = explain(body)
    assert explained.exact
    assert explained.prompt == smollm.render(body)["prompt"]
    assert sum(len(layer["text"]) for layer in explained.layers) == len(explained.prompt)
    assert explained.tokens == sum(layer["tokens"] for layer in explained.layers)
    assert explained.tokens == local.answer(body)["usage"]["input_tokens"]
    assert sum(layer["share"] for layer in explained.layers) == pytest.approx(1)


def test_each_tool_each_block_and_the_demonstrations_have_a_layer_of_their_own():
    explained = explain(request("smollm2-135m", [LIST, READ], [*TASK, *STEPS]))
    assert names(explained) == [
        "system prompt",
        "tool list_dir",
        "tool read_file",
        "demonstrations",
        "1. user",
        "2.1 assistant",
        "2.2 assistant · tool_use · read_file",
        "3.1 ERROR · user · tool_result",
        "3.2 user",
        "chat template",
        "the classroom's instructions",
    ]
    assert layer(explained, "1. user")["text"] == "Add the line buy eggs to notes.txt."
    assert layer(explained, "demonstrations")["share"] > 0.7
    assert "demonstrations" not in names(explain(request()))


def test_as_text_it_is_a_line_for_each_layer():
    lines = repr(explain(request(tools=()))).splitlines()
    assert lines[0] == "smollm2-135m-bare: 40 tokens, counted by the model's own tokenizer"
    assert re.fullmatch(r"1\. user +10 \(25%\)  #{10}", lines[2])


def test_as_html_the_texts_are_folded_away_and_are_no_markup():
    page = explain(request(messages=[{"role": "user", "content": "<script>alert(1)</script>"}]))._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<summary>the very text that the model was given</summary>" in page
    assert page.count("<details>") == page.count("</details>") == 8


def test_for_another_model_the_counts_are_estimates_and_say_so():
    explained = explain(request("some-model", [READ], [*TASK, *STEPS], system="Be brief."))
    assert not explained.exact
    assert explained.prompt is None
    assert json.loads(layer(explained, "tool read_file")["text"]) == READ
    assert layer(explained, "system prompt")["tokens"] == 3
    head, first, *_ = repr(explained).splitlines()
    assert re.match(r"some-model: ~\d+ tokens, an estimate: characters / 4", head)
    assert re.match(r"system prompt +~3 ", first)
    assert "<small>~3 (" in explained._repr_html_()


def test_without_the_local_model_its_counts_are_estimates_of_the_same_layers(monkeypatch):
    counted = explain(request())
    monkeypatch.setattr(llama, "server", llama.server.__wrapped__)
    monkeypatch.setattr(llama.importlib.util, "find_spec", lambda name: None)
    explained = explain(request())
    assert not explained.exact
    assert (names(explained), explained.prompt) == (names(counted), counted.prompt)
    assert "~" in repr(explained)
    assert "an estimate: characters / 4. The local model is not installed. Run `make live`" in repr(explained)


def test_of_a_request_that_the_local_model_refuses_what_it_holds_is_shown_with_the_reason():
    image = request(messages=[{"role": "user", "content": [{"type": "image", "source": "x"}]}])
    assert "refuses this request: the local model reads text only" in repr(explain(image))
    assert '"source": "x"' in layer(explain(image), "1. user · image")["text"]
    assert "half a surrogate pair" in repr(explain(request(system="\ud800")))
    assert "Too long: the local model refuses" in repr(explain(request(system="word " * 5000)))


ODD = [
    None, 7, "hi", [], {}, {"model": 7}, {"model": []}, {"model": "\ud800", "system": "\ud800"}, {"system": None},
    {"system": {"a": 1}}, {"system": [{"type": "image"}, 5]}, {"tools": "read_file"}, {"tools": {"a": 1}},
    {"tools": [None, {}, {"name": 7}, {"name": "\ud800"}]}, {"messages": "hi"}, {"messages": {"role": "user"}},
    {"messages": [None, "hi", {}, {"role": 7, "content": 5}, {"role": "user", "content": []}]},
    {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "hm"}, {"no": "type"}, 5, None]}]},
    {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image"}]}]}]},
    {"messages": [{"role": "assistant", "content": [{"type": "tool_use"}, {"type": "text"}]}]},
    {"messages": [{"role": "user", "content": "\x00 <|im_start|> \ud800"}], "tools": [{"name": "a"}]},
]  # fmt: skip


@pytest.mark.parametrize("model", ["smollm2-135m", "some-model"])
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_request_is_shown_and_raises_nothing(model, odd):
    body = {"model": model, **odd} if isinstance(odd, dict) else odd
    for shown in (explain(body), explain(request(), body), explain(body, request())):
        repr(shown).encode()
        shown._repr_html_().encode()


def test_two_requests_side_by_side_say_in_words_what_differs():
    one = request(tools=[LIST, READ, NOTES])
    other = request(tools=[{**READ, "description": "Read a text"}, LIST, WRITE])
    compared = explain(one, other)
    assert [((a or b)["name"], mark) for mark, a, b in compared.rows] == [
        ("system prompt", ""),
        ("tool list_dir", "moved"),
        ("tool read_file", "changed, moved"),
        ("tool read_notes", "removed"),
        ("1. user", ""),
        ("tool write_file", "added"),
        ("chat template", ""),
        ("the classroom's instructions", ""),
    ]
    assert re.search(r"tool read_notes +\d+ \(\d+%\) +-  removed", repr(compared))
    assert "<b>changed, moved</b>" in compared._repr_html_()
    assert not any(mark for mark, _, _ in explain(one, one).rows)


# --- the chances of the next step


def test_the_chances_are_the_rates_at_which_the_model_is_sampled():
    body = request(tools=[LIST, READ, NOTES, WRITE])
    computed, runs = chances(body).steps, 50
    drawn = Counter()
    for run in range(runs):
        text = local.answer({**body, "max_tokens": 9}, str(run))["content"][0].get("text", "")
        called = re.match(r'{"tool": "(\w+)', text)
        drawn[next(n for n in computed if n.startswith(called[1])) if called else ANSWER] += 1
    for step, chance in computed.items():
        assert binomtest(drawn[step], runs, chance).pvalue > 0.0005, (step, drawn[step], chance)
    assert max(drawn.values()) < runs  # more than one step is drawn, or nothing has been tested


@pytest.mark.parametrize("model", smollm.IDS)
def test_the_chances_add_up_to_one_over_the_offered_tools_and_an_answer(model):
    read = chances(request(model, [READ, NOTES, WRITE]))
    offered = ["read_file", "read_notes", "write_file", ANSWER, *([INVENTED] if model == "smollm2-135m-free" else [])]
    for shares in (read.steps, read.uncut):
        assert list(shares) == offered
        assert sum(shares.values()) == pytest.approx(1, abs=0.001)  # each is rounded
        assert all(0 <= share <= 1 for share in shares.values())
    assert 0 < read.mass < 1


def test_most_tools_that_the_free_model_calls_are_invented():
    body = request("smollm2-135m-free", [READ], [{"role": "user", "content": "Delete the file old.txt."}])
    assert chances(body).steps[INVENTED] > 0.5


def test_a_name_that_begins_like_another_one_is_told_apart():
    steps = chances(request(tools=[tool("read", "Read a file", "path"), READ])).steps
    assert steps["read"] > 0
    assert steps["read_file"] > 0
    assert len(set(chances(request(tools=[READ, NOTES])).uncut.values())) == 3


def test_a_plain_chat_is_always_answered():
    assert chances(request(tools=())).steps == {ANSWER: 1}


def test_asking_for_the_chances_changes_no_later_reply_and_gives_the_same_again():
    body = request(max_tokens=20)
    reply = local.answer(body, "7")
    first = chances(body)
    assert local.answer(body, "7") == reply
    chances(request(tools=[NOTES]))
    again = chances(body)
    assert (again.steps, again.uncut, again.mass) == (first.steps, first.uncut, first.mass)
    assert local.answer(body, "7") == reply


def test_the_chances_are_drawn_as_bars_of_one_scale():
    read = chances(request())
    lines = repr(read).splitlines()
    assert lines[0].startswith("smollm2-135m-bare: chances of the next step, drawn at temperature 0.8 (top_k 40,")
    for line, (step, chance) in zip(lines[1:5], read.steps.items(), strict=True):
        assert re.fullmatch(rf" *{step} {'#' * round(40 * round(chance, 3))} [\d.]+ drawn", line)
    page = read._repr_html_()
    widths = [float(width) for width in re.findall(r"width: ([\d.]+)%", page)]
    assert widths == [round(60 * round(chance, 3), 1) for chance in read.steps.values()]
    assert "not held by the grammar" in page


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (request("some-model"), "chances are known for the local model only: smollm2-135m, .* asks 'some-model'"),
        ({}, "for the local model only"),
        (None, "for the local model only"),
        ({"model": "smollm2-135m"}, r"refused the request \(HTTP 400: messages: field required\)"),
        (request(temperature=0), "temperature: not supported"),
        (request(tools=[{**READ, "name": 'a"b'}]), r"tools\.0\.name"),
        (request(messages=[{"role": "user", "content": [{"type": "image"}]}]), "reads text only"),
        (request(system="word " * 5000), "prompt is too long"),
        (request(system="\ud800"), "surrogate"),
    ],
)
def test_what_has_no_chances_is_said_in_one_line(body, said):
    with pytest.raises(ClassroomError, match=said) as caught:
        chances(body)
    assert "\n" not in str(caught.value)


def test_without_the_local_model_the_way_to_it_is_said(monkeypatch):
    monkeypatch.setattr(llama.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ClassroomError, match=r"not installed\. Run `make live` once"):
        chances(request())


def test_where_half_a_letter_is_likeliest_the_model_is_still_read():
    """Where half of a letter was drawn, llama.cpp left out its list of likely tokens."""
    for _ in range(10):
        with llama.reading("日本" * 20, prefix="") as next_tokens:
            (_, text, probability), *_ = next_tokens([], 5)
            assert text == "\N{REPLACEMENT CHARACTER}"
            assert probability > 0.5
