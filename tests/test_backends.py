"""The backends against real HTTP servers on loopback, and the official packages as clients of the same servers."""

import datetime
import email.utils
import json

import anthropic
import httpx
import openai
import pytest
from conftest import JSON, serving

import classroom
from classroom import ClassroomError, llama, openai_form, providers
from classroom.versions import CHAPTERS

tiny_agent, latest = classroom.version("v0.1"), classroom.version("v0.3")
WORKSPACE = CHAPTERS / "01_loop" / "workspace"
TASK = "Where is the key?"


def message(*content, stop="end_turn"):
    usage = {"input_tokens": 1, "output_tokens": 1}
    body = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": list(content)}
    return 200, JSON, json.dumps({**body, "stop_reason": stop, "stop_sequence": None, "usage": usage}).encode()


CALL = message(
    {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "notes.txt"}}, stop="tool_use"
)
ANSWER = message({"type": "text", "text": "Under the pot."})


def refusal(status, said="no", **headers):
    body = {"type": "error", "error": {"type": "some_error", "message": said}}
    return status, {**JSON, **headers}, json.dumps(body).encode()


@pytest.fixture
def use(monkeypatch):
    """Set the environment as a person would: use(ANTHROPIC_API_KEY="k", …)."""
    return lambda **names: [monkeypatch.setenv(name, value) for name, value in names.items()]


# --- choosing


def test_recorded_is_the_default_and_the_environment_or_an_argument_chooses_another(use):
    assert classroom.connect("01_loop/read").source.startswith("recorded ")
    use(TINY_AGENT_BACKEND="anthropic", ANTHROPIC_API_KEY="k")
    assert classroom.connect("01_loop/read").source.startswith("live, asked now: anthropic claude-")
    assert classroom.connect("01_loop/read", backend="recorded").source.startswith("recorded ")
    use(TINY_AGENT_MODEL="my-model")
    assert classroom.connect("01_loop/read").model == "my-model"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"backend": "anthropc"}, "There is no backend 'anthropc'. There are: recorded, local, anthropic, openai."),
        ({"backend": "anthropic"}, "needs ANTHROPIC_API_KEY, your key: `export ANTHROPIC_API_KEY=…`"),
        ({"backend": "openai"}, "needs OPENAI_API_KEY, your key"),
        ({"scene": "read"}, "A scene is named like '01_loop/read', not 'read'"),
        ({"scene": "01_loop/raed"}, "There is no recording chapters/01_loop/recordings/raed.json"),
        ({"scene": "../01_loop/read"}, "A scene is named like '01_loop/read'"),
        ({"run": "ü"}, "A run is named with plain letters and digits, not 'ü'"),
    ],
)
def test_what_cannot_be_chosen_is_said_in_a_line(how, said):
    with pytest.raises(ClassroomError) as caught:
        classroom.connect(**{"scene": "01_loop/read", **how})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_openai_style_server_needs_the_models_name_and_no_key(use):
    use(OPENAI_BASE_URL="http://127.0.0.1:9/v1")
    with pytest.raises(ClassroomError, match="needs TINY_AGENT_MODEL"):
        classroom.connect("01_loop/read", backend="openai")


def test_a_notebook_shows_the_line_and_no_traceback():
    assert ClassroomError("No.")._render_traceback_() == ["ClassroomError: No."]


# --- anthropic


def test_anthropic_gets_exactly_this_request(use):
    with serving(CALL, ANSWER) as server:
        use(ANTHROPIC_API_KEY=" k-1 \n", ANTHROPIC_BASE_URL=server.url + "/")
        client = classroom.connect("01_loop/read", backend="anthropic", run="secret-run")
        assert tiny_agent.run(TASK, client, workspace=WORKSPACE, model=client.model) == "Under the pot."
    first, second = server.seen
    assert first.path == "/v1/messages"
    assert first.headers["x-api-key"] == "k-1"
    assert first.headers["anthropic-version"] == "2026-10-21"
    assert first.headers["x-run"] is None
    assert set(json.loads(first.body)) == {"model", "max_tokens", "tools", "messages"}
    assert json.loads(second.body)["messages"][2]["content"][0]["content"] == "The key is under the blue pot.\n"


