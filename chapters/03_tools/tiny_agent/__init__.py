"""A tiny agent that grows one version at a time. This is v0.3: calls are checked, failures told to the model."""

from .agent import MODEL, run
from .context import Context, ContextError, compact, input_tokens, safe_cut
from .tools import TOOLS, run_tool, validate_input

__all__ = [
    "MODEL",
    "TOOLS",
    "Context",
    "ContextError",
    "compact",
    "input_tokens",
    "run",
    "run_tool",
    "safe_cut",
    "validate_input",
]
__version__ = "0.3"
