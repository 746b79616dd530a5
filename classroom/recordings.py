"""Recordings: what a model answered, kept in one readable file a scene, and played back through httpx.

Plays and records whole exchanges, streams included. Does not play anything that was not recorded: a request is
matched by its run id and its whole body, so a changed word is a miss, and a miss explains itself.
"""

import base64
import collections
import datetime
import difflib
import functools
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import httpx_sse

from .errors import ClassroomError

KEPT_HEADERS = ("content-type",)  # of the response, in any case; nothing of the request but its run id and body
KEY_SHAPES = re.compile(
    r"\b(sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|(AKIA|ASIA)[0-9A-Z]{16}"
    r"|AIza[0-9A-Za-z_-]{30,}|(hf|gsk|npm|r8)_[A-Za-z0-9]{16,}|(xai|glpat)-[A-Za-z0-9_-]{16,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}|xox[abpr]-[0-9A-Za-z-]{10,}"
    r"|[Bb]earer +[A-Za-z0-9._~+/-]{16,}|BEGIN [A-Z ]*PRIVATE KEY)"
)
MOST_DIFFERENCES = 8  # shown of a request that was not recorded


def canonical(body: object) -> str:
    """One text for equal JSON values: sorted keys, no spaces."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def normalised(text: str) -> str:
    """Today's date and the working folder, which change from day to day and machine to machine, become names."""
    if len(Path.cwd().parts) > 1:
        folder = json.dumps(str(Path.cwd()), ensure_ascii=False)[1:-1]
        text = re.sub(rf"(?<![\w.:/-]){re.escape(folder)}(?![\w.-])", "<working folder>", text)
    return re.sub(rf"(?<!\d){datetime.date.today().isoformat()}(?!\d)", "<today>", text)


def _key(body: object) -> str:
    return normalised(canonical(body))


def load(path: Path) -> dict:
    """A scene's file -> {"scene", "provenance", "sha256", "exchanges"}. Raises ClassroomError where it is not whole.

    The last scenes are kept in memory, since a notebook connects to one a hundred times: do not change the value.
    """
    shown = f"{path.parent.parent.name}/{path.parent.name}/{path.name}"
    again = f"Get it back with `git checkout -- chapters/{shown}`, or record it again with `make record`."
    if not path.is_file():
        scenes = ", ".join(sorted(p.stem for p in path.parent.glob("*.json"))) or "none"
        raise ClassroomError(f"There is no recording chapters/{shown} (scenes recorded there: {scenes}).")
    try:
        recording, whole = _parsed(path.read_bytes())
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ClassroomError(f"The recording chapters/{shown} is broken ({error}). {again}") from None
    if not whole:
        raise ClassroomError(f"The recording chapters/{shown} is not what was recorded: somebody changed it. {again}")
    return recording


@functools.lru_cache(maxsize=8)
def _parsed(data: bytes) -> tuple[dict, bool]:
    """A recording, and whether it is what was recorded."""
    recording = json.loads(data.decode())
    digest, offered = recording["sha256"], recording.pop("tools", [])
    for request in (exchange["request"] for exchange in recording["exchanges"]):
        if isinstance(request, dict) and "tools" in request:
            place = request["tools"]
            if type(place) is not int or not 0 <= place < len(offered):
                raise ValueError(f"{json.dumps(place)} is no place in its list of tools")
            request["tools"] = offered[place]
    head = {key: value for key, value in recording.items() if key not in ("exchanges", "sha256")}
    whole = digest == _digest(head, [canonical(exchange) for exchange in recording["exchanges"]])
    return recording, whole and recording["provenance"]["kind"] in ("recorded", "scripted")


