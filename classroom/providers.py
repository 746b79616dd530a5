"""Asking a model's API over the network: address and key put on, busy answers tried again, faults made plain.

Handles any server of the Anthropic or OpenAI form. Does not send the run id or anything else of the classroom out.
"""

import datetime
import email.utils
import json
import time
from collections.abc import Callable

import httpx
import tenacity

from .errors import ClassroomError, NoAnswer

RETRIED = (429, 500, 502, 503, 504, 529)
TRIES = 5
LONGEST_WAIT = 60.0  # seconds; a server that asks for more is not waited for


class Provider(httpx.BaseTransport):
    """Sends the body of a request to `url` with `headers`. A busy answer is tried again, a refusal never."""

    def __init__(self, url: str, headers: dict[str, str], sleep: Callable[[float], None] = time.sleep):
        self.url, self.headers = url, {"content-type": "application/json", **headers}
        # A client and not a transport: it heeds the proxies of the environment. No connection is kept open between
        # turns, since nobody closes a client in a notebook.
        try:
            self.client = httpx.Client(timeout=600, limits=httpx.Limits(max_keepalive_connections=0))
        except (ValueError, ImportError, OSError, httpx.InvalidURL) as error:
            raise ClassroomError(
                f"The network settings of the environment cannot be used ({error}). "
                "Look at HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY and SSL_CERT_FILE."
            ) from None
        self.send = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda response: response.status_code in RETRIED),
            wait=_wait,
            stop=tenacity.stop_after_attempt(TRIES) | _asks_too_long,
            retry_error_callback=lambda state: state.outcome.result(),
            before_sleep=lambda state: state.outcome.result().close(),
            sleep=sleep,
        ).wraps(self._send)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self.send(request.read())

    def _send(self, body: bytes) -> httpx.Response:
        request = self.client.build_request("POST", self.url, headers=self.headers, content=body)
        return self.client.send(request, stream=True)

    def close(self) -> None:
        self.client.close()


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds asked for by the server, given as a number or as a date (RFC 9110, section 10.2.3)."""
    value = response.headers.get("retry-after", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        when = email.utils.parsedate_to_datetime(value)
        return max(0.0, (when - datetime.datetime.now(datetime.UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _wait(state: tenacity.RetryCallState) -> float:
    asked = _retry_after(state.outcome.result())
    return min(2.0 ** (state.attempt_number - 1), LONGEST_WAIT) if asked is None else asked


def _asks_too_long(state: tenacity.RetryCallState) -> bool:
    return _wait(state) > LONGEST_WAIT


class Checked(httpx.BaseTransport):
    """Passes answers on, and makes one clear line of everything that is not an answer.

    `who` is named in that line; `field` is a list that every answer has.
    """

    def __init__(self, inner: httpx.BaseTransport, who: str, field: str = "content"):
        self.inner, self.who, self.field = inner, who, field

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return self._checked(self.inner.handle_request(request), _streams(request))
        except httpx.TimeoutException:
            raise NoAnswer(f"{self.who} did not answer in time. Try again, or use backend='recorded'.") from None
        except httpx.DecodingError:
            raise NoAnswer(f"{self.who} sent an answer that cannot be unpacked. Try again.") from None
        except (httpx.RequestError, httpx.InvalidURL, UnicodeError) as error:
            raise NoAnswer(
                f"{self.who} cannot be reached ({error}). Is the address right, and is the server running?"
            ) from None

    def _checked(self, response: httpx.Response, streaming: bool) -> httpx.Response:
        kind = response.headers.get("content-type", "no content type").lower()
        if streaming and response.is_success and kind.startswith("text/event-stream"):
            return response
        # Read here and handed on as one piece: a broken body is then found here and not in the loop.
        data = b"".join(response.stream)
        response.close()
        whole = httpx.Response(response.status_code, headers=response.headers, content=data)
        if whole.is_success and kind.startswith("text/event-stream") and self.field == "choices":
            return whole  # some servers of OpenAI's form stream without being asked
        try:
            body = json.loads(whole.content)
        except (ValueError, RecursionError):
            if whole.is_success:
                raise NoAnswer(
                    f"{self.who} answered HTTP {whole.status_code} with {kind}, which is not JSON. "
                    "Is this the address of a model's API?"
                ) from None
            body = f"{kind}, not JSON: is this the address of a model's API?"
        if not whole.is_success:
            hopeless = whole.status_code in (401, 403, 404) or whole.has_redirect_location
            kind_of_error = ClassroomError if hopeless else NoAnswer
            raise kind_of_error(f"{self.who} {_meaning(whole.status_code, error_in(body))}")
        if not (isinstance(body, dict) and isinstance(body.get(self.field), list)):
            raise NoAnswer(f"{self.who} answered with JSON that is no model's reply: {error_in(body)}")
        return whole

    def close(self) -> None:
        self.inner.close()


def _meaning(status: int, said: str) -> str:
    """What a refusal means to a person, and what to do."""
    if status in (401, 403):
        return f"refused the key (HTTP {status}: {said}). Check that the key is whole and belongs to this address."
    if status in RETRIED:
        return f"is busy or limits your requests (HTTP {status}: {said}). Wait a while, then try again."
    if 300 <= status < 400:
        return f"sends you elsewhere (HTTP {status}: {said}). Use the address that it names."
    if status == 404:
        return f"knows no such address or model (HTTP 404: {said}). TINY_AGENT_MODEL sets the model's id."
    return f"refused the request (HTTP {status}: {said})."


def _streams(request: httpx.Request) -> bool:
    """Whether a stream was asked for, by the field and not by a word somewhere in the text."""
    try:
        return bool(json.loads(request.read()).get("stream"))
    except (ValueError, AttributeError, RecursionError):
        return False


def error_in(body: object) -> str:
    """The error message in a body of either provider's form, else the beginning of the body."""
    error = body.get("error") if isinstance(body, dict) else None
    said = error["message"] if isinstance(error, dict) and error.get("message") else error or body
    return " ".join(str(said).split())[:300]
