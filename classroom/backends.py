"""Who answers: `connect` gives an httpx.Client whose transport is a recording, the local model or a provider.

The taught code never learns which one it is. Does not stream; what a provider's faults mean is in providers.py.
"""

import datetime
import json
import os
from pathlib import Path

import httpx

from . import llama, local, openai_form, recordings, smollm
from .errors import ClassroomError
from .providers import Checked, Provider
from .versions import CHAPTERS, chapters

BACKENDS = ("recorded", "local", "anthropic", "openai")
# The one place for the ids of hosted models; TINY_AGENT_MODEL overrides it. An OpenAI-style server has no default.
ANTHROPIC_MODEL = "claude-haiku-5-5"
ANTHROPIC_VERSION = "2026-10-21"
ANTHROPIC_URL = "https://api.anthropic.com"
OPENAI_URL = "https://api.openai.com/v1"


class Client(httpx.Client):
    """An httpx.Client that also knows which model id to ask for and who answers, and keeps what went over the wire.

    `model`: the id to send. `source`: a line for a person. `exchanges`: [(request, response)], both as dicts, like
    the network panel of a browser.
    """

    def __init__(self, transport: httpx.BaseTransport, *, model: str, source: str, run: str):
        super().__init__(
            transport=transport,
            base_url="http://classroom",
            headers={"x-run": run},
            timeout=600,
            event_hooks={"response": [self._keep]},
        )
        self.model, self.source, self.exchanges = model, source, []

    def _keep(self, response: httpx.Response) -> None:
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            self.exchanges.append((json.loads(response.request.content), json.loads(response.read())))

    @property
    def messages(self) -> list[dict]:
        """The conversation as last seen on the wire: what was sent, and the reply to it."""
        if not self.exchanges:
            raise ClassroomError("There are no messages yet: nothing was asked through this client.")
        request, reply = self.exchanges[-1]
        return [*request["messages"], {"role": "assistant", "content": reply["content"]}]


def connect(scene: str, *, backend: str | None = None, run: str | int = 1, local_model: str | None = None) -> Client:
    """A client for one run of a scene such as `01_loop/read`.

    `backend`: one of BACKENDS; else $TINY_AGENT_BACKEND, else recorded. `run` tells equal runs apart: it picks the
    run of a recording, and is the seed of the local model. `local_model` is the id by which the local model is asked
    in this scene (default: the one it was recorded with). Raises ClassroomError.
    """
    backend, path = chosen_backend(backend), scene_path(scene)
    if not (str(run).isascii() and str(run).isprintable()):
        raise ClassroomError(f"A run is named with plain letters and digits, not {run!r}.")
    scratch = os.environ.get("TINY_AGENT_RECORD")
    if scratch and is_scripted(path):
        backend, scratch = "recorded", None  # what was written by hand is not recorded over
    if backend == "recorded":
        recording = recordings.load(path)
        origin = recording["provenance"]
        return Client(
            recordings.RecordedTransport(recording),
            model=origin["model"],
            source=recordings.source(origin),
            run=str(run),
        )
    transport, model, origin = _live(backend, path, local_model)
    if scratch:
        file = Path(scratch).resolve() / path.relative_to(CHAPTERS)
        transport = _recorder(transport, file, scene, {"backend": backend, **origin})
    return Client(transport, model=model, source=f"live, asked now: {backend} {model}", run=str(run))


def scripted(*replies: dict) -> Client:
    """A client that answers with these messages in order, written by hand: `{"content": […], "stop_reason": …}`."""
    waiting = list(replies)

    def play(request: httpx.Request) -> httpx.Response:
        if not waiting:
            raise ClassroomError(
                f"The script is at its end (replies: {len(replies)}), and the loop asked for one more."
            )
        usage = {"input_tokens": 0, "output_tokens": 0}
        message = {"type": "message", "role": "assistant", "usage": usage, **waiting.pop(0)}
        # json.dumps and not httpx's json=: a script may show what is no valid JSON (NaN, half a surrogate pair).
        return httpx.Response(200, headers={"content-type": "application/json"}, content=json.dumps(message))

    source = recordings.source({"kind": "scripted"})
    return Client(httpx.MockTransport(play), model="scripted", source=source, run="1")