def test_the_official_anthropic_client_and_ours_read_the_same_from_the_same_server(use):
    with serving(CALL, CALL) as server:
        with anthropic.Anthropic(api_key="k", base_url=server.url) as official:
            theirs = official.messages.create(
                model="m", max_tokens=1024, tools=tiny_agent.TOOLS, messages=[{"role": "user", "content": TASK}]
            )
        use(ANTHROPIC_API_KEY="k", ANTHROPIC_BASE_URL=server.url, TINY_AGENT_MODEL="m")
        ours = classroom.connect("01_loop/read", backend="anthropic").post(
            "/v1/messages",
            json={
                "model": "m",
                "max_tokens": 1024,
                "tools": tiny_agent.TOOLS,
                "messages": [{"role": "user", "content": TASK}],
            },
        )
    assert json.loads(server.seen[0].body) == json.loads(server.seen[1].body)
    assert server.seen[0].headers["anthropic-version"] == server.seen[1].headers["anthropic-version"]
    assert theirs.content[0].model_dump(exclude_none=True) == ours.json()["content"][0]
    assert theirs.stop_reason == ours.json()["stop_reason"]


# --- openai


def completion(message, finish="stop"):
    body = {"id": "c-1", "object": "chat.completion", "created": 0, "model": "m"}
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": None, **message}}
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    return 200, JSON, json.dumps({**body, "choices": [choice], "usage": usage}).encode()


def tool_call(arguments, id="call_1"):
    return {"id": id, "type": "function", "function": {"name": "read_file", "arguments": arguments}}


OPENAI_CALL = completion({"tool_calls": [tool_call('{"path": "notes.txt"}')]}, "tool_calls")
OPENAI_ANSWER = completion({"content": "Under the pot."})


def asking_openai(server, use):
    use(OPENAI_BASE_URL=f"{server.url}/v1", TINY_AGENT_MODEL="m")
    return classroom.connect("01_loop/read", backend="openai")


def test_openai_gets_exactly_this_request(use):
    with serving(OPENAI_CALL, OPENAI_ANSWER) as server:
        use(OPENAI_API_KEY="k-1", OPENAI_BASE_URL=f"{server.url}/v1", TINY_AGENT_MODEL="m")
        client = classroom.connect("01_loop/read", backend="openai")
        assert tiny_agent.run(TASK, client, workspace=WORKSPACE, model=client.model) == "Under the pot."
    assert server.seen[1].path == "/v1/chat/completions"
    assert server.seen[1].headers["authorization"] == "Bearer k-1"
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    assert json.loads(server.seen[1].body) == {
        "model": "m",
        "max_tokens": 1024,
        "messages": [
            {"role": "user", "content": TASK},
            {"role": "assistant", "content": None, "tool_calls": [tool_call('{"path": "notes.txt"}')]},
            {"role": "tool", "tool_call_id": "call_1", "content": "The key is under the blue pot.\n"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "read_file", "description": "Read a file", "parameters": schema},
            }
        ],
    }


def test_the_official_openai_client_and_ours_read_the_same_from_the_same_server(use):
    with serving(OPENAI_CALL, OPENAI_CALL) as server:
        request = openai_form.to_openai(
            {"model": "m", "max_tokens": 9, "tools": tiny_agent.TOOLS, "messages": [{"role": "user", "content": TASK}]}
        )
        with openai.OpenAI(api_key="k", base_url=f"{server.url}/v1") as official:
            theirs = official.chat.completions.create(**request)
        ours = asking_openai(server, use).post(
            "/v1/messages",
            json={
                "model": "m",
                "max_tokens": 9,
                "tools": tiny_agent.TOOLS,
                "messages": [{"role": "user", "content": TASK}],
            },
        )
    assert json.loads(server.seen[0].body) == json.loads(server.seen[1].body)
    call = theirs.choices[0].message.tool_calls[0]
    assert ours.json()["content"] == [
        {"type": "tool_use", "id": call.id, "name": call.function.name, "input": json.loads(call.function.arguments)}
    ]
    assert ours.json()["usage"] == {"input_tokens": 5, "output_tokens": 7}


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("arguments", "input"),
    [
        ('{"path": "a"}', {"path": "a"}),
        ({"path": "a"}, {"path": "a"}),
        ("", {}),
        ("null", {}),
        (None, {}),
        ("[1]", [1]),
        ("{broken", "{broken"),
        ('{"limit": NaN}', '{"limit": NaN}'),
        ('{"limit": -Infinity}', '{"limit": -Infinity}'),
        ('{"limit": 1e400}', '{"limit": 1e400}'),
        ('{"limit": 1e4}', {"limit": 10000.0}),
        ('{"path": "ok.txt", "path": "../s.txt"}', '{"path": "ok.txt", "path": "../s.txt"}'),
        ('{"a": {"b": 1, "b": 1}}', '{"a": {"b": 1, "b": 1}}'),
        ('{"n": %s}' % ("9" * 5000), '{"n": %s}' % ("9" * 5000)),
        (DEEP, DEEP),
        ('{"path": "[1]"}', {"path": "[1]"}),
        ('"{\\"path\\": 1}"', '{"path": 1}'),
    ],
    ids=lambda value: str(value)[:30],
)
def test_arguments_come_as_text_or_object_or_not_at_all(arguments, input):
    reply = openai_form.from_openai(json.loads(completion({"tool_calls": [tool_call(arguments)]})[2]))
    assert reply["content"][0]["input"] == input


