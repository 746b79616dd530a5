"""What the room provides to every version: who answers, recordings, the transcript viewer, the versions.

Nothing here is the lesson; the lesson is tiny_agent. Importing it prints nothing and asks no model.
"""

import sys

if sys.version_info < (3, 11):
    raise ImportError(f"tiny-agent needs Python 3.11 or newer; this is {sys.version.split()[0]}. Pick another kernel.")

from .backends import BACKENDS, connect, scripted
from .bench import bench
from .chances import chances
from .errors import ClassroomError
from .explain import explain
from .faults import fault_table
from .room import begin
from .versions import version
from .viewer import bars, intervals, show

__all__ = [
    "BACKENDS",
    "ClassroomError",
    "bars",
    "begin",
    "bench",
    "chances",
    "connect",
    "explain",
    "fault_table",
    "intervals",
    "scripted",
    "show",
    "version",
]