def chosen_backend(backend: str | None = None) -> str:
    """The backend that is asked for: by argument, by $TINY_AGENT_BACKEND, or `recorded`."""
    backend = backend or os.environ.get("TINY_AGENT_BACKEND", "").strip() or "recorded"
    if backend not in BACKENDS:
        raise ClassroomError(f"There is no backend {backend!r}. There are: {', '.join(BACKENDS)}.")
    return backend


def is_scripted(path: Path) -> bool:
    """Whether a scene's file was written by hand, so that it is never recorded over."""
    return _origin(path).get("kind") == "scripted"


def _origin(path: Path) -> dict:
    """The provenance of a scene that may not be there, or not be whole, since it is to be recorded again."""
    try:
        return recordings.load(path)["provenance"]
    except ClassroomError:
        return {}


def scene_path(scene: str) -> Path:
    """The file of a scene's recording, which need not exist yet."""
    chapter, _, name = scene.partition("/")
    if chapter not in chapters() or not name:
        raise ClassroomError(
            f"A scene is named like '01_loop/read', not {scene!r}. Chapters here: {', '.join(chapters())}."
        )
    return CHAPTERS / chapter / "recordings" / f"{name}.json"


def _live(backend: str, path: Path, local_model: str | None) -> tuple[httpx.BaseTransport, str, dict]:
    """The transport of a live backend, the id it is asked for, and its provenance."""
    wanted = os.environ.get("TINY_AGENT_MODEL", "").strip()
    if backend == "local":
        recorded_id = _origin(path).get("model")
        model = wanted or local_model or (recorded_id if recorded_id in smollm.IDS else "smollm2-135m")
        llama.weights()
        sampling = {"temperature": smollm.IDS.get(model, {}).get("temperature"), **smollm.CUTS, "seed": "crc32 of run"}
        sampling["max_tokens"] = smollm.MAX_TOKENS
        origin = {"model": model, "sampling": sampling, **llama.about()}
        return Checked(httpx.WSGITransport(local.application), "the local model"), model, origin
    if backend == "anthropic":
        base = _address("ANTHROPIC_BASE_URL", ANTHROPIC_URL)
        headers = {"x-api-key": _need("ANTHROPIC_API_KEY", backend), "anthropic-version": ANTHROPIC_VERSION}
        model = wanted or ANTHROPIC_MODEL
        return _provider(f"{base}/v1/messages", headers, "content"), model, {"model": model}
    base = _address("OPENAI_BASE_URL", OPENAI_URL)
    here = "your key, or OPENAI_BASE_URL, the address of a server that needs none"
    needed = base == OPENAI_URL or os.environ.get("OPENAI_API_KEY", "").strip()
    key = _need("OPENAI_API_KEY", backend, here) if needed else None
    model = _need("TINY_AGENT_MODEL", backend, "the name under which that server knows the model")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    transport = _provider(f"{base}/chat/completions", headers, "choices")
    # OpenAI's newer models refuse the old name of the limit; most other servers know no other.
    limit = "max_completion_tokens" if base == OPENAI_URL else "max_tokens"
    return openai_form.Transport(transport, transport.who, limit), model, {"model": model}


def _provider(url: str, headers: dict[str, str], field: str) -> Checked:
    return Checked(Provider(url, headers), f"The server at {url}", field)


def _address(name: str, default: str) -> str:
    return (os.environ.get(name, "").strip() or default).rstrip("/")


def _need(name: str, backend: str, what: str = "your key") -> str:
    if not os.environ.get(name, "").strip():
        raise ClassroomError(
            f"The backend {backend!r} needs {name}, {what}: `export {name}=…`, or use backend='recorded' or 'local'."
        )
    value = os.environ[name].strip()
    if not (value.isascii() and value.isprintable()):  # never shown: it may be most of a key
        raise ClassroomError(f"{name} holds a line break or a letter that no key has. Set it again, copied whole.")
    return value


_being_recorded: dict[Path, recordings.Draft] = {}  # by file, for all connections of this process


def _recorder(transport: httpx.BaseTransport, path: Path, scene: str, origin: dict) -> httpx.BaseTransport:
    date = datetime.date.today().isoformat()
    provenance = {"kind": "recorded", **origin, "date": date}
    start = {"scene": scene, "provenance": provenance, "exchanges": []}
    return recordings.Recorder(transport, path, _being_recorded.setdefault(path, recordings.Draft(start)))