@pytest.mark.parametrize(
    ("finish", "called", "stop_reason"),
    [
        ("tool_calls", True, "tool_use"),
        ("stop", True, "tool_use"),
        ("tool_call", True, "tool_use"),
        ("stop", False, "end_turn"),
        ("function_call", True, "tool_use"),
        ("STOP", False, "end_turn"),
        ("", True, "tool_use"),
        (None, True, "tool_use"),
        (None, False, "end_turn"),
        ("length", True, "max_tokens"),
        ("length", False, "max_tokens"),
        ("LENGTH", False, "max_tokens"),
        ("max_tokens", True, "max_tokens"),
        ("MAX_TOKENS", False, "max_tokens"),
        ("content_filter", True, "refusal"),
        ("error", True, "error"),
        ("error", False, "error"),
        ("MALFORMED_FUNCTION_CALL", False, "MALFORMED_FUNCTION_CALL"),
    ],
)
def test_the_presence_of_calls_decides_unless_the_reply_is_not_whole(finish, called, stop_reason):
    said = {"tool_calls": [tool_call("{}")]} if called else {"content": "hi"}
    assert openai_form.from_openai(json.loads(completion(said, finish)[2]))["stop_reason"] == stop_reason


@pytest.mark.parametrize(
    ("said", "input"),
    [('{"limit": NaN}', "NaN"), ('{"limit": 1e400}', "Infinity"), ('{"limit": "\\ud800"}', "\ud800")],
)
def test_an_object_of_arguments_that_is_no_json_reaches_the_loop_and_breaks_nothing(use, said, input):
    """Text is read strictly; where a server sends an object, its JSON was read already, and the loop judges it."""
    message = (
        '{"role": "assistant", "content": null, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '
    )
    body = f'{{"choices": [{{"finish_reason": "stop", "message": {message}{said}}}}}]}}}}]}}'.encode()
    with serving((200, JSON, body)) as server:
        response = asking_openai(server, use).post("/v1/messages", json={"model": "m", "max_tokens": 1, "messages": []})
    assert response.json(parse_constant=str)["content"][0]["input"] == {"limit": input}


def test_the_same_call_as_object_and_as_text_is_stored_and_sent_back_the_same():
    replies = [
        openai_form.from_openai(json.loads(completion({"tool_calls": [tool_call(arguments)]})[2]))
        for arguments in ({"path": "é"}, '{"path": "\\u00e9"}')
    ]
    assert replies[0]["content"] == replies[1]["content"]
    request = {"model": "m", "max_tokens": 1, "messages": [{"role": "assistant", "content": replies[0]["content"]}]}
    sent = openai_form.to_openai(json.loads(json.dumps(request)))["messages"][0]["tool_calls"]
    assert sent == [tool_call('{"path": "é"}')]


@pytest.mark.parametrize(
    "block",
    [
        {"content": "fine"},
        {"content": "no such file", "is_error": True},
        {"content": "", "is_error": True},
        {"content": "[tool error] is how this log begins"},
        {"content": "[tool result] so does this one"},
        {"content": "[tool result] [tool error] twice", "is_error": True},
        {"content": ""},
    ],
    ids=str,
)
def test_a_result_goes_to_openais_form_and_back_with_its_flag(block):
    block = {"type": "tool_result", "tool_use_id": "c2", **block}
    calls = [{"type": "tool_use", "id": id, "name": "f", "input": {}} for id in ("c1", "c2")]
    ok = {"type": "tool_result", "tool_use_id": "c1", "content": "ok"}
    history = [{"role": "assistant", "content": calls}, {"role": "user", "content": [ok, block]}]
    _, first, second = openai_form.to_openai({"model": "m", "max_tokens": 1, "messages": history})["messages"]
    assert (first["role"], second["role"]) == ("tool", "tool")
    assert second["content"] or not block.get("is_error")
    assert [openai_form.result_from_openai(message) for message in (first, second)] == [ok, block]


