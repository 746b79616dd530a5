"""How SmolLM2-135M is asked: a Messages request becomes a prompt and a grammar, the reply becomes content blocks.

Handles text, tool_use and tool_result blocks. Does not handle images, documents or tool_choice, and does not run
the model (llama.py does). The rendering was chosen by measuring: a model this small follows one JSON step at a time,
with the task and all steps so far in ONE user message, and copies what it is shown more than what it is told.
"""

import hashlib
import json

IDS = {
    # Four demonstrations before the task, whatever tools are offered: one-tool tasks often work, and runs end.
    "smollm2-135m": {"demonstrations": True, "free_names": False, "temperature": 0.5},
    # No demonstration: descriptions and the order of tools act strongly, and failing calls are repeated.
    "smollm2-135m-bare": {"demonstrations": False, "free_names": False, "temperature": 0.8},
    # Tool names are not held to the list: it invents tools.
    "smollm2-135m-free": {"demonstrations": False, "free_names": True, "temperature": 0.8},
}
CUTS = {"top_k": 40, "top_p": 0.95, "min_p": 0.05}
MAX_TOKENS, MAX_CHAT_TOKENS = 120, 512  # of a step, and of a reply in a plain chat
LONGEST_TEXT, LONGEST_PATH = 120, 40  # characters of an answer or an argument, and of an argument named path

SYSTEM = "You are a file agent."
CHAT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
SAY = 'Reply with one JSON object: {"tool": name, "input": {...}} to use a tool, or {"answer": text} when you are done.'
ASK = "Give the next step for the task as JSON, or the answer if the task is done."

# What stands in the example beside a tool, by the name of the property; list_dir and write_file have their own.
EXAMPLES = {"path": "README.md", "content": "hello"}
EXAMPLES_OF = {"write_file": {"path": "draft.txt"}, "list_dir": {"path": "."}}


def _call(tool: str, input: dict) -> str:
    return json.dumps({"tool": tool, "input": input})


def _answer(text: str) -> str:
    return json.dumps({"answer": text})


# Task, then steps and results in turn. Copy last and read just before it was the best order of those tried.
DEMONSTRATIONS = [
    (
        "Show me the files here.",
        [
            _call("list_dir", {"path": "."}),
            "Tool result: guide.md\nfaq.md",
            _answer("The files are guide.md and faq.md."),
        ],
    ),
    (
        "Put the word ready in state.txt.",
        [
            _call("write_file", {"path": "state.txt", "content": "ready"}),
            "Tool result: wrote state.txt",
            _answer("state.txt says ready now."),
        ],
    ),
    (
        "What is in todo.txt?",
        [
            _call("read_file", {"path": "todo.txt"}),
            "Tool result: call Bob",
            _answer("todo.txt says: call Bob"),
        ],
    ),
    (
        "Copy the text of a.md to b.md.",
        [
            _call("read_file", {"path": "a.md"}),
            "Tool result: See you at noon.",
            _call("write_file", {"path": "b.md", "content": "See you at noon."}),
            "Tool result: wrote b.md",
            _answer("I copied a.md to b.md."),
        ],
    ),
]


def render(request: dict) -> dict:
    """A Messages request -> {"prefix", "prompt", "grammar", "temperature"}.

    `prompt` is the very text the model is given; it begins with `prefix`, the part that stays the same from turn to
    turn and from run to run (empty for a plain chat). `grammar` is GBNF, or None where no tools are offered.
    """
    how = IDS[request["model"]]
    system, tools = _text(request.get("system", "")), request.get("tools", [])
    if not tools:
        chat = [("system", system or CHAT_SYSTEM), *((m["role"], _text(m["content"])) for m in request["messages"])]
        return {"prefix": "", "prompt": _chatml(chat, open=True), "grammar": None, "temperature": how["temperature"]}

    fixed = [("system", _system_text(system or SYSTEM, tools, as_json=how["demonstrations"]))]
    if how["demonstrations"]:
        for task, steps in DEMONSTRATIONS:
            for i in range(0, len(steps), 2):  # each step of a demonstration is an exchange of its own
                fixed += [("user", _task_text(task, steps[:i])), ("assistant", steps[i])]
    task, *steps = _steps(request["messages"])
    return {
        "prefix": _chatml(fixed),
        "prompt": _chatml([*fixed, ("user", _task_text(task, steps))], open=True),
        "grammar": grammar(tools, free_names=how["free_names"], one_dir=how["demonstrations"]),
        "temperature": how["temperature"],
    }


def _chatml(messages: list[tuple[str, str]], open: bool = False) -> str:
    """The model's own chat template; `open` leaves it where the assistant begins to write."""
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)
    return text + "<|im_start|>assistant\n" if open else text


def _system_text(system: str, tools: list[dict], as_json: bool) -> str:
    line = _tool_as_json if as_json else _tool_as_signature
    return f"{system} You can use these tools:\n" + "".join(line(tool) + "\n" for tool in tools) + SAY


def _tool_as_json(tool: dict) -> str:
    examples = {**EXAMPLES, **EXAMPLES_OF.get(tool["name"], {})}
    return f"{tool.get('description', '')}: {_call(tool['name'], {p: examples.get(p, p) for p in _required(tool)})}"


