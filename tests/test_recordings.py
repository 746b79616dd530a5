"""Recordings: strict when they are played, whole when they are written, and free of keys."""

import concurrent.futures
import datetime
import gzip
import json
import signal
import subprocess
import sys

import httpx
import pytest
from conftest import JSON, serving

import classroom
from classroom import ClassroomError, backends, recordings
from classroom.recordings import Draft, RecordedTransport, Recorder, dump, load, save

PROVENANCE = {"kind": "recorded", "backend": "anthropic", "model": "m", "date": "2026-11-30"}


def recording(*exchanges):
    return {
        "scene": "01_loop/test",
        "provenance": PROVENANCE,
        "exchanges": [
            {"run": run, "request": request, "response": {"status": 200, "headers": JSON, "json": answer}}
            for run, request, answer in exchanges
        ],
    }


def playing(*exchanges):
    return httpx.Client(transport=RecordedTransport(recording(*exchanges)), base_url="http://test")


def ask(client, body, run="1"):
    return client.post("/v1/messages", json=body, headers={"x-run": run}).json()


def recording_from(tmp_path, answer, path="scene.json"):
    """A client that records what `answer(request)` gives, and the file it records into."""
    file = tmp_path / path
    recorder = Recorder(httpx.MockTransport(answer), file, Draft(recording()))
    return httpx.Client(transport=recorder, base_url="http://test"), file


# --- playing


def test_the_order_of_keys_does_not_matter():
    client = playing(("1", {"a": 1, "b": {"c": 2, "d": 3}}, "yes"))
    assert ask(client, {"b": {"d": 3, "c": 2}, "a": 1}) == "yes"


def test_equal_requests_get_their_answers_in_recorded_order_and_then_no_more():
    client = playing(("1", {"q": 1}, "first"), ("1", {"q": 1}, "second"))
    assert [ask(client, {"q": 1}), ask(client, {"q": 1})] == ["first", "second"]
    with pytest.raises(ClassroomError, match="asked more often than it was recorded"):
        ask(client, {"q": 1})


def test_each_run_has_its_own_answers():
    client = playing(("1", {"q": 1}, "one"), ("2", {"q": 1}, "two"))
    assert [ask(client, {"q": 1}, "2"), ask(client, {"q": 1}, "1")] == ["two", "one"]
    with pytest.raises(ClassroomError, match=r"It has the runs 1, 2\. Nearest is run '1'"):
        ask(client, {"q": 1}, "3")


def test_what_was_not_asked_for_is_counted_as_unused():
    client = playing(("1", {"q": 1}, "one"), ("1", {"q": 2}, "two"))
    ask(client, {"q": 1})
    assert client._transport.unused() == 1


def test_a_changed_description_misses_and_the_error_names_the_field_the_words_and_the_ways_on():
    request = {"tools": [{"name": "read_file", "description": "Read a file"}], "messages": ["hi"]}
    changed = {"tools": [{"name": "read_file", "description": "Read a file!"}], "messages": ["hi"]}
    client = playing(("1", {"messages": ["other"]}, "far"), ("1", request, "near"))
    with pytest.raises(ClassroomError) as caught:
        ask(client, changed)
    assert str(caught.value).splitlines() == [
        "This request was not recorded in the scene '01_loop/test', run '1'.",
        "It differs from the nearest recorded request in:",
        '  tools[0].description: recorded "Read a file", now "Read a file!"',
        "Ways on: undo the change (a cell that ran twice may be one: run the notebook from the top);",
        "or ask the model on this machine: `make live` once, then backend='local'",
        "  (--backend local in a command, BACKEND=local after make);",
        "or ask a provider with your key: backend='anthropic' or 'openai'.",
    ]


def test_a_longer_conversation_misses_and_the_error_counts_the_items():
    client = playing(("1", {"messages": ["a"]}, "x"))
    with pytest.raises(ClassroomError, match="messages: recorded 1 items, now 2 items"):
        ask(client, {"messages": ["a", "b"]})


def test_an_absent_and_a_new_field_are_told_apart():
    client = playing(("1", {"system": "s", "n": None}, "x"))
    with pytest.raises(ClassroomError) as caught:
        ask(client, {"n": None, "temperature": 1})
    assert '  system: recorded "s", now nothing' in str(caught.value)
    assert "  temperature: recorded nothing, now 1" in str(caught.value)


