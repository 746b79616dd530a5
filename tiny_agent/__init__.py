"""A tiny agent that grows one version at a time. This is v0.4: what the words change is counted."""

from .agent import MODEL, run
from .context import Context, ContextError, compact, input_tokens, safe_cut
from .prompts import PROMPTS
from .tools import TOOLS, run_tool, validate_input

__all__ = [
    "MODEL",
    "PROMPTS",
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
__version__ = "0.4"