class Draft:
    """A recording as it grows, and the text of its file. Each exchange is rendered once: a scene may hold thousands.

    The file is the head, then a line for each tools field, a line for each exchange, and the digest. A request names
    its tools, whatever JSON value they are, by their place in the list, since hundreds of requests carry the same ones.
    """

    def __init__(self, recording: dict):
        self.head = {key: recording[key] for key in ("scene", "provenance")}
        self.exchanges, self.lines, self.canonical = [], [], []
        self.offered: dict[str, tuple[int, str]] = {}  # canonical text -> place and line
        self.recorded = collections.Counter()  # of each request in each run
        for exchange in recording["exchanges"]:
            self.add(exchange)

    def add(self, exchange: dict) -> None:
        """Take one more exchange. Raises ValueError where it is no valid JSON."""
        request, shown = exchange["request"], exchange
        if isinstance(request, dict) and "tools" in request:
            tools = request["tools"]
            place, _ = self.offered.setdefault(canonical(tools), (len(self.offered), _line(tools)))
            shown = {**exchange, "request": {**request, "tools": place}}
        self.lines.append(_line(shown))
        self.canonical.append(canonical(exchange))
        self.exchanges.append(exchange)
        self.recorded[exchange["run"], _key(request)] += 1

    def text(self) -> str:
        """The file's text, as it is now."""
        head = json.dumps(self.head, indent=1, ensure_ascii=False)[:-2]
        tools, exchanges = ",".join(line for _, line in self.offered.values()), ",".join(self.lines)
        digest = _digest(self.head, self.canonical)
        return f'{head},\n "tools": [{tools}],\n "exchanges": [{exchanges}],\n "sha256": "{digest}"\n}}\n'


def dump(recording: dict) -> str:
    """The text of a recording's file."""
    return Draft(recording).text()


def _line(value: object) -> str:
    return f"\n  {json.dumps(value, ensure_ascii=False, allow_nan=False)}"


def _digest(head: dict, exchanges: list[str]) -> str:
    """The SHA-256 of a recording's canonical text, of which that of each exchange is given."""
    text = f'{{"exchanges":[{",".join(exchanges)}],{canonical(head)[1:]}'
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def save(path: Path, recording: dict) -> None:
    """Write a scene's file, whole or not at all. A key or a folder of this machine in it raises ClassroomError."""
    _write(path, _checked(path, recording))


def _checked(path: Path, recording: dict) -> str:
    """The text of a recording's file, in which nothing stands that must not be saved."""
    try:
        text = dump(recording)
        text.encode()
    except ValueError as error:
        raise ClassroomError(f"{path.name} was not saved: what would be recorded is no valid JSON ({error}).") from None
    if found := _secret(text + "".join(_raw(exchange["response"]) for exchange in recording["exchanges"])):
        raise ClassroomError(f"{path.name} was not saved: a key stands in what would be recorded ({found}).")
    for folder in (str(Path.cwd()), os.path.expanduser("~")):
        if len(Path(folder).parts) > 1 and re.search(re.escape(folder) + r"(?![\w-])", text):
            raise ClassroomError(
                f"{path.name} was not saved: a folder of this machine stands in what would be recorded."
            )
    return text


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".json.part")
    part.write_text(text, encoding="utf-8", newline="\n")
    os.replace(part, path)


def _raw(response: dict) -> str:
    return _content(response).decode(errors="replace") if "base64" in response else ""


def _secret(text: str) -> str | None:
    """What looks like a key in the text, or which variable's value stands there; never the key itself."""
    if found := KEY_SHAPES.search(text):
        return f"what looks like one, {found[0][:6]}…"
    for name, value in os.environ.items():
        value = value.strip()
        forms = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
        if re.search("KEY|TOKEN|SECRET|PASS", name, re.I) and len(value) >= 6 and any(form in text for form in forms):
            return f"the value of ${name}"
    return None


def source(provenance: dict) -> str:
    """Where the answers come from, in a line for a person."""
    if provenance["kind"] == "scripted":
        return "scripted: written by hand to show a point, not said by a model"
    if "weights" in provenance:
        what = f"{provenance['weights']}, temperature {provenance['sampling']['temperature']}"
    else:
        what = provenance["backend"]
    return f"recorded {provenance['date']} from {provenance['model']} ({what})"