def test_an_end_that_nobody_knows_stops_the_loop_and_is_named(use):
    with serving(completion({"content": "The key is", "tool_calls": [tool_call("{}")]}, "error")) as server:
        context = latest.Context()
        assert latest.run(TASK, asking_openai(server, use), context=context) == "The key is"
    assert context.stopped == "error (this version cannot go on from it)"


def piece(id, index, name, arguments):
    call = {"index": index, "function": {"name": name, "arguments": arguments}}
    return {"choices": [{"index": 0, "delta": {"tool_calls": [{**call, "id": id} if id else call]}}]}


def delta(finish=None, index=0, **said):
    return {"choices": [{"index": index, "delta": said, "finish_reason": finish}]}


def streamed(use, *events, kind="text/event-stream"):
    """The reply to a stream of these events: chunks, or data as it stands."""
    data = [event if isinstance(event, str) else json.dumps(event) for event in events]
    stream = "".join(f"data: {line}\r\n\r\n" for line in data).encode()
    with serving((200, {"content-type": kind}, stream)) as server:
        request = {"model": "m", "max_tokens": 1, "messages": []}
        return asking_openai(server, use).post("/v1/messages", json=request).json()


@pytest.mark.parametrize(
    "pieces",
    [
        [piece("c1", 0, "f", '{"path":"a"}'), piece("c2", 0, "f", '{"path":"b"}')],
        [
            piece("c1", 0, "f", ""),
            piece(None, 0, None, '{"path":'),
            piece(None, 0, None, '"a"}'),
            piece("c2", 1, "f", '{"path":"b"}'),
        ],
        [piece("c1", 0, "f", '{"path":'), piece("c1", 0, "f", '"a"}'), piece("c2", 0, "f", '{"path":"b"}')],
        [piece("c1", None, "f", '{"path":"a"}'), piece("c2", None, "f", '{"path":"b"}')],
        [
            piece("c1", 0, "f", '{"path":'),
            piece("c2", 0, "f", '{"path":'),
            piece("c1", 0, None, '"a"}'),
            piece("c2", 0, None, '"b"}'),
        ],
        [
            piece(None, 0, "f", ""),
            piece("c1", 0, None, '{"path":'),
            piece(None, 0, None, '"a"}'),
            piece(None, 1, "f", '{"path":"b"}'),
            piece("c2", 1, "f", ""),
        ],
        [piece("c1", 0, "f", {"path": "a"}), piece("c2", 1, "f", None), piece(None, 1, None, {"path": "b"})],
    ],
    ids=["one index", "an index each", "the id in every piece", "no index", "by turns", "a late id", "as objects"],
)
def test_two_calls_come_out_of_a_stream_that_nobody_asked_for(use, pieces):
    end = {**delta("stop"), "usage": {"completion_tokens": 9}}
    reply = streamed(use, *pieces, end, "[DONE]")
    assert [(block["id"], block["name"], block["input"]) for block in reply["content"]] == [
        ("c1", "f", {"path": "a"}),
        ("c2", "f", {"path": "b"}),
    ]
    assert (reply["stop_reason"], reply["usage"]["output_tokens"]) == ("tool_use", 9)


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        (
            [
                piece("c", 0, "f", '{"n":'),
                piece("c", 1, "f", '{"n":'),
                piece(None, 0, None, "1}"),
                piece(None, 1, None, "2}"),
            ],
            [("c", "f", {"n": 1}), ("c_1", "f", {"n": 2})],
        ),
        ([piece("c", 0, "f", ""), piece("c", 0, "g", "{}")], [("c", "f", {}), ("c_1", "g", {})]),
        ([piece(None, 0, "f", ""), piece(None, 0, "g", '{"n":1}')], [("call_0", "f", {}), ("call_1", "g", {"n": 1})]),
        ([piece("c", 0, "f", [1])], [("c", "f", [1])]),
        ([piece("c", 0, "f", '{"n":1}'), piece("c", 0, "f", {"n": 2})], [("c", "f", '{"n":1}{"n": 2}')]),
    ],
    ids=["one id, two indexes", "one id, two names", "no id, two names", "a list", "text and object"],
)
def test_pieces_of_a_stream_are_one_call_only_where_nothing_tells_them_apart(use, pieces, calls):
    content = streamed(use, *pieces, "[DONE]")["content"]
    assert [(block["id"], block["name"], block["input"]) for block in content] == calls


