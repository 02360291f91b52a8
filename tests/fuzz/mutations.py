"""Hostile documents: mutations of valid ones, of their structure (JSON), their lines (text) or their bytes."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Place = tuple[str | int, ...]

NUMBERS = [0, 1, -1, 2, 3, 7, 255, 257, 65_536, 10**5, 10**6, 10**8, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1,
           2**63, 2**64, 10**30, 10**120, -(2**31), -(2**63), 0.0, -0.0, 0.5, 1e-300, 1e300, -1e300, float("nan"),
           float("inf"), float("-inf")]
TEXTS = ["", " ", "a", "\0", "\x1b[2J\x1b[31m", "\x1b]0;title\x07", "\r", "\n", "\u202e", "\ud800", "\ufffd", "\ufeffa",
         "é", "世", "😀", "a" * 300, "a" * 5_000, "../../../etc/passwd", "/dev/zero", "/dev/null", ".", "..", "~", "-",
         "--", "null", "true", "nan", "1e999", "%s%n", "{}", "{0.__class__}", "{{ 1 }}", "{% for i in range(9) %}",
         "<s>", "mlp", "attention", "lstm", "bytes", "bpe", "float32", "I32", "causal", "causal & window(0)",
         "window(99999999999)", "adamw", "cosine", "decoder", "encoder", "rope", "silu", "llama", "gpt2",
         "(((((", "~" * 500, "(a+)+$"]
ATOMS = [None, True, False, *NUMBERS, *TEXTS]


def nested(depth: int, inner: Any) -> Any:
    for index in range(depth):
        inner = [inner] if index % 2 else {"a": inner}
    return inner


SHAPES = [[], {}, [[]], [None], {"": None}, {"kind": None}, {"kind": "mlp"}, ["attention", "mlp"], [[0]],
          [1, "a", None], nested(30, 1), nested(70, 1), [0] * 5_000, {f"key{i}": i for i in range(3_000)},
          {"repeat": 10**9, "of": ["pre"]}, {"kind": "yarn", "factor": 0}]


def junk() -> st.SearchStrategy[Any]:
    """A value that a document may hold, mostly hostile."""
    shapes = st.sampled_from(SHAPES).map(copy.deepcopy)  # what is changed further must not be the shape itself
    return st.one_of(st.sampled_from(ATOMS), shapes, st.integers(), st.floats(), st.text(max_size=20))


def places(value: Any, here: Place = ()) -> Iterator[Place]:
    """Every place in a tree, the first 12 of each list."""
    yield here
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*here, key))
    elif isinstance(value, list):
        for index, item in enumerate(value[:12]):
            yield from places(item, (*here, index))


def mutated(draw: Any, tree: Any) -> Any:
    """A copy of a JSON tree with one to three changes."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(list(places(tree))))
        if not place:
            tree = draw(junk()) if draw(st.integers(0, 9)) == 0 else tree
            continue
        holder = tree
        for key in place[:-1]:
            holder = holder[key]
        how = draw(st.sampled_from(["junk", "junk", "near", "delete", "rename", "copy", "swap"]))
        _change(draw, how, tree, holder, place[-1])
    return tree


def _change(draw: Any, how: str, tree: Any, holder: Any, key: Any) -> None:
    old = holder[key]
    if how == "delete":
        del holder[key]
    elif how == "near" and type(old) in (int, float):
        holder[key] = draw(st.sampled_from([old + 1, old - 1, -old, old * 2, old * 10**3, old * 10**9, old / 2,
                                            str(old)]))
    elif how == "rename" and isinstance(holder, dict):
        holder[f"{key}{draw(st.sampled_from(TEXTS))}"[:200]] = holder.pop(key)
    elif how == "copy" and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(old))
    elif how == "swap":
        other: Any = tree
        for step in draw(st.sampled_from(list(places(tree)))):
            other = other[step]
        holder[key] = copy.deepcopy(other)
    else:
        holder[key] = draw(junk())


def as_json(tree: Any) -> bytes:
    return json.dumps(tree).encode()


def lines_changed(draw: Any, text: bytes) -> bytes:
    """A text with some lines deleted, repeated, swapped or replaced, or with characters changed."""
    lines = text.split(b"\n")
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(["delete", "repeat", "replace", "insert", "cut"]))
        word = draw(st.sampled_from([str(each) for each in ATOMS])).encode("utf-8", "surrogatepass")
        if how == "delete" and len(lines) > 1:
            del lines[at]
        elif how == "repeat":
            lines[at:at] = [lines[at]] * draw(st.sampled_from([1, 3, 1_000]))
        elif how == "replace":
            parts = lines[at].split(b" ")
            parts[draw(st.integers(0, len(parts) - 1))] = word
            lines[at] = b" ".join(parts)
        elif how == "insert":
            lines.insert(at, word)
        else:
            lines[at] = lines[at][:draw(st.integers(0, max(0, len(lines[at]) - 1)))]
    return b"\n".join(lines)


def bytes_changed(draw: Any, content: bytes) -> bytes:
    """A file with some bytes changed, cut off or added; numbers of four and eight bytes become large."""
    changed = bytearray(content or b"\0")
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, min(len(changed), 4_096) - 1)) if changed else 0
        how = draw(st.sampled_from(["byte", "byte", "number", "cut", "insert", "text"]))
        if how == "byte" and changed:
            changed[at] = draw(st.integers(0, 255))
        elif how == "number":
            size = draw(st.sampled_from([4, 8]))
            value = draw(st.sampled_from([0, 1, 2**16, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1]))
            changed[at:at + size] = (value % 2**(8 * size)).to_bytes(size, "little")
        elif how == "cut":
            del changed[draw(st.integers(0, len(changed))):]
        elif how == "insert":
            changed[at:at] = bytes(draw(st.integers(1, 64)))
        else:
            changed[at:at] = draw(st.sampled_from(TEXTS)).encode("utf-8", "surrogatepass")
    return bytes(changed)


def header_changed(draw: Any, content: bytes) -> bytes:
    """A safetensors file whose header is another tree."""
    size = int.from_bytes(content[:8], "little")
    header = as_json(mutated(draw, json.loads(content[8:8 + size])))
    return len(header).to_bytes(8, "little") + header + content[8 + size:]
