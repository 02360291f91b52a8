"""The list of exploits on the page of the museum, of `examples/museum`: its table and the descriptions in its files."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import yaml

BEGIN, END = "<!-- exhibits -->\n", "<!-- end -->"
LAWS = {
    "sums-to-one": "Probabilities sum to one", "causality": "A prediction does not depend on later tokens",
    "separate-rows": "Rows do not depend on each other", "repeats": "The same question has the same answer",
    "pieces": "Decoding in pieces equals the whole", "documents": "A document does not depend on the one before",
    "saved": "Saved and loaded, a model is the same", "bytes": "Tokens stand for the bytes of the text",
    "evaluation": "The figure is that of the model", "seen": "The text has not been seen",
    "canaries": "Canaries are predicted no better than strings of their form",
    "fresh-text": "The test text is predicted no better than a fresh one"}
"""What each law says, in the order of the page."""


def described(path: Path) -> str:
    """The description at the head of a Python file, on one line."""
    return " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split())


def label(url: str) -> str:
    """A short name for a source."""
    if found := re.fullmatch(r"https://github\.com/[^/]+/([^/]+)/(?:pull|issues)/(\d+)", url):
        return f"{found[1]} {found[2]}"
    if found := re.fullmatch(r"https://arxiv\.org/abs/(.+)", url):
        return f"arXiv:{found[1]}"
    return url.split("/")[2]


def entry(museum: Path, name: str, exhibit: dict[str, Any]) -> str:
    """An exploit: what it does, where it was seen and what it gained, and its twin."""
    sources = ", ".join(f"[{label(url)}]({url})" for url in exhibit["source"])
    # The law stands in the heading, and the sources in the links.
    does = described(museum / name / "cheat.py").split(" The law: ")[0]
    return (f"**[{exhibit['title']}](../examples/museum/{name}/cheat.py).** {does} *Gained:* {exhibit['gained']} "
            f"*Seen in* {sources}. *[Beside it](../examples/museum/{name}/sound.py):* "
            f"{described(museum / name / 'sound.py')}")


def exhibits(root: Path) -> str:
    """The list, by laws."""
    museum, lines = root / "examples" / "museum", []
    found = yaml.safe_load((museum / "exhibits.yaml").read_text(encoding="utf-8"))
    for law, says in LAWS.items():
        lines += [f"## {says} (`{law}`)", ""]
        for name, exhibit in found.items():
            if exhibit["law"] == law:
                lines += [entry(museum, name, exhibit), ""]
    return "\n".join(lines)


def with_exhibits(page: str, root: Path) -> str:
    """The page with the list as the files have it."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + exhibits(root) + "\n" + rest[rest.index(END):]