@pytest.mark.parametrize(
    ("chunks", "text", "stop_reason"),
    [
        ([delta(content="a"), delta("stop", content="b")], "ab", "end_turn"),
        ([delta(content="a"), "[DONE]"], "a", "end_turn"),
        ([delta(content="a") | {"error": None}, delta("stop"), "[DONE]"], "a", "end_turn"),
        ([delta(content="a"), delta("MAX_TOKENS"), "[DONE]"], "a", "max_tokens"),
        ([delta(content="a"), delta("error"), "[DONE]"], "a", "error"),
        ([delta(refusal="I will "), delta(refusal="not."), delta("stop"), "[DONE]"], "I will not.", "refusal"),
        ([delta(content="a"), delta(index=1, content="z"), delta("length"), delta("stop", 1)], "a", "max_tokens"),
        ([delta(index=None, content="a"), delta("stop", None)], "a", "end_turn"),
        ([{"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}, {"choices": []}], "a", "end_turn"),
    ],
)
def test_a_stream_is_read_as_the_whole_reply_would_be(use, chunks, text, stop_reason):
    reply = streamed(use, *chunks)
    assert ("".join(block["text"] for block in reply["content"]), reply["stop_reason"]) == (text, stop_reason)


def test_a_stream_is_known_by_its_content_type_in_capitals_too(use):
    reply = streamed(use, delta("stop", content="a"), kind="Text/Event-Stream; Charset=UTF-8")
    assert reply["content"] == [{"type": "text", "text": "a"}]


@pytest.mark.parametrize(
    "first", ["\ufeff", "retry: 3000\n\n", "event: ping\n\n", "id: 7\n\n", "data:\n\n", ": hm\n\n"]
)
def test_what_a_stream_may_begin_with_loses_nothing(use, first):
    chunks = [delta(content="Do NOT "), delta("stop", content="delete")]
    body = first + "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    with serving((200, {"content-type": "text/event-stream"}, body.encode())) as server:
        reply = (
            asking_openai(server, use).post("/v1/messages", json={"model": "m", "max_tokens": 1, "messages": []}).json()
        )
    assert reply["content"] == [{"type": "text", "text": "Do NOT delete"}]


@pytest.mark.parametrize("finish", ["tool_calls", "function_call", "Tool_Call"])
def test_a_reply_that_says_it_calls_and_does_not_is_no_answer(finish):
    choice = {"message": {"content": "Let me look."}, "finish_reason": finish}
    assert openai_form.from_openai({"choices": [choice]})["stop_reason"] == "tool_use"


def test_a_word_in_the_text_is_no_wish_for_a_stream(use):
    use(ANTHROPIC_API_KEY="k")
    with serving((200, {"content-type": "text/event-stream"}, b"data: {}\n\n")) as server:
        use(ANTHROPIC_BASE_URL=server.url)
        client = classroom.connect("01_loop/read", backend="anthropic")
        with pytest.raises(ClassroomError, match="which is not JSON"):
            client.post("/v1/messages", json={"messages": [{"role": "user", "content": "stream"}]})


def test_a_stream_that_was_asked_for_is_handed_on_with_its_content_type_in_capitals_too(use):
    use(ANTHROPIC_API_KEY="k")
    with serving((200, {"content-type": "Text/Event-Stream"}, b"data: {}\n\n")) as server:
        use(ANTHROPIC_BASE_URL=server.url)
        client = classroom.connect("01_loop/read", backend="anthropic")
        assert client.post("/v1/messages", json={"stream": True}).content == b"data: {}\n\n"


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        (['{"error": {"message": "out of memory"}}', "[DONE]"], "broke off its answer: out of memory"),
        (['{"error": "out of memory"}'], "broke off its answer: out of memory"),
        (
            ['{"object": "error", "message": "boom"}', "[DONE]"],
            "broke off its answer: {'object': 'error', 'message': 'boom'}",
        ),
        (['{"message": "overloaded"}\r\nevent: error'], "broke off its answer: {'message': 'overloaded'}"),
        ([], "broke off its answer: neither a finish_reason nor [DONE] came. Try again."),
        ([delta("stop", 1)], "broke off its answer: neither a finish_reason nor [DONE] came. Try again."),
        (["{broken"], "not a chat completion"),
        (["[1]"], "not a chat completion"),
        ([DEEP], "not a chat completion"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_stream_that_breaks_off_is_one_clear_line_and_no_short_answer(use, rest, said):
    with pytest.raises(ClassroomError) as caught:
        streamed(use, delta(content="The key"), *rest)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rest", "said"), [("", "no model's reply: quota used up"), (', "choices": []', "with an error: quota used up")]
)
def test_an_error_in_a_whole_reply_is_told_as_the_server_said_it(use, rest, said):
    body = '{"error": {"message": "quota used up"}' + rest + "}"
    with serving((200, JSON, body.encode())) as server, pytest.raises(ClassroomError, match=said):
        tiny_agent.run(TASK, asking_openai(server, use))


@pytest.mark.parametrize(
    "body",
    [
        '{"choices": []}',
        '{"error": null, "choices": []}',
        '{"choices": [null]}',
        '{"choices": [{"text": "a"}]}',
        '{"choices": [{"message": "a"}]}',
        '{"choices": [{"message": {}, "finish_reason": 7}]}',
        '{"choices": [{"message": {"tool_calls": [{"function": null}]}}]}',
        '{"choices": [],\n"x": "%s"}' % ("x" * 500),
    ],
    ids=lambda value: value[:40],
)
def test_a_reply_that_is_no_completion_is_one_clear_line_that_shows_it(use, body):
    with serving((200, JSON, body.encode())) as server, pytest.raises(ClassroomError) as caught:
        tiny_agent.run(TASK, asking_openai(server, use))
    assert str(caught.value) == (
        f"The server at {server.url}/v1/chat/completions answered with JSON that is not a chat completion. "
        f"Is this the right OPENAI_BASE_URL? What came begins: {body[:200]!r}"
    )


def test_a_reply_that_is_nested_too_deep_is_one_clear_line():
    whole = httpx.MockTransport(lambda request: httpx.Response(200, headers=JSON, text=DEEP))
    with pytest.raises(ClassroomError, match="The server answered with JSON that is not a chat completion"):
        openai_form.Transport(whole, "The server").handle_request(
            httpx.Request("POST", "http://x", json={"model": "m", "max_tokens": 1, "messages": []})
        )


def test_a_failed_result_is_marked_in_its_text_and_text_beside_a_result_is_kept():
    result = {"type": "tool_result", "tool_use_id": "c", "content": "no such file", "is_error": True}
    request = {
        "model": "m",
        "max_tokens": 1,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "also this"}, result]}],
    }
    assert openai_form.to_openai(request)["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "tool", "tool_call_id": "c", "content": "[tool error] no such file"},
        {"role": "user", "content": "also this"},
    ]


