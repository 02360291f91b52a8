"""The process that renders templates: Jinja's sandbox, in which a template can neither reach nor change anything but
its data, within limits of memory, time and output that the system sets.

Standard input gives lines of JSON, each a template, its variables and what belongs to them; to each goes a line with
the text, or with what is wrong and at which line of the template.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, ClassVar, NoReturn, cast

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from weft.confinement.guards import confine

SEARCHES = frozenset({"split", "rsplit", "partition", "rpartition", "find", "rfind", "index", "rindex", "count",
                      "startswith", "endswith", "removeprefix", "removesuffix", "replace"})
"""Methods of texts whose first argument is looked for."""

LONGEST_REASON = 4_000
"""The most characters of a template's own message."""


class Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox in the dialect of chat templates."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, LoopControlExtension])
        self.declares_answers, self.marks, self.kept, self.now = False, ("", ""), "", datetime.min
        self.filters["tojson"] = self._tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: self.now.strftime(form)

    def _tojson(self, value: Any, ensure_ascii: bool = False, indent: int | None = None,
                separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:
        text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
        if not ensure_ascii:
            return text
        return re.sub(r"[^\x00-\x7f]", lambda found: found[0] if found[0] in self.kept else json.dumps(found[0])[1:-1],
                      text)


class Generation(Extension):
    """``{% generation %} ... {% endgeneration %}`` marks text of the model, and is rendered like other text, between
    the marks of the rendering."""

    tags: ClassVar[set[str]] = {"generation"}  # type: ignore[misc]

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the block, which has its own scope."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        cast(Environment, self.environment).declares_answers = True
        ends = (nodes.Output([self.call_method("mark", [nodes.Const(place)])], lineno=line) for place in (0, 1))
        return nodes.Scope([next(ends), *body, next(ends)], lineno=line)

    def mark(self, place: int) -> str:
        """The mark before a block (0) or after it (1)."""
        return cast(Environment, self.environment).marks[place]


def _raise_exception(message: object = "") -> NoReturn:
    raise TemplateError(str(message))


@lru_cache(maxsize=16)
def compiled(source: str) -> tuple[Environment, Template]:
    """A template in an environment of its own."""
    environment = Environment()
    return environment, environment.from_string(source)


def rendered(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer to a request: ``text``, or ``kind`` and ``reason`` and ``line`` of what is wrong; without variables,
    whether the template marks text of the model, and what it looks for in texts."""
    try:
        environment, template = compiled(asked["source"])
    except TemplateSyntaxError as error:
        return {"kind": "syntax", "reason": str(error.message), "line": error.lineno}
    except RecursionError:
        return {"kind": "syntax", "reason": "nested too deeply", "line": None}
    except (SyntaxError, ValueError, OverflowError) as error:  # of the Python that it becomes
        return {"kind": "syntax", "reason": str(error) or type(error).__name__, "line": None}
    if asked["variables"] is None:
        return {"declares_answers": environment.declares_answers,
                "sought": sorted(sought(environment.parse(asked["source"])))}
    environment.marks, environment.kept = tuple(asked["marks"]), asked["kept"]
    environment.now = datetime.fromisoformat(asked["now"])
    try:
        parts, length = list[str](), 0
        for piece in template.generate(asked["variables"]):
            parts.append(piece)
            length += len(piece)
            if length > asked["most"]:
                return {"kind": "endless", "reason": f"it wrote more than {asked['most']:,} characters", "line": None}
        return {"text": "".join(parts)}
    except MemoryError:
        raise
    except Exception as error:  # expressions in a template can raise anything
        # Of templates' own errors alone is the type the class itself: Jinja's are subclasses.
        kinds: dict[type[Exception], str] = {SecurityError: "escape", TemplateError: "refused"}
        return {"kind": kinds.get(type(error), "fails"), "line": line_of(error.__traceback__),
                "reason": (str(error) or type(error).__name__)[:LONGEST_REASON]}


def sought(tree: nodes.Template) -> Iterator[str]:
    """The texts that a template looks for in others, by ``in``, by methods such as ``split`` and by the filter
    ``replace``: constants, or names that stand for one."""
    named = {(node.target.name, node.node.value) for node in tree.find_all(nodes.Assign)
             if isinstance(node.target, nodes.Name) and isinstance(node.node, nodes.Const)}
    asked: list[nodes.Expr] = [node.expr for node in tree.find_all(nodes.Compare) if node.ops[0].op in ("in", "notin")]
    asked += [argument for node in tree.find_all(nodes.Call) if isinstance(node.node, nodes.Getattr)
              and node.node.attr in SEARCHES for argument in node.args[:1]]
    asked += [argument for node in tree.find_all(nodes.Filter) if node.name == "replace" for argument in node.args[:1]]
    for node in asked:
        values = [node.value] if isinstance(node, nodes.Const) else [
            value for name, value in named if isinstance(node, nodes.Name) and node.name == name]
        yield from (value.strip() for value in values if isinstance(value, str))


def line_of(traceback: TracebackType | None) -> int | None:
    """The line of the template: Jinja maps frames of compiled code to lines of the source."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def main() -> NoReturn:
    """Answer requests until standard input ends, within the memory in bytes and the seconds that the arguments give."""
    memory, seconds = int(sys.argv[1]), int(sys.argv[2])
    for what, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        resource.setrlimit(what, (most, most))
    datetime.fromisoformat("2020-01-01").strftime("%Y")  # which loads what it needs
    confine()
    for line in sys.stdin.buffer:
        signal.alarm(seconds)  # ends the process where nobody waits for it any more
        try:
            answer = json.dumps(rendered(json.loads(line)), ensure_ascii=False).encode("utf-8", "surrogatepass")
        except MemoryError:
            answer = json.dumps({"kind": "memory", "reason": f"it took more than {memory >> 20:,} MiB of memory",
                                 "line": None}).encode()
        sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()
        signal.alarm(0)
    os._exit(0)
