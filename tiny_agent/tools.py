"""The tools: what the model may ask for, the check of what it asks, and one way to run it.

Handles: a tool that does not exist, input that does not fit the schema, whatever a tool raises, output that is too
long. Does not handle: a well-formed call that is a bad idea, such as a path that leads out of the workspace.
"""

import codecs
import errno
import json
import os
import shutil
import threading
from pathlib import Path

MAX_OUTPUT = 20_000  # characters of one result, or of one error

PATH = {"type": "string", "description": "Relative to the workspace"}
TOOLS = [
    {
        "name": "read_file",
        "description": "Read a file",
        "input_schema": {
            "type": "object",
            "properties": {
                "path": PATH,
                "offset": {"type": "integer", "minimum": 0, "description": "How many characters to skip"},
                "limit": {"type": "integer", "minimum": 1, "description": "How many characters to read"},
            },
            "required": ["path"],
            "additionalProperties": False,
        },
    },
    {
        "name": "write_file",
        "description": "Write a file, in place of all that it held. Does not make directories",
        "input_schema": {
            "type": "object",
            "properties": {"path": PATH, "content": {"type": "string"}},
            "required": ["path", "content"],
            "additionalProperties": False,
        },
    },
    {
        "name": "list_dir",
        "description": "List the files in a directory",
        "input_schema": {
            "type": "object",
            "properties": {"path": PATH},
            "required": ["path"],
            "additionalProperties": False,
        },
    },
]


def read_file(workspace: Path, path: str, offset: int = 0, limit: int | None = None) -> str:
    """The text of a file, without a byte order mark, with the line ends that it has."""
    text = regular_file(workspace, path).read_bytes().decode("utf-8-sig")
    return text[int(offset) :][: None if limit is None else int(limit)]  # 30.0 is an integer in JSON


def write_file(workspace: Path, path: str, content: str) -> str:
    """Write the text as it is, whole or not at all; a file that began with a byte order mark keeps it."""
    file, data = Path(os.path.realpath(regular_file(workspace, path))), content.encode()  # a link stays a link
    if file.is_symlink():
        raise OSError(errno.ELOOP, "A link that leads to itself", path)
    if file.exists():
        with file.open("r+b") as old:  # raises where the file may not be written
            data = codecs.BOM_UTF8 + data if old.read(3) == codecs.BOM_UTF8 else data
    write_whole(file, data)
    return f"Wrote {len(data)} bytes to {path}."


def write_whole(file: Path, data: bytes) -> None:
    """Write a file, or leave it as it was: a draft beside it takes its place once it is whole."""
    draft = file.with_name(f".{os.getpid()}-{threading.get_ident()}.part")
    try:
        draft.write_bytes(data)
        if file.exists():
            shutil.copymode(file, draft)
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)


def list_dir(workspace: Path, path: str) -> str:
    """A JSON array of what is in a directory, by name; a link that leads nowhere is listed as unreadable."""
    with os.scandir(workspace / path) as entries:
        return json.dumps([described(entry) for entry in sorted(entries, key=lambda entry: entry.name)])


def described(entry: os.DirEntry) -> dict:
    """One entry: name, type, and the size of a file in bytes (that of a directory differs by machine)."""
    try:
        size = entry.stat().st_size
    except OSError:
        return {"name": entry.name, "type": "unreadable"}
    if entry.is_file():
        return {"name": entry.name, "type": "file", "size": size}
    return {"name": entry.name, "type": "directory" if entry.is_dir() else "other"}


def regular_file(workspace: Path, path: str) -> Path:
    """Where a file is, or will be. Raises OSError for a directory and for a pipe, which would never end."""
    file = workspace / path
    if file.exists() and not file.is_file():
        raise OSError(errno.EINVAL, "Not a file", path)
    return file


FUNCTIONS = {"read_file": read_file, "write_file": write_file, "list_dir": list_dir}