class RecordedTransport(httpx.BaseTransport):
    """Answers from a recording: equal requests in recorded order, each once, and nothing else."""

    def __init__(self, recording: dict):
        self.recording = recording
        self.waiting: dict[str, dict[str, collections.deque]] = {}  # run -> request -> responses

    def _of_run(self, run: str) -> dict[str, collections.deque]:
        """The answers of a run by their request, made when the run is first asked for: a scene may hold hundreds."""
        if run not in self.waiting:
            self.waiting[run] = collections.defaultdict(collections.deque)
            for exchange in self.recording["exchanges"]:
                if exchange["run"] == run:
                    self.waiting[run][_key(exchange["request"])].append(exchange["response"])
        return self.waiting[run]

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        run, body = request.headers.get("x-run", "1"), _json_body(request)
        waiting, key = self._of_run(run), _key(body)
        if key not in waiting:
            raise ClassroomError(_not_recorded(self.recording, run, body))
        if not waiting[key]:
            raise ClassroomError(
                f"The recording {self.recording['scene']!r} has no more answers to this request in run {run!r}: it was "
                "asked more often than it was recorded. Connect again to play it from the start."
            )
        response = waiting[key].popleft()
        return httpx.Response(response["status"], headers=response["headers"], content=_content(response))

    def unused(self) -> int:
        """How many recorded exchanges nobody has asked for yet."""
        runs = {exchange["run"] for exchange in self.recording["exchanges"]}
        return sum(len(responses) for run in runs for responses in self._of_run(run).values())


def _json_body(request: httpx.Request) -> object:
    try:
        return json.loads(request.read())
    except (ValueError, RecursionError):
        raise ClassroomError(
            f"Only requests with a JSON body are recorded, not {request.method} {request.url}."
        ) from None


def _content(response: dict) -> bytes:
    if "json" in response:
        return json.dumps(response["json"], ensure_ascii=False).encode()
    return response["text"].encode() if "text" in response else base64.b64decode(response["base64"])


_recording = threading.Lock()  # one exchange is written at a time, whoever asks


class Recorder(httpx.BaseTransport):
    """Lets another transport answer and keeps each exchange in the scene's file, once its last byte was read."""

    def __init__(self, inner: httpx.BaseTransport, path: Path, draft: Draft):
        self.inner, self.path, self.draft = inner, path, draft
        self.asked = collections.Counter()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        body = _json_body(request)
        response = self.inner.handle_request(request)

        def keep(data: bytes) -> None:
            with _recording:
                self._keep(request, body, httpx.Response(response.status_code, headers=response.headers, content=data))

        return httpx.Response(
            response.status_code, headers=response.headers, stream=_Tee(response.stream, keep), request=request
        )

    def _keep(self, request: httpx.Request, body: object, response: httpx.Response) -> None:
        run = request.headers.get("x-run", "1")
        key = _key(body)
        self.asked[run, key] += 1
        if self.draft.recorded[run, key] >= self.asked[run, key]:
            return  # an earlier connection asked this too; a replay starts anew with each connection
        stored = json.loads(normalised(json.dumps(body, ensure_ascii=False)))
        exchange = {"run": run, "request": stored, "response": _kept(response)}
        _checked(self.path, {**self.draft.head, "exchanges": [exchange]})
        self.draft.add(exchange)
        _write(self.path, self.draft.text())

    def close(self) -> None:
        self.inner.close()


class _Tee(httpx.SyncByteStream):
    """Hands each chunk on as it comes; what was read to the end is kept, what was broken off is not."""

    def __init__(self, stream: httpx.SyncByteStream, keep):
        self.stream, self.keep = stream, keep

    def __iter__(self) -> Iterator[bytes]:
        chunks = []
        for chunk in self.stream:
            chunks.append(chunk)
            yield chunk
        self.keep(b"".join(chunks))

    def close(self) -> None:
        self.stream.close()


