"""YAML held to the limits of `weft.disk.documents`, and to what JSON can say: no dates, tags or keys but text."""

from __future__ import annotations

from typing import Any

import yaml

from weft.disk.documents import MEBIBYTE, MOST_DEPTH, Unreadable, require_short, too_deep

MOST_YAML_BYTES = 2 * MEBIBYTE
"""Of a file of YAML, which is read some thirty times slower than JSON."""
MOST_NODES = 50_000
"""Of keys, values, lists and mappings, those that aliases repeat counted each time. A nine-fold alias of a nine-fold
alias is a line each, and 9**n values."""

PREFIX = "tag:yaml.org,2002:"


def parse_yaml(text: str) -> Any:
    """The content of a YAML document: mappings with keys of text, lists, text, numbers, true, false and null. Raises
    `Unreadable`: with the line where there is one."""
    try:
        return yaml.load(text, Loader=_CountingLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise Unreadable(f"{line}not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise Unreadable(f"not YAML: {' '.join(str(error).split())}") from None


class _CountingLoader(yaml.SafeLoader):
    """Counts nodes as they are read, before any value is made of them. The standard loader also keeps the last of
    equal keys; here they are an error."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._nodes = 0
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        before = self._nodes
        self._enter(event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(event, yaml.AliasEvent) and node is not None:
            if node not in self._sizes:
                raise _at(event.start_mark, f"the alias *{event.anchor} is inside what it stands for")
            self._count(self._sizes[node] - 1, event)
        elif node is not None:
            self._sizes[node] = self._nodes - before
        return node

    def _enter(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag is not None:
            raise _at(event.start_mark, f"the tag {event.tag!r} is not read. Write the value without it")
        self._depth += 1
        if self._depth > MOST_DEPTH and isinstance(event, yaml.CollectionStartEvent):
            raise _at(event.start_mark, str(too_deep()))
        self._count(1, event)

    def _count(self, more: int, event: yaml.Event) -> None:
        self._nodes += more
        if self._nodes > MOST_NODES:
            raise _at(event.start_mark, f"more than {MOST_NODES:,} values, those that aliases repeat included")

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == f"{PREFIX}merge":
                continue
            if key.tag not in (f"{PREFIX}str", f"{PREFIX}value"):
                shown = f"{key.value!r} is read as " if isinstance(key, yaml.ScalarNode) else "this is "
                raise _at(key.start_mark, f"a key is text, and {shown}{_kind(key)}. Put it in quotes")
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} is given twice",
                                                        key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        try:
            require_short(node.value)
            return super().construct_yaml_int(node)
        except Unreadable as error:
            raise _at(node.start_mark, str(error)) from None
        except ValueError:
            raise _at(node.start_mark, f"{node.value!r} is no whole number. Put it in quotes for text") from None

    def refuse_date(self, node: yaml.ScalarNode) -> None:
        raise _at(node.start_mark, f"{node.value!r} is a date in YAML. Put it in quotes to give it as text")


_CountingLoader.add_constructor(f"{PREFIX}int", _CountingLoader.construct_yaml_int)
_CountingLoader.add_constructor(f"{PREFIX}timestamp", _CountingLoader.refuse_date)


def _kind(node: yaml.Node) -> str:
    names = {"int": "a whole number", "float": "a number", "bool": "true or false", "null": "nothing",
             "timestamp": "a date"}
    return names.get(node.tag.removeprefix(PREFIX), "a list or mapping")


def _at(mark: Any, what: str) -> Unreadable:
    return Unreadable(f"line {mark.line + 1}, column {mark.column + 1}: {what}")