def test_todays_date_and_the_working_folder_match_on_another_day_in_another_folder(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    prompt = f"Today is {datetime.date.today()}. You work in {tmp_path / 'here'}/src."
    client, file = recording_from(tmp_path, lambda request: httpx.Response(200, json="ok"))
    ask(client, {"system": prompt})
    stored = load(file)["exchanges"][0]["request"]["system"]
    assert stored == "Today is <today>. You work in <working folder>/src."

    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    replay = httpx.Client(transport=RecordedTransport(load(file)), base_url="http://test")
    assert ask(replay, {"system": f"Today is {datetime.date.today()}. You work in {tmp_path / 'there'}/src."}) == "ok"


def test_a_folder_that_only_begins_like_the_working_folder_is_left_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recordings.normalised(f"{tmp_path}-evil {tmp_path}") == f"{tmp_path}-evil <working folder>"


# --- recording


def test_what_was_recorded_plays_back_the_same(tmp_path):
    answers = iter(["one", "two"])
    client, file = recording_from(tmp_path, lambda request: httpx.Response(200, json={"a": next(answers)}))
    first, second = ask(client, {"q": 1}), ask(client, {"q": 1})
    assert (first, second) == ({"a": "one"}, {"a": "two"})
    replay = httpx.Client(transport=RecordedTransport(load(file)), base_url="http://test")
    assert (ask(replay, {"q": 1}), ask(replay, {"q": 1})) == (first, second)


def test_a_second_connection_that_asks_the_same_is_not_recorded_twice(tmp_path):
    shared, file = Draft(recording()), tmp_path / "scene.json"
    for _ in range(2):
        transport = Recorder(httpx.MockTransport(lambda request: httpx.Response(200, json="a")), file, shared)
        ask(httpx.Client(transport=transport, base_url="http://test"), {"q": 1})
    assert len(load(file)["exchanges"]) == 1


def test_a_gzipped_answer_reaches_the_caller_and_is_recorded_decoded(tmp_path):
    packed = gzip.compress(b'{"text": "na\xc3\xafve"}')
    headers = {**JSON, "content-encoding": "gzip"}
    client, file = recording_from(tmp_path, lambda request: httpx.Response(200, headers=headers, content=packed))
    assert ask(client, {"q": 1}) == {"text": "naïve"}
    assert load(file)["exchanges"][0]["response"] == {"status": 200, "headers": JSON, "json": {"text": "naïve"}}


class Chunks(httpx.SyncByteStream):
    """A stream that can be read once, in the given pieces."""

    def __init__(self, *chunks):
        self.chunks = iter(chunks)

    def __iter__(self):
        yield from self.chunks


EVENTS = (b'data: {"w":"na\xc3', b'\xaf"}\r\n\r\n', b"event: x\r\ndata: a\r\ndata: b\r\n\r\n")


def test_a_stream_reaches_the_caller_piece_by_piece_and_is_recorded_whole(tmp_path):
    sse = {"content-type": "text/event-stream"}
    client, file = recording_from(tmp_path, lambda r: httpx.Response(200, headers=sse, stream=Chunks(*EVENTS)))
    seen = []
    with client.stream("POST", "/v1/messages", json={"stream": True}) as response:
        for piece in response.iter_raw():
            assert not file.exists(), "the caller has to wait for the end of the stream"
            seen.append(piece)
    assert tuple(seen) == EVENTS
    assert load(file)["exchanges"][0]["response"]["text"] == b"".join(EVENTS).decode()

    replay = httpx.Client(transport=RecordedTransport(load(file)), base_url="http://test")
    assert replay.post("/v1/messages", json={"stream": True}).content == b"".join(EVENTS)


def test_a_stream_that_the_caller_broke_off_is_not_recorded(tmp_path):
    sse = {"content-type": "text/event-stream"}
    client, file = recording_from(tmp_path, lambda r: httpx.Response(200, headers=sse, stream=Chunks(*EVENTS)))
    with client.stream("POST", "/v1/messages", json={}) as response:
        next(response.iter_raw())
    assert not file.exists()


def test_a_stream_that_ends_in_an_error_event_is_an_error_and_not_a_short_answer(tmp_path):
    sse = {"content-type": "text/event-stream"}
    pieces = (b'data: {"w":"half"}\n\n', b"event: error\ndata: overloaded\n\n")
    client, file = recording_from(tmp_path, lambda r: httpx.Response(200, headers=sse, stream=Chunks(*pieces)))
    with pytest.raises(ClassroomError, match="ended in an error event: overloaded"):
        client.post("/v1/messages", json={})
    assert not file.exists()


def test_bytes_that_are_no_text_are_recorded_too(tmp_path):
    raw = {"content-type": "application/octet-stream"}
    client, file = recording_from(tmp_path, lambda r: httpx.Response(200, headers=raw, content=b"\xff\x00"))
    client.post("/v1/messages", json={})
    replay = httpx.Client(transport=RecordedTransport(load(file)), base_url="http://test")
    assert replay.post("/v1/messages", json={}).content == b"\xff\x00"


def test_a_refusal_is_not_recorded(tmp_path):
    client, file = recording_from(tmp_path, lambda request: httpx.Response(529, json={"error": "overloaded"}))
    with pytest.raises(ClassroomError, match="HTTP 529 was not recorded"):
        ask(client, {})
    assert not file.exists()


# --- keys


def test_only_listed_headers_are_stored_in_any_case_and_no_url(tmp_path):
    headers = {"Content-TYPE": "application/json", "Set-Cookie": "session=1", "Anthropic-Organization-Id": "org-7"}
    client, file = recording_from(tmp_path, lambda request: httpx.Response(200, headers=headers, content=b"{}"))
    client.post("/v1/messages?key=k-test-1", json={}, headers={"X-Api-Key": "k-test-1", "Authorization": "k-test-1"})
    text = file.read_text()
    assert load(file)["exchanges"][0]["response"]["headers"] == {"content-type": "application/json"}
    assert not any(word in text for word in ("k-test-1", "session", "org-7"))


@pytest.mark.parametrize(
    "key",
    ["sk-test-AAAABBBBCCCCDDDD", "sk-ant-api03-abcdefghijklmnop", "ghp_" + "a" * 36, "Bearer abcdefghijklmnopqrst"],
)
def test_a_key_in_a_prompt_or_an_answer_refuses_the_whole_file(tmp_path, key):
    for request, answer in [(f"use {key}", "ok"), ("hi", f"your key is {key}")]:
        file = tmp_path / "scene.json"
        with pytest.raises(ClassroomError, match="was not saved: a key") as caught:
            save(file, recording(("1", {"system": request}, answer)))
        assert key not in str(caught.value)
        assert not file.exists()


def test_the_live_key_is_found_whatever_it_looks_like(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "plain-words-1234")
    with pytest.raises(ClassroomError, match=r"the value of \$SOME_API_KEY"):
        save(tmp_path / "scene.json", recording(("1", {"system": "use plain-words-1234"}, "ok")))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("MY_API_KEY", "pässwörd-12345", "use pässwörd-12345"),
        ("ANTHROPIC_API_KEY", "plainkey-12345\n", "use plainkey-12345."),
        ("db_passwd", 'with"quote', 'use with"quote'),
        ("MY_TOKEN", "sixsix", "use sixsix"),
    ],
)
def test_a_live_key_is_found_in_any_writing(tmp_path, monkeypatch, name, value, text):
    monkeypatch.setenv(name, value)
    with pytest.raises(ClassroomError, match=rf"the value of \${name}"):
        save(tmp_path / "scene.json", recording(("1", {"system": text}, "ok")))