def _kept(response: httpx.Response) -> dict:
    """A response as a recording holds it: decoded (gzip), as JSON, text or base64, with the listed headers only."""
    kept = {
        "status": response.status_code,
        "headers": {name: response.headers[name] for name in KEPT_HEADERS if name in response.headers},
    }
    if not response.is_success:
        raise ClassroomError(f"HTTP {response.status_code} was not recorded: only answers are. {response.text[:200]}")
    kind = response.headers.get("content-type", "").lower()
    if kind.startswith("text/event-stream"):
        stream = httpx.Response(200, headers={"content-type": kind}, content=response.content)
        for event in httpx_sse.EventSource(stream).iter_sse():
            if event.event == "error" or event.data.replace(" ", "").startswith('{"type":"error"'):
                raise ClassroomError(f"The stream was not recorded: it ended in an error event: {event.data}")
    if kind.startswith("application/json"):
        return {**kept, "json": response.json()}
    try:
        return {**kept, "text": response.content.decode()}
    except UnicodeDecodeError:
        return {**kept, "base64": base64.b64encode(response.content).decode()}


def _not_recorded(recording: dict, run: str, body: object) -> str:
    """The lesson in a miss: the nearest recorded request, what differs, and the ways on."""
    text = normalised(canonical(body))
    of_run = [e for e in recording["exchanges"] if e["run"] == run]
    nearest = max(
        of_run or recording["exchanges"],
        key=lambda e: difflib.SequenceMatcher(None, canonical(e["request"]), text, autojunk=False).quick_ratio(),
        default=None,
    )
    lines = [f"This request was not recorded in the scene {recording['scene']!r}, run {run!r}."]
    if nearest is None:
        lines += ["The scene has no exchanges at all."]
    else:
        if not of_run:
            runs = dict.fromkeys(e["run"] for e in recording["exchanges"])
            lines += [f"It has the runs {', '.join(runs)}. Nearest is run {nearest['run']!r}."]
        if found := differences(nearest["request"], json.loads(text)):
            lines += ["It differs from the nearest recorded request in:"]
            lines += [f"  {where}: recorded {old}, now {new}" for where, old, new in found[:MOST_DIFFERENCES]]
            if len(found) > MOST_DIFFERENCES:
                lines += [f"  and {len(found) - MOST_DIFFERENCES} more places"]
        else:
            lines += ["The request is a recorded one; only the run is not."]
    return "\n".join(
        [
            *lines,
            "Ways on: undo the change (a cell that ran twice may be one: run the notebook from the top);",
            "or ask the model on this machine: `make live` once, then backend='local'",
            "  (--backend local in a command, BACKEND=local after make);",
            "or ask a provider with your key: backend='anthropic' or 'openai'.",
        ]
    )


def differences(old: object, new: object, where: str = "") -> list[tuple[str, str, str]]:
    """The places in which two JSON values differ: [(place, old, new)], places like `tools[0].description`."""
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in [*old, *(key for key in new if key not in old)]:
            place = f"{where}.{key}" if where else key
            found += differences(old.get(key, _ABSENT), new.get(key, _ABSENT), place)
        return found
    if isinstance(old, list) and isinstance(new, list):
        found = [d for i, (a, b) in enumerate(zip(old, new, strict=False)) for d in differences(a, b, f"{where}[{i}]")]
        return found + ([(where, f"{len(old)} items", f"{len(new)} items")] if len(old) != len(new) else [])
    if _shown(old) == _shown(new):
        return []
    return [(where or "the whole body", *_brief(_shown(old), _shown(new)))]


_ABSENT = object()


def _shown(value: object) -> str:
    return "nothing" if value is _ABSENT else canonical(value)


def _brief(old: str, new: str) -> tuple[str, str]:
    """Both texts, cut to a window that begins shortly before their first difference."""
    same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    start = max(same - 20, 0) if max(len(old), len(new)) > 80 else 0
    return tuple(f"{'…' * (start > 0)}{t[start : start + 77]}{'…' * (len(t) > start + 77)}" for t in (old, new))
