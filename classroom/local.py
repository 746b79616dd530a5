"""The local model as a Messages API: one WSGI application, mounted in a notebook or served on 127.0.0.1.

Answers POST /v1/messages like the API does, errors included. Does not stream, count tokens or take images, and
answers what it cannot do with a 400, never by leaving it out. Takes any key, in x-api-key or as a bearer token.
"""

import json
import re
import socketserver
import zlib
from collections.abc import Callable, Iterable
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import httpx

from . import llama, smollm
from .errors import ClassroomError

FIELDS = {"model", "max_tokens", "messages", "system", "tools", "stream", "metadata", "cache_control", "chances"}


def application(environ: dict, start_response: Callable) -> Iterable[bytes]:
    """WSGI: POST /v1/messages; the seed is taken from the run id in the X-Run header (`1` without one)."""
    status = "200 OK"
    try:
        if (environ["REQUEST_METHOD"], environ["PATH_INFO"]) != ("POST", "/v1/messages"):
            raise NotFound(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']} is not served, POST /v1/messages is")
        length = environ.get("CONTENT_LENGTH") or ""
        if not length.isdigit():
            raise ValueError("the header content-length is missing")
        body = answer(json.loads(environ["wsgi.input"].read(int(length))), run=environ.get("HTTP_X_RUN", "1"))
    except NotFound as error:
        status, body = "404 Not Found", _error("not_found_error", str(error))
    except UnicodeError:
        status, body = "400 Bad Request", _error("invalid_request_error", "the text holds half a surrogate pair")
    except (ValueError, RecursionError) as error:
        status, body = "400 Bad Request", _error("invalid_request_error", str(error))
    except (KeyError, TypeError, AttributeError, httpx.HTTPStatusError) as error:
        malformed = f"the request is malformed ({type(error).__name__}: {error})"
        status, body = "400 Bad Request", _error("invalid_request_error", malformed)
    data = json.dumps(body).encode()
    start_response(status, [("content-type", "application/json"), ("content-length", str(len(data)))])
    return [data]


class NotFound(Exception):
    """No such address or model: HTTP 404."""


def _error(kind: str, message: str) -> dict:
    return {"type": "error", "error": {"type": kind, "message": message}}


def answer(request: dict, run: str = "1") -> dict:
    """A Messages request -> a Messages response. Raises ValueError (bad request) or NotFound (no such model).

    With `"chances": true`, which is our own, nothing is said: the response holds the chances of what would be.
    """
    if isinstance(request, dict) and request.get("chances") is True:
        from .chances import weighed  # not above: it needs `rendered`

        return {"type": "message", "content": [], "chances": weighed(request)}
    asked, how = rendered(request), sampling(run)
    limit = min(request["max_tokens"], smollm.MAX_TOKENS if asked["grammar"] else smollm.MAX_CHAT_TOKENS)
    reply = llama.complete(
        asked["prompt"],
        prefix=asked["prefix"],
        max_tokens=limit,
        temperature=asked["temperature"],
        **({"grammar": asked["grammar"]} if asked["grammar"] else {}),
        **how,
    )
    if asked["grammar"]:
        content, stop_reason = smollm.blocks(reply["text"], how["seed"], asked["prompt"])
    else:
        content = [{"type": "text", "text": reply["text"]}]
        stop_reason = "max_tokens" if reply["cut"] else "end_turn"
    return {
        "id": f"msg_{zlib.crc32(reply['text'].encode()):08x}{how['seed']:08x}",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": _usage(reply, cached="cache_control" in request),
    }


def rendered(request: object) -> dict:
    """A request as the model is asked it (see `smollm.render`). Raises what `answer` raises.

    Where a message or a tool is malformed further down, that may be a KeyError, TypeError or AttributeError.
    """
    _check(request)
    return smollm.render(request)


def _usage(reply: dict, cached: bool) -> dict:
    """Tokens as the API counts them: where a cache was asked for, what came from it is not in input_tokens.

    The fixed part of the prompt counts as read from the cache even the first time in a process, when it is read
    anew: a reply must not depend on what was asked before it.
    """
    usage = {"input_tokens": reply["input_tokens"], "output_tokens": reply["output_tokens"]}
    if cached:
        usage["input_tokens"] -= reply["prefix_tokens"]
        usage |= {"cache_read_input_tokens": reply["prefix_tokens"], "cache_creation_input_tokens": 0}
    return usage


def sampling(run: str) -> dict:
    """How the next token is drawn, but for the temperature, which is part of the model id."""
    return {"seed": zlib.crc32(run.encode()), **smollm.CUTS}


def _check(request: object) -> None:
    if not isinstance(request, dict):
        raise ValueError("the body must be a JSON object")
    if missing := {"model", "max_tokens", "messages"} - set(request):
        raise ValueError(f"{', '.join(sorted(missing))}: field required")
    if extra := set(request) - FIELDS:
        raise ValueError(f"{', '.join(sorted(extra))}: not supported by the local model")
    if request.get("stream"):
        raise ValueError("stream: the local model answers in one piece only")
    if not isinstance(request["max_tokens"], int) or request["max_tokens"] < 1:
        raise ValueError("max_tokens: must be an integer, 1 or more")
    if not isinstance(request["messages"], list) or not request["messages"]:
        raise ValueError("messages: at least one message is required")
    for i, message in enumerate(request["messages"]):
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            raise ValueError(f"messages.{i}: must be an object with the role user or assistant")
        content = message.get("content")
        blocks = content if isinstance(content, list) else []
        if not (isinstance(content, str) or (blocks and all(isinstance(b, dict) and "type" in b for b in blocks))):
            raise ValueError(f"messages.{i}.content: must be text or a list of content blocks")
    for i, tool in enumerate(request.get("tools") or []):
        if not (isinstance(tool, dict) and isinstance(tool.get("input_schema"), dict)):
            raise ValueError(f"tools.{i}: must be an object with a name and an input_schema")
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", str(tool.get("name"))):
            raise ValueError(f"tools.{i}.name: must be 1 to 128 letters, digits, _ or -")
    if request["model"] not in smollm.IDS:
        raise NotFound(f"model: {request['model']} (the local model answers to: {', '.join(smollm.IDS)})")


class Server(socketserver.ThreadingMixIn, WSGIServer):
    """A thread for each connection, so that one that says nothing keeps nobody waiting."""

    daemon_threads = True


class Handler(WSGIRequestHandler):
    timeout = 30  # seconds that a connection may say nothing

    def log_message(self, format: str, *args: object) -> None:
        print(format % args, flush=True)


def serve(port: int) -> None:
    """Serve the application on 127.0.0.1 until Ctrl-C. Raises ClassroomError where the port or the model is missing."""
    llama.weights()
    try:
        server = make_server("127.0.0.1", port, application, Server, Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ClassroomError(f"Port {port} on 127.0.0.1: {reason}. Try another: make model MODEL_PORT=8090") from None
    print(f"The Messages API on http://127.0.0.1:{server.server_port}: {', '.join(smollm.IDS)}. Ctrl-C ends it.")
    print(f"  ANTHROPIC_BASE_URL=http://127.0.0.1:{server.server_port} ANTHROPIC_API_KEY=any", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("ended")
