import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import nbformat
import pytest
from xdist.scheduler import LoadScopeScheduling

from classroom.record import notebook_of
from classroom.versions import CHAPTERS, ROOT, package


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    """No key, address or choice of the person who runs the tests reaches a test."""
    for name in list(os.environ):
        if name.startswith(("TINY_AGENT_", "ANTHROPIC_", "OPENAI_")):
            monkeypatch.delenv(name)


class ByNotebook(LoadScopeScheduling):
    """Where several processes share the tests: the cells of a notebook stay together, since they share a kernel."""

    def _split_scope(self, nodeid):
        return nodeid.split("::")[0] if ".ipynb::" in nodeid else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return ByNotebook(config, log)


@contextmanager
def serving(*answers, rest=None):
    """A real HTTP server on loopback: gives (status, headers, body) in turn, then `rest`; yields .url and .seen."""
    waiting, seen = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            seen.append(SimpleNamespace(path=self.path, headers=self.headers, body=body))
            status, headers, answer = waiting.pop(0) if waiting else rest
            self.send_response(status)
            for name, value in {"content-length": str(len(answer)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}", seen=seen)
    finally:
        server.shutdown()
        server.server_close()


JSON = {"content-type": "application/json"}


def command(chapter, *args):
    """`python -m tiny_agent` of a chapter's version, in the chapter's folder."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package(chapter).parent), str(ROOT)])}
    line = [sys.executable, "-m", "tiny_agent", "--workspace", "workspace", *args]
    return subprocess.run(line, cwd=CHAPTERS / chapter, env=env, capture_output=True, text=True)


def cells(chapter):
    """The cells of a committed notebook."""
    return nbformat.read(notebook_of(chapter), as_version=4).cells


def solutions(cells):
    """The code of the solutions that stand in these cells, folded away."""
    return [re.search(r"```python\n(.*?)```", cell.source, re.S)[1] for cell in cells if "Solution" in cell.source]
