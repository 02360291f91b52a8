"""A whole Hugging Face configuration, or one nested in another, read and written by the rules for its keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.errors import nearest
from weft.core.part_config import MOST_BLOCKS
from weft.families.keys import KeyProblem, KeyRule, Raw, Together, typed
from weft.families.template import N_LAYERS, Facts


def nested(key: str, rules: tuple[KeyRule, ...]) -> KeyRule:
    """The rule of a key whose value is a configuration with separate rules; a missing key is an empty configuration.
    Inner rules get only the facts of earlier rules of the same configuration."""
    def without(problems: list[str]) -> None:
        if problems:
            raise KeyProblem(" ".join(f"{key}.{problem}" for problem in problems))

    def read(raw: Raw, facts: Facts) -> Facts:
        found, problems = read_keys(rules, typed(key, raw.get(key), dict) or {})
        without(problems)
        return found

    def write(facts: Facts) -> dict[str, Any]:
        found, problems = write_keys(rules, facts)
        without(problems)
        return {key: found}

    return Together((key,), read, write, lambda raw: [f"{key}.{note}" for note in notes_on(rules, raw.get(key) or {})])


def read_keys(rules: Sequence[KeyRule], raw: Raw) -> tuple[Facts, list[str]]:
    """The facts of a foreign configuration, and every problem with it, unknown keys included."""
    facts: Facts = {}
    problems: list[str] = []
    known = {key for rule in rules for key in rule.keys}
    for rule in rules:
        try:
            facts.update(rule.read(raw, facts))
            _require_few(facts)
        except KeyProblem as problem:
            problems.append(_placed(rule, str(problem)))
        except KeyError as missing:
            # The fact is missing because its own key had a problem, which is listed.
            assert problems, f"the rule of {rule.keys[0]} needs {missing}, which no rule before it reads"
    problems += [f"{key}: unknown key. {_close(key, known)}".rstrip() for key in raw if key not in known]
    return facts, problems


def _require_few(facts: Facts) -> None:
    """Refuse a number of layers that nothing may be made of, before later rules make a list with an entry for each."""
    count = facts.get(N_LAYERS, 0)
    if count > MOST_BLOCKS:
        del facts[N_LAYERS]
        raise KeyProblem(f"{count:,} layers, and a model has at most {MOST_BLOCKS:,}.")


def write_keys(rules: Sequence[KeyRule], facts: Facts) -> tuple[dict[str, Any], list[str]]:
    """The foreign configuration that expresses the facts, and a line for each that it cannot express."""
    raw: dict[str, Any] = {}
    problems: list[str] = []
    for rule in rules:
        try:
            raw.update(rule.write(facts))
        except KeyProblem as problem:
            problems.append(_placed(rule, str(problem)))
    return raw, problems


def notes_on(rules: Sequence[KeyRule], raw: Raw) -> list[str]:
    """Notes for the user about keys that are ignored."""
    return [note for rule in rules for note in rule.notes(raw)]


def _placed(rule: KeyRule, problem: str) -> str:
    """The problem, preceded by its key unless it names one of the rule's keys already."""
    placed = not rule.keys or problem.startswith(tuple(f"{key}{end}" for key in rule.keys for end in ":."))
    return problem if placed else f"{rule.keys[0]}: {problem}"


def _close(key: str, known: set[str]) -> str:
    hint = nearest(key, known)
    return hint if hint.startswith("Did you mean") else ""