def run_tool(name: str, input: object, workspace: str | Path, tools: list[dict] = TOOLS) -> dict:
    """Run one call. Returns {"content": str}, or {"error": str} with words for the model; raises nothing.

    `tools` are those that the model was offered; no other is run.
    """
    schemas = {tool["name"]: tool.get("input_schema", {}) for tool in tools if tool.get("name") in FUNCTIONS}
    if name not in list(schemas):
        return {"error": capped(f"There is no tool {name!r}. There are: {', '.join(schemas)}.")}
    if faults := validate_input(schemas[name], input) or half_letters(input):
        return {"error": capped(f"{name} was not run. {'; '.join(faults)}.")}
    try:
        return {"content": capped(FUNCTIONS[name](Path(workspace), **input))}
    except Exception as error:  # all there is: a NUL in a path is a ValueError, a link loop may be a RuntimeError
        return {"error": capped(in_words(error, input))}


def validate_input(schema: dict, input: object) -> list[str]:
    """All that is wrong with the input of a call, in words; nothing where it fits. No input makes it raise.

    Knows the keywords `type`, `required`, `minimum` and `additionalProperties: false`, also within `properties`
    (https://json-schema.org/draft/2020-12/json-schema-validation). No other keyword is looked at.
    """
    return faults({"type": "object", **schema}, input, "input")


def half_letters(input: dict) -> list[str]:
    """Texts with half of a surrogate pair, which no file and no later request could hold as they are."""
    texts = ((name, value) for name, value in input.items() if isinstance(value, str))
    broken = (name for name, text in texts if text != text.encode(errors="replace").decode())
    return [f"input.{name}: holds half of a letter (half a surrogate pair)" for name in broken]


def faults(schema: dict | bool, value: object, where: str) -> list[str]:
    if isinstance(schema, bool):  # JSON Schema's own short forms of "anything" and "nothing"
        return [] if schema else [f"{where}: not allowed"]
    got, wanted = json_type(value), schema.get("type", [])
    wanted = [wanted] if isinstance(wanted, str) else wanted
    if wanted and got not in wanted and not (got == "integer" and "number" in wanted):
        hint = " (a field without a value is left out)" if got == "null" else ""
        return [f"{where}: expected {' or '.join(map(a, wanted))}, got {a(got)}{hint}"]
    if got in ("integer", "number") and "minimum" in schema and not value >= schema["minimum"]:
        return [f"{where}: expected {schema['minimum']} or more"]
    if got != "object":
        return []
    known = schema.get("properties", {})
    found = [f"{where}.{name}: missing" for name in schema.get("required", []) if name not in value]
    if schema.get("additionalProperties") is False:
        found += [f"{where}.{name}: unknown, there are {', '.join(known)}" for name in value if name not in known]
    return found + [f for name in known if name in value for f in faults(known[name], value[name], f"{where}.{name}")]


def json_type(value: object) -> str:
    """The word of JSON Schema for a value. To Python True is an int, and to JSON 30.0 is an integer."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "integer" if value == value // 1 else "number"
    return {str: "string", list: "array", dict: "object"}.get(type(value), type(value).__name__)


def a(kind: str) -> str:
    return kind if kind == "null" else f"an {kind}" if kind[0] in "aio" else f"a {kind}"


def capped(text: str) -> str:
    """The text, or as much of it as a result may hold, and how to get the rest."""
    if len(text) <= MAX_OUTPUT:
        return text
    return (
        f"{text[:MAX_OUTPUT]}\n[Cut off: these are the first {MAX_OUTPUT:,} of {len(text):,} characters. Ask for less; "
        f"of a file, read_file gives the rest with an offset that is {MAX_OUTPUT} more.]"
    )


def in_words(error: Exception, input: dict) -> str:
    """What went wrong, with the path that the model gave: a result must not depend on where the agent runs."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {input['path']}"
    return f"{type(error).__name__}: {getattr(error, 'reason', error)}"
