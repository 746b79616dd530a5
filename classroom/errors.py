"""The exceptions of the classroom: something a person can put right, said in words."""

import httpx


class ClassroomError(Exception):
    """Says what happened, where, and what to do next; a notebook shows it without a traceback."""

    def _render_traceback_(self) -> list[str]:
        # IPython calls this in place of its own traceback, so no frame of the plumbing is shown.
        return [f"ClassroomError: {self}"]


class NoAnswer(ClassroomError, httpx.HTTPError):
    """This one request was not answered; another one may be. An experiment counts such a run as not run."""