def test_llama_cpps_own_openai_server_answers_through_the_same_backend_and_the_official_client(use):
    base = f"{llama.server().base_url}".rstrip("/") + "/v1"
    use(OPENAI_BASE_URL=base, TINY_AGENT_MODEL="any")
    client = classroom.connect("01_loop/read", backend="openai")
    request = {"model": "any", "max_tokens": 20, "messages": [{"role": "user", "content": "Say hello."}]}
    ours = client.post("/v1/messages", json=request).json()
    assert ours["role"] == "assistant"
    assert ours["content"][0]["type"] == "text"
    assert ours["stop_reason"] in ("end_turn", "max_tokens")
    assert 1 <= ours["usage"]["output_tokens"] <= 20
    with openai.OpenAI(api_key="none", base_url=base) as official:
        theirs = official.chat.completions.create(**openai_form.to_openai(request))
    assert theirs.usage.prompt_tokens == ours["usage"]["input_tokens"]

    client.post("/v1/messages", json={**request, "tools": tiny_agent.TOOLS})  # and it takes our form of tools


# --- what goes wrong on the way


def asking(url, use, **names):
    use(ANTHROPIC_API_KEY="k", ANTHROPIC_BASE_URL=url, **names)
    client = classroom.connect("01_loop/read", backend="anthropic")
    return client.post("/v1/messages", json={"model": "m", "max_tokens": 1, "messages": []})


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refusal(401, "invalid x-api-key"), "refused the key (HTTP 401: invalid x-api-key)"),
        (refusal(403), "refused the key (HTTP 403: no)"),
        (refusal(404, "model: m"), "knows no such address or model (HTTP 404: model: m)"),
        (refusal(400, "temperature is not supported"), "refused the request (HTTP 400: temperature is not supported)"),
        ((400, JSON, b'{"error": "plain words"}'), "refused the request (HTTP 400: plain words)"),
        ((200, {"content-type": "text/html"}, b"<html>"), "answered HTTP 200 with text/html, which is not JSON"),
        ((200, JSON, b'{"half": '), "answered HTTP 200 with application/json, which is not JSON"),
        (
            (502, {"content-type": "text/html"}, b"<html>"),
            "is busy or limits your requests (HTTP 502: text/html, not JSON",
        ),
        ((401, JSON, b""), "refused the key (HTTP 401: application/json, not JSON"),
        ((307, {**JSON, "location": "/v2"}, b"{}"), "sends you elsewhere (HTTP 307"),
        ((400, JSON, b'{"error": {"message": "two\\nlines"}}'), "refused the request (HTTP 400: two lines)"),
        ((400, JSON, b'{"error": {"message": null}}'), "refused the request (HTTP 400: {'message': None})"),
        ((200, JSON, b'{"type": "error", "error": {"message": "quota used up"}}'), "no model's reply: quota used up"),
        ((200, JSON, b"[1]"), "no model's reply: [1]"),
        ((200, JSON, b'{"content": null}'), "no model's reply"),
        ((200, JSON, b"[" * 100_000), "which is not JSON"),
        ((200, {"content-type": "text/event-stream"}, b"data: {}\n\n"), "with text/event-stream, which is not JSON"),
        ((200, {**JSON, "content-encoding": "gzip"}, b"not gzip"), "sent an answer that cannot be unpacked"),
    ],
)
def test_a_fault_of_the_server_is_one_clear_line(answer, said, use, monkeypatch):
    monkeypatch.setattr(providers.Provider.__init__, "__defaults__", (lambda seconds: None,))
    with serving(rest=answer) as server, pytest.raises(ClassroomError) as caught:
        asking(server.url, use)
    assert said in str(caught.value)
    assert server.url in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_dead_port_is_one_clear_line(use):
    with serving(ANSWER) as server:
        url = server.url
    with pytest.raises(ClassroomError, match=r"cannot be reached .*is the server running\?"):
        asking(url, use)