def test_a_key_inside_bytes_is_found_too(tmp_path):
    raw = {"content-type": "application/octet-stream"}
    body = b"\xff sk-test-AAAABBBBCCCCDDDD"
    client, file = recording_from(tmp_path, lambda r: httpx.Response(200, headers=raw, content=body))
    with pytest.raises(ClassroomError, match="was not saved: a key"):
        client.post("/v1/messages", json={})
    assert not file.exists()


def test_words_that_only_resemble_a_key_are_saved(tmp_path):
    save(tmp_path / "scene.json", recording(("1", {"system": "task-management-and-planning"}, "ok")))


def test_a_folder_of_this_machine_is_not_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ClassroomError, match="a folder of this machine"):
        save(tmp_path / "scene.json", recording(("1", {}, f"I looked into {tmp_path}/x")))


# --- the file


def test_the_file_is_readable_and_comes_back_as_it_was(tmp_path):
    save(tmp_path / "scene.json", recording(("1", {"q": "é"}, "ü")))
    text = (tmp_path / "scene.json").read_text(encoding="utf-8")
    assert '"q": "é"' in text
    assert dump(load(tmp_path / "scene.json")) == text


def test_any_changed_byte_is_found(tmp_path):
    """Every single byte in turn: either the file no longer loads, or its text is not what dump() writes."""
    file = tmp_path / "01_loop" / "recordings" / "scene.json"
    save(file, recording(("1", {"q": 1}, "a")))
    whole = file.read_bytes()
    for i, byte in enumerate(whole):
        file.write_bytes(whole[:i] + bytes([byte ^ 1]) + whole[i + 1 :])
        try:
            found = dump(load(file)).encode() != file.read_bytes()
        except ClassroomError:
            found = True
        assert found, whole[max(0, i - 20) : i + 20]


