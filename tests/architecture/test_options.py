"""One option has one meaning in all commands, and one idea one option."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from typer.core import TyperCommand, TyperGroup

from weft.cli.main import WeftGroup


def commands() -> Iterator[tuple[str, TyperCommand]]:
    """Every command by what is typed behind ``weft``."""
    for name, lazy in WeftGroup.lazy.items():
        found = lazy.load(name)
        if isinstance(found, TyperGroup):
            for inner, command in found.commands.items():
                assert isinstance(command, TyperCommand)
                yield f"{name} {inner}", command
        else:
            yield name, found


def options() -> dict[str, dict[str, tuple[str, str]]]:
    """For each option, and each command that has it, the type of its value, and its meaning: the help up to the first
    semicolon or full stop, behind which stands what is particular to a command."""
    found: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    for name, command in commands():
        for parameter in command.params:
            for option in (each for each in parameter.opts if each.startswith("--") and each != "--help"):
                found[option][name] = (kind(parameter), meaning(getattr(parameter, "help", None) or ""))
    return found


def kind(parameter: Any) -> str:
    """The type of an option's value; of one that may be repeated, of each of its values."""
    annotation = parameter.type_descriptor.annotation
    return str((*get_args(annotation), annotation)[0])


def meaning(text: str) -> str:
    """What an option means in every command that has it."""
    for mark in (";", ". "):
        text = text.split(mark)[0]
    return text.rstrip(".")


@pytest.mark.parametrize("option", sorted(options()))
def test_an_option_has_one_type_and_one_meaning_in_all_commands(option: str) -> None:
    by_command = options()[option]
    assert len(set(by_command.values())) == 1, by_command


def test_no_meaning_has_two_options() -> None:
    by_meaning: dict[str, set[str]] = defaultdict(set)
    for option, by_command in options().items():
        for _, text in by_command.values():
            by_meaning[text].add(option)
    assert all(text for text in by_meaning), "an option has no help"
    assert {text: names for text, names in by_meaning.items() if len(names) > 1} == {}
