"""Opening a chapter: the right folder, the right version, and one line that says so."""

import os
import sys
from importlib import import_module

from .backends import chosen_backend
from .errors import ClassroomError
from .versions import CHAPTERS, ROOT, chapters, package, taught, teaches


def begin(chapter: str, *, backend: str | None = None) -> None:
    """Make this notebook run as chapter `01_loop`, wherever its kernel was started, and print what it runs on.

    Works in the chapter's folder from here on, imports the version the chapter teaches, and sets the backend for
    every later `connect`. Raises ClassroomError where the version is another one.
    """
    if chapter not in chapters():
        raise ClassroomError(f"There is no chapter {chapter!r} in {CHAPTERS.name}/: {', '.join(chapters())}.")
    answers = os.environ["TINY_AGENT_BACKEND"] = chosen_backend(backend)
    folder = package(chapter)
    os.chdir(CHAPTERS / chapter)
    sys.path.insert(0, str(folder.parent))
    tiny_agent = import_module("tiny_agent")
    if not os.path.samefile(os.path.dirname(tiny_agent.__file__), folder):
        raise ClassroomError("Another tiny_agent is loaded already. Restart the kernel, then run this cell first.")
    if not teaches(chapter, tiny_agent.__version__):
        raise ClassroomError(
            f"Chapter {chapter} teaches {taught(chapter)}, but {folder.relative_to(ROOT)} is "
            f"{tiny_agent.__version__}. Check out the tag that the chapter names, or main."
        )
    _short_errors()
    how = " (no key, no network)" if answers in ("recorded", "local") else ""
    print(f"Chapter {chapter}, tiny_agent {tiny_agent.__version__}. Answers: {answers}{how}.")


def _short_errors() -> None:
    """In a notebook, show an exception as its one line: no frames, so no paths of anybody's machine."""
    if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()):
        shell.InteractiveTB.set_mode("Minimal")