@pytest.mark.parametrize("tools", [None, True, 0, 1, -1, 1.0, "x", {}, {"0": []}, [], [[0]], [{"name": "read"}]])
def test_a_request_comes_back_with_its_tools_whatever_json_value_they_are(tmp_path, tools):
    whole = recording(("1", {"tools": [{"name": "read"}]}, "a"), ("1", {"tools": tools}, "b"), ("1", {}, "c"))
    save(tmp_path / "scene.json", whole)
    assert recordings.canonical(load(tmp_path / "scene.json")["exchanges"]) == recordings.canonical(whole["exchanges"])


def test_tools_that_only_python_takes_for_equal_are_kept_apart_and_equal_ones_stand_once(tmp_path):
    lists = [[{"minimum": 1}], [{"minimum": True}], [{"minimum": 1.0}], [{"minimum": 1}]]
    save(tmp_path / "scene.json", recording(*(("1", {"tools": tools}, "a") for tools in lists)))
    written = json.loads((tmp_path / "scene.json").read_text())
    assert json.dumps(written["tools"]) == '[[{"minimum": 1}], [{"minimum": true}], [{"minimum": 1.0}]]'
    assert [exchange["request"]["tools"] for exchange in written["exchanges"]] == [0, 1, 2, 0]
    assert str([e["request"]["tools"] for e in load(tmp_path / "scene.json")["exchanges"]]) == str(lists)


@pytest.mark.parametrize("place", ["-1", "true", "2", "1.0", "null", '"1"', "[]"])
def test_a_place_that_is_none_in_the_list_of_tools_is_told_as_broken(tmp_path, place):
    file = tmp_path / "01_loop" / "recordings" / "scene.json"
    save(file, recording(("1", {"tools": ["a"]}, "x"), ("1", {"tools": ["b"]}, "y")))
    file.write_text(file.read_text().replace('"tools": 1', f'"tools": {place}'))
    with pytest.raises(ClassroomError) as caught:
        load(file)
    assert f"is broken ({place} is no place in its list of tools). Get it back with" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is broken"),
        ("{", "is broken"),
        ("[]", "is broken"),
        ('{"sha256": "0", "exchanges": []}', "somebody changed it"),
        ('{"sha256": "0", "provenance": {"kind": "recorded"}, "exchanges": []}', "somebody changed it"),
    ],
)
def test_a_broken_file_is_said_in_a_line_with_the_way_back(tmp_path, text, said):
    file = tmp_path / "01_loop" / "recordings" / "scene.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(ClassroomError, match=f"chapters/01_loop/recordings/scene.json .*{said}.*git checkout"):
        load(file)


