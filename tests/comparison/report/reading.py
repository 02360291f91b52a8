"""Reading a report back: a strict parser of its elements, and its tables as text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from xml.etree import ElementTree

VOID = frozenset({"meta", "link", "br"})


@dataclass
class Node:
    """An element with its attributes, children and text."""

    name: str
    attributes: dict[str, str]
    children: list[Node | str] = field(default_factory=list)

    def all(self, name: str, kind: str | None = None) -> list[Node]:
        """Descendants of a name, with a class where one is given."""
        found = []
        for child in self.children:
            if isinstance(child, Node):
                if child.name == name and (kind is None or kind in child.attributes.get("class", "").split()):
                    found.append(child)
                found += child.all(name, kind)
        return found

    def text(self) -> str:
        """Of all descendants, white space as one space."""
        return re.sub(r"[ \n\t\u00a0\u2007\u202f]+", " ", self.raw()).strip()

    def raw(self) -> str:
        return "".join(child if isinstance(child, str) else child.raw() for child in self.children)


class Reader(HTMLParser):
    """Builds the tree and fails where a browser would have to mend."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Node("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs})
        assert len(node.attributes) == len(attrs), f"an attribute twice in <{tag}>"
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Node(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].name == tag, f"</{tag}> closes <{self.open[-1].name}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def read(page: str) -> Node:
    """The tree of a page."""
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert len(reader.open) == 1, f"<{reader.open[-1].name}> is never closed"
    return reader.root


def drawings(page: str) -> list[ElementTree.Element]:
    """Every drawing, read as XML; one that is not well formed raises."""
    return [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>(?!</svg>)", nested(page), re.S)]


def nested(page: str) -> str:
    """Inner drawings as groups, so that the outermost can be found by their ends."""
    depth, parts = 0, []
    for part in re.split(r"(<svg\b|</svg>)", page):
        if part == "<svg":
            depth += 1
            parts.append("<svg" if depth == 1 else "<g")
        elif part == "</svg>":
            parts.append("</svg>" if depth == 1 else "</g>")
            depth -= 1
        else:
            parts.append(part)
    return "".join(parts)


def rows(table: Node) -> list[list[str]]:
    """Text of the cells, header first."""
    return [[cell.text() for cell in row.children if isinstance(cell, Node)] for row in table.all("tr")]
