"""A tiny agent that grows one version at a time. This is v0.2: the same loop, over a context that you hold."""

from .agent import MODEL, TOOLS, read_file, run, run_tools
from .context import Context, ContextError, compact, input_tokens, safe_cut

__all__ = [
    "MODEL",
    "TOOLS",
    "Context",
    "ContextError",
    "compact",
    "input_tokens",
    "read_file",
    "run",
    "run_tools",
    "safe_cut",
]
__version__ = "0.2"