def _tool_as_signature(tool: dict) -> str:
    return f"- {tool['name']}({', '.join(_required(tool))}): {tool.get('description', '')}"


def _required(tool: dict) -> list[str]:
    """The properties that this model is offered: an optional one it fills in with whatever comes to mind."""
    required = tool["input_schema"].get("required", [])
    return [name for name in tool["input_schema"].get("properties", {}) if name in required]


def _task_text(task: str, steps: list[str]) -> str:
    numbered = "\n".join(f"{i}. {step}" for i, step in enumerate(steps, 1)) or "(none yet)"
    return f"Task: {task}\nSteps so far:\n{numbered}\n{ASK}"


def _steps(messages: list[dict]) -> list[str]:
    """The conversation as the model is shown it: the task first, then a line for each call, result and text."""
    lines = []
    for message in messages:
        for block in _blocks(message["content"]):
            if block["type"] == "tool_use":
                lines.append(_call(block["name"], block["input"]))
            elif block["type"] == "tool_result":
                mark = "ERROR: " if block.get("is_error") else ""
                lines.append(f"Tool result: {mark}{_text(block.get('content', '')).rstrip(chr(10))}")
            elif message["role"] == "assistant":
                lines.append(_answer(_text([block])))
            else:
                lines.append(f"User: {_text([block])}" if lines else _text([block]))
    return lines


def _blocks(content: str | list[dict]) -> list[dict]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _text(content: str | list[dict]) -> str:
    for block in _blocks(content):
        if block["type"] != "text":
            raise ValueError(f"the local model reads text only, not a block of type {block['type']!r}")
    return "\n".join(block["text"] for block in _blocks(content))


def grammar(tools: list[dict], free_names: bool = False, one_dir: bool = False) -> str:
    """GBNF for one step, {"tool": …, "input": {…}} or {"answer": …}, in the spacing of json.dumps.

    `one_dir` holds the path of list_dir to ".": left free, the model writes the name of the tool into it.
    """
    if free_names:
        steps = [r'"\"tool\": \"" [a-z] [a-z_]{1,23} "\", \"input\": {" pair (", " pair){0,2} "}}"']
    else:
        steps = [rf'"\"tool\": \"{tool["name"]}\", \"input\": {{" {_fields(tool, one_dir)} "}}}}"' for tool in tools]
    rules = [
        "root ::= " + " | ".join(f'"{{" {step}' for step in [*steps, r'"\"answer\": " text "}"']),
        r'pair ::= "\"" [a-z_]{1,16} "\": " text',
        r'path ::= "\"" [^"\\\x7F\x00-\x1F]{1,N} "\""'.replace("N", str(LONGEST_PATH)),
        r'text ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" ["\\nt]){1,N} "\""'.replace("N", str(LONGEST_TEXT)),
        'integer ::= "-"? ("0" | [1-9] [0-9]{0,8})',
        'number ::= integer ("." [0-9]{1,6})?',
        'boolean ::= "true" | "false"',
        'array ::= "[" (text (", " text){0,5})? "]"',
        'object ::= "{" (pair (", " pair){0,2})? "}"',
    ]
    return "\n".join(rules) + "\n"


def _fields(tool: dict, one_dir: bool) -> str:
    """The grammar of one tool's input: its required fields, in order."""
    properties = tool["input_schema"].get("properties", {})
    if one_dir and tool["name"] == "list_dir" and "path" in properties:
        properties = {**properties, "path": {"enum": ["."]}}
    pairs = [f"{_quote(json.dumps(name) + ': ')} {_value(name, properties[name])}" for name in _required(tool)]
    return ' ", " '.join(pairs) or '""'


def _value(name: str, schema: dict) -> str:
    if "enum" in schema:
        return "(" + " | ".join(_quote(json.dumps(value)) for value in schema["enum"]) + ")"
    kind = schema.get("type", "string")
    return kind if kind in ("integer", "number", "boolean", "array", "object") else "path" if name == "path" else "text"


def _quote(text: str) -> str:
    return json.dumps(text)


def blocks(reply: str, seed: int, prompt: str) -> tuple[list[dict], str]:
    """The model's reply -> (content blocks, stop_reason). The same prompt and seed give the same tool_use id.

    A reply that was cut off, in the middle of the JSON or where a text is as long as the grammar lets it be, has the
    stop_reason max_tokens.
    """
    try:
        step = json.loads(reply)
    except ValueError:
        return [{"type": "text", "text": reply}], "max_tokens"
    if "answer" in step:
        content, stop_reason, texts = [{"type": "text", "text": step["answer"]}], "end_turn", {"": step["answer"]}
    else:
        id = "toolu_" + hashlib.sha256(f"{seed}\n{prompt}".encode()).hexdigest()[:16]
        content = [{"type": "tool_use", "id": id, "name": step["tool"], "input": step["input"]}]
        stop_reason, texts = "tool_use", step["input"]
    longest = {"path": LONGEST_PATH}
    cut = any(isinstance(text, str) and len(text) >= longest.get(name, LONGEST_TEXT) for name, text in texts.items())
    return content, "max_tokens" if cut else stop_reason