def test_a_missing_file_is_said_with_the_scenes_that_there_are(tmp_path):
    file = tmp_path / "01_loop" / "recordings" / "read.json"
    save(file, recording())
    with pytest.raises(ClassroomError, match=r"no recording .*raed.json \(scenes recorded there: read\)"):
        load(file.with_name("raed.json"))


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "scene.json"
    save(file, recording(("1", {}, "old")))
    before = file.read_bytes()
    monkeypatch.setattr("os.replace", lambda a, b: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save(file, recording(("1", {}, "new")))
    assert file.read_bytes() == before


def test_scripted_is_said_and_never_called_a_models_words():
    assert recordings.source({"kind": "scripted"}) == "scripted: written by hand to show a point, not said by a model"
    assert json.loads(dump(recording()))["provenance"]["kind"] == "recorded"


def test_connect_records_what_a_live_backend_answers_and_says_where_it_came_from(tmp_path, monkeypatch):
    answer = {"type": "message", "role": "assistant", "content": [], "stop_reason": "end_turn", "usage": {}}
    with serving((200, JSON, json.dumps(answer).encode())) as server:
        monkeypatch.setenv("TINY_AGENT_RECORD", str(tmp_path))
        monkeypatch.setenv("ANTHROPIC_API_KEY", "k-test-12345678")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        classroom.connect("01_loop/new", backend="anthropic", run=4).post("/v1/messages", json={"model": "m"})
    recording = load(tmp_path / "01_loop" / "recordings" / "new.json")
    assert recording["scene"] == "01_loop/new"
    assert recording["provenance"] == {
        "kind": "recorded",
        "backend": "anthropic",
        "model": "claude-haiku-5-5",
        "date": datetime.date.today().isoformat(),
    }
    assert [(e["run"], e["request"]) for e in recording["exchanges"]] == [("4", {"model": "m"})]


def test_a_scene_that_was_written_by_hand_is_played_and_not_recorded_over(tmp_path, monkeypatch):
    monkeypatch.setattr(backends, "scene_path", lambda scene: tmp_path / "recordings" / "hand.json")
    by_hand = {**recording(("1", {"q": 1}, "written")), "provenance": {"kind": "scripted", "model": "scripted"}}
    save(tmp_path / "recordings" / "hand.json", by_hand)
    monkeypatch.setenv("TINY_AGENT_RECORD", str(tmp_path / "new"))
    client = classroom.connect("01_loop/hand", backend="anthropic")
    assert client.source.startswith("scripted: written by hand")
    assert not (tmp_path / "new").exists()


# --- odd requests, threads, and misses


def test_a_request_without_a_json_body_is_said_in_a_line(tmp_path):
    client, file = recording_from(tmp_path, lambda request: httpx.Response(200, json="ok"))
    for asked in (client, playing(("1", {"q": 1}, "x"))):
        for method, body in [("GET", b""), ("POST", b""), ("POST", b"{"), ("POST", b"[" * 100_000)]:
            with pytest.raises(ClassroomError, match=f"Only requests with a JSON body are recorded, not {method} http"):
                asked.request(method, "/v1/messages", content=body)
    assert not file.exists()


@pytest.mark.parametrize("answer", ['{"n": NaN}', '{"n": 1e999}', '{"s": "\\ud800"}'])
def test_what_is_no_valid_json_is_not_saved(tmp_path, answer):
    client, file = recording_from(tmp_path, lambda r: httpx.Response(200, headers=JSON, content=answer.encode()))
    with pytest.raises(ClassroomError, match="no valid JSON"):
        client.post("/v1/messages", json={})
    assert not file.exists()


def test_a_redirect_is_not_recorded(tmp_path):
    client, file = recording_from(tmp_path, lambda request: httpx.Response(302, json={}))
    with pytest.raises(ClassroomError, match="HTTP 302 was not recorded"):
        client.post("/v1/messages", json={})
    assert not file.exists()


def test_an_error_event_without_its_name_and_in_another_case_of_header_is_found(tmp_path):
    sse = {"content-type": "Text/Event-Stream"}
    body = b'data: {"type": "error", "error": {}}\n\n'
    client, file = recording_from(tmp_path, lambda r: httpx.Response(200, headers=sse, content=body))
    with pytest.raises(ClassroomError, match="ended in an error event"):
        client.post("/v1/messages", json={})
    assert not file.exists()


def test_eight_threads_record_into_one_whole_file(tmp_path):
    client, file = recording_from(tmp_path, lambda request: httpx.Response(200, json=json.loads(request.content)))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: ask(client, {"n": n}), range(80)))
    assert sorted(e["request"]["n"] for e in load(file)["exchanges"]) == list(range(80))


def test_the_file_that_grew_is_to_the_byte_the_one_that_is_written_at_once(tmp_path):
    client, file = recording_from(tmp_path, lambda request: httpx.Response(200, json="é"))
    asked = [{"n": 0, "tools": ["a"]}, {"n": 1}, {"n": 2, "tools": ["b"]}, {"n": 3, "tools": ["a"]}]
    for n, body in enumerate(asked, 1):
        ask(client, body)
        assert file.read_text(encoding="utf-8") == dump(recording(*(("1", body, "é") for body in asked[:n])))


