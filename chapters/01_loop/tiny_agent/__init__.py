"""A tiny agent that grows one version at a time. This is v0.1: the bare loop and one tool."""

from .agent import MODEL, TOOLS, read_file, run

__all__ = ["MODEL", "TOOLS", "read_file", "run"]
__version__ = "0.1"