@pytest.mark.parametrize("url", ["nonsense", "http://[", "ftp://127.0.0.1", f"http://{'a' * 80}.invalid"])
def test_an_address_that_is_none_is_one_clear_line(url, use):
    with pytest.raises(ClassroomError, match="cannot be reached"):
        asking(url, use)


def test_json_that_is_no_completion_is_one_clear_line(use):
    with serving((200, JSON, b'{"hello": "world"}')) as server:
        use(OPENAI_BASE_URL=server.url, TINY_AGENT_MODEL="m")
        client = classroom.connect("01_loop/read", backend="openai")
        with pytest.raises(ClassroomError, match="no model's reply"):
            client.post("/v1/messages", json={"model": "m", "max_tokens": 1, "messages": []})


def test_a_gzipped_answer_of_a_real_server_is_read(use):
    import gzip

    status, headers, body = ANSWER
    with serving((status, {**headers, "content-encoding": "gzip"}, gzip.compress(body))) as server:
        assert asking(server.url, use).json()["content"][0]["text"] == "Under the pot."


# --- busy servers, on a clock that does not run


def waits(*answers):
    """Ask a server that gives these answers; returns the status in the end and the seconds waited before each retry."""
    slept = []
    with serving(*answers) as server:
        provider = providers.Provider(server.url, {}, sleep=slept.append)
        status = httpx.Client(transport=provider, base_url="http://x").post("/", json={}).status_code
        assert len(server.seen) == len(slept) + 1
    return status, slept


def test_retry_after_in_seconds_is_honoured_fractions_too():
    assert waits(refusal(429, **{"retry-after": "2.5"}), ANSWER) == (200, [2.5])


def test_retry_after_as_a_date_is_honoured():
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=20)
    status, [slept] = waits(refusal(429, **{"retry-after": email.utils.format_datetime(soon, usegmt=True)}), ANSWER)
    assert status == 200
    assert 15 < slept <= 20