def test_what_is_refused_leaves_no_trace_in_what_is_recorded_next(tmp_path):
    answers = iter(["sk-test-AAAABBBBCCCCDDDD", "ok"])
    client, file = recording_from(tmp_path, lambda request: httpx.Response(200, json=next(answers)))
    with pytest.raises(ClassroomError, match="was not saved: a key"):
        ask(client, {"q": 1, "tools": ["a"]})
    ask(client, {"q": 2, "tools": ["b"]})
    assert file.read_text() == dump(recording(("1", {"q": 2, "tools": ["b"]}, "ok")))


def test_what_could_not_be_written_is_in_the_file_with_the_next_exchange(tmp_path, monkeypatch):
    client, file = recording_from(tmp_path, lambda request: httpx.Response(200, json="ok"))
    with monkeypatch.context() as full:
        full.setattr("os.replace", lambda a, b: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            ask(client, {"q": 1})
    ask(client, {"q": 2})
    assert [exchange["request"]["q"] for exchange in load(file)["exchanges"]] == [1, 2]


KILLED = """
import os, pathlib, signal, sys
import httpx
from classroom.recordings import Draft, Recorder
draft = Draft({"scene": "01_loop/test", "provenance": {"kind": "recorded"}, "exchanges": []})
recorder = Recorder(httpx.MockTransport(lambda r: httpx.Response(200, text="ok")), pathlib.Path(sys.argv[1]), draft)
client = httpx.Client(transport=recorder, base_url="http://test")
for n in range(3):
    client.post("/v1/messages", json={"n": n})
with client.stream("POST", "/v1/messages", json={"n": 3}):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_every_finished_exchange_is_in_the_file_when_the_process_is_killed(tmp_path):
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "scene.json"])
    assert killed.returncode == -signal.SIGKILL
    assert [e["request"]["n"] for e in load(tmp_path / "scene.json")["exchanges"]] == [0, 1, 2]


def test_connections_of_one_scene_record_into_one_file_from_any_thread_and_however_the_folder_is_written(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k-test-12345678")
    reply = {"type": "message", "role": "assistant", "content": [], "stop_reason": "end_turn", "usage": {}}
    answer = httpx.MockTransport(lambda request: httpx.Response(200, json=reply))
    monkeypatch.setattr(backends, "Provider", lambda url, headers: answer)
    clients = []
    for folder in ("new", str(tmp_path / "new")):
        monkeypatch.setenv("TINY_AGENT_RECORD", folder)
        clients += [classroom.connect("01_loop/shared", backend="anthropic", run=run) for run in (1, 2)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: clients[n % 4].post("/v1/messages", json={"n": n}), range(80)))
    recorded = load(tmp_path / "new" / "01_loop" / "recordings" / "shared.json")["exchanges"]
    assert sorted((e["request"]["n"], e["run"]) for e in recorded) == [(n, str(n % 2 + 1)) for n in range(80)]


def test_a_miss_shows_the_text_around_the_first_difference():
    long = "x" * 200
    with pytest.raises(ClassroomError) as caught:
        ask(playing(("1", {"q": f"{long}a"}, "x")), {"q": f"{long}b"})
    assert "q: recorded …" + "x" * 20 + 'a", now …' + "x" * 20 + 'b"' in str(caught.value)


def test_a_miss_in_the_run_alone_says_so():
    with pytest.raises(ClassroomError, match="The request is a recorded one; only the run is not"):
        ask(playing(("1", {"q": 1}, "x")), {"q": 1}, run="99")


def test_a_miss_lists_a_few_places_and_counts_the_rest():
    client = playing(("1", {"q": list(range(50))}, "x"))
    with pytest.raises(ClassroomError, match="and 42 more places"):
        ask(client, {"q": list(range(1, 51))})


@pytest.mark.parametrize("text", ["http://example.com{}/page", "var{}", "{}.bak", "{}2", "x2026-11-309", "12026-11-30"])
def test_what_only_contains_the_folder_or_the_date_is_left_as_it_is(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    text = text.format(tmp_path).replace("2026-11-30", datetime.date.today().isoformat())
    assert recordings.normalised(text) == text
