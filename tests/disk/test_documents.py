"""Documents of others are read from regular files only and within limits; each refusal is one line that says why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft.disk.documents import MOST_DEPTH, MOST_DIGITS, Unreadable, parse_json, read_document, read_json
from weft.disk.yaml_documents import MOST_NODES, parse_yaml

LINES = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 12)]
BOMB = "\n".join(["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]", *LINES])
"""Twelve lines for 9**12 values."""


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, what in ((tmp_path, "a folder"), (tmp_path / "pipe", "a pipe"), (Path("/dev/zero"), "a device")):
        with pytest.raises(Unreadable, match=f"^it is {what}, and only regular files are read$"):
            read_json(path)


def test_a_file_of_more_bytes_than_allowed(tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    path.write_text('"12345678"', encoding="utf-8")
    assert read_document(path, most=10) == b'"12345678"'
    with pytest.raises(Unreadable, match=r"^it has 10 bytes; at most 9 are read$"):
        read_document(path, most=9)


@pytest.mark.parametrize("parse", [parse_json, parse_yaml])
def test_depth_and_digits(parse: type) -> None:
    assert parse(nested(MOST_DEPTH)) and parse("[" * MOST_DEPTH + "1" + "]" * MOST_DEPTH)
    assert parse("9" * MOST_DIGITS) == 10**MOST_DIGITS - 1
    # 100,000 deep is beyond what Python's own parser follows.
    for depth in (MOST_DEPTH + 1, *((2_000, 100_000) if parse is parse_json else ())):
        with pytest.raises(Unreadable, match=r"lists or mappings nested more than 64 deep$"):
            parse(nested(depth))
    for digits in (MOST_DIGITS + 1, 5_000):
        with pytest.raises(Unreadable, match=rf"a whole number of {digits:,} digits \(99999999\.\.\.\); at most 100"):
            parse("9" * digits)


def test_a_mapping_counts_as_deep_as_a_list() -> None:
    with pytest.raises(Unreadable, match="nested more than 64 deep"):
        parse_json('{"a":' * 65 + "1" + "}" * 65)


def test_values_that_aliases_repeat_are_counted() -> None:
    assert parse_yaml("a: &a [1, 2]\nb: *a") == {"a": [1, 2], "b": [1, 2]}
    with pytest.raises(Unreadable, match=rf"^line 5, column \d+: more than {MOST_NODES:,} values, those that aliases "):
        parse_yaml(BOMB)


@pytest.mark.parametrize(("text", "what"), [
    ("a: 2024-01-01", "line 1, column 4: '2024-01-01' is a date in YAML. Put it in quotes to give it as text"),
    ("a: !!python/name:os.system x", "line 1, column 4: the tag 'tag:yaml.org,2002:python/name:os.system' is not read"),
    ("a: !b [1]", "line 1, column 4: the tag '!b' is not read. Write the value without it"),
    ("1: a", "line 1, column 1: a key is text, and '1' is read as a whole number. Put it in quotes"),
    ("true: a", "line 1, column 1: a key is text, and 'true' is read as true or false."),
    ("2024-01-01: a", "line 1, column 1: a key is text, and '2024-01-01' is read as a date."),
    ("[a, b]: c", "line 1, column 1: a key is text, and this is a list or mapping."),
    ("a: &a [*a]", "line 1, column 8: the alias *a is inside what it stands for"),
    ("a: *b", "line 1, column 4: not YAML: found undefined alias 'b'"),
    ("a: 0x_", "line 1, column 4: '0x_' is no whole number. Put it in quotes for text"),
    ("a: 1\na: 2", "line 2, column 1: not YAML: the key 'a' is given twice"),
    ("a: \0", "not YAML: unacceptable character #x0000"),
])
def test_yaml_that_json_cannot_say(text: str, what: str) -> None:
    with pytest.raises(Unreadable) as caught:
        parse_yaml(text)
    assert str(caught.value).startswith(what)
    assert "\n" not in str(caught.value)


def test_yaml_in_common_use() -> None:
    assert parse_yaml("base: &b {x: 1, y: 0x10}\nnew: {<<: *b, y: 2.5}\nday: '2024-01-01'\non_: [true, ~]") == {
        "base": {"x": 1, "y": 16}, "new": {"x": 1, "y": 2.5}, "day": "2024-01-01", "on_": [True, None]}