@pytest.mark.parametrize("busy", [429, 500, 502, 503, 504, 529])
def test_a_busy_server_without_the_header_is_asked_again_with_growing_waits_and_an_end(busy):
    assert waits(*[refusal(busy)] * 5) == (busy, [1, 2, 4, 8])


def test_a_header_that_is_nonsense_or_in_the_past_is_no_reason_to_fail():
    assert waits(refusal(429, **{"retry-after": "soon"}), ANSWER) == (200, [1])
    assert waits(refusal(429, **{"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}), ANSWER) == (200, [0])


def test_a_server_that_asks_for_an_hour_is_not_waited_for():
    assert waits(refusal(429, **{"retry-after": "3600"})) == (429, [])


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_refusal_is_never_asked_again(status):
    assert waits(refusal(status)) == (status, [])


# --- scripted


def test_a_script_that_is_too_short_says_so():
    client = classroom.scripted()
    with pytest.raises(ClassroomError, match=r"at its end \(replies: 0\), and the loop asked for one more"):
        tiny_agent.run(TASK, client)


def test_a_script_says_that_it_is_one():
    assert "written by hand" in classroom.scripted().source


# --- the environment


@pytest.mark.parametrize("key", ["sk-SECRET\nX", "schlüssel", "“sk-SECRET”"])
def test_a_key_that_can_be_none_is_refused_and_not_shown(use, key):
    use(ANTHROPIC_API_KEY=key)
    with pytest.raises(
        ClassroomError, match="ANTHROPIC_API_KEY holds a line break or a letter that no key has"
    ) as caught:
        classroom.connect("01_loop/read", backend="anthropic")
    assert "SECRET" not in str(caught.value)
    assert "schl" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:1"),
        ("ALL_PROXY", "ftp://127.0.0.1:1"),
        ("HTTPS_PROXY", "http://127.0.0.1:abc"),
        ("SSL_CERT_FILE", "/nowhere.pem"),
    ],
)
def test_network_settings_that_cannot_be_used_are_one_clear_line(use, name, value):
    use(ANTHROPIC_API_KEY="k", **{name: value})
    with pytest.raises(ClassroomError, match="The network settings of the environment cannot be used"):
        classroom.connect("01_loop/read", backend="anthropic")


def test_space_around_a_setting_does_not_matter(use):
    use(TINY_AGENT_BACKEND=" anthropic\n", ANTHROPIC_API_KEY="k", TINY_AGENT_MODEL=" m ", ANTHROPIC_BASE_URL=" ")
    assert classroom.connect("01_loop/read").source == "live, asked now: anthropic m"


def test_openais_own_address_needs_a_key_with_a_slash_at_its_end_too(use):
    use(OPENAI_BASE_URL="https://api.openai.com/v1/", TINY_AGENT_MODEL="m")
    with pytest.raises(ClassroomError, match="needs OPENAI_API_KEY"):
        classroom.connect("01_loop/read", backend="openai")


def test_messages_before_anything_was_asked_are_one_clear_line():
    with pytest.raises(ClassroomError, match="nothing was asked"):
        _ = classroom.connect("01_loop/read").messages


@pytest.mark.parametrize(
    ("said", "content", "stop_reason"),
    [
        (
            {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            [{"type": "text", "text": "ab"}],
            "end_turn",
        ),
        ({"content": None, "refusal": "I will not."}, [{"type": "text", "text": "I will not."}], "refusal"),
        (
            {"content": "Well.", "refusal": "I will not.", "tool_calls": []},
            [{"type": "text", "text": "Well."}, {"type": "text", "text": "I will not."}],
            "refusal",
        ),
        ({"content": 7}, [], "end_turn"),
    ],
)
def test_what_an_openai_style_server_says_in_another_form_is_read(said, content, stop_reason):
    reply = openai_form.from_openai(json.loads(completion(said)[2]))
    assert (reply["content"], reply["stop_reason"]) == (content, stop_reason)


def test_calls_without_an_id_or_with_the_same_id_are_told_apart():
    three = [{**tool_call("{}"), "id": id} for id in ("c", "c", None)]
    reply = openai_form.from_openai(json.loads(completion({"tool_calls": three})[2]))
    assert [block["id"] for block in reply["content"]] == ["c", "c_1", "call_2"]


def test_a_usage_of_nothing_counts_as_zero():
    body = json.loads(OPENAI_ANSWER[2]) | {"usage": {"prompt_tokens": None}}
    assert openai_form.from_openai(body)["usage"] == {"input_tokens": 0, "output_tokens": 0}
