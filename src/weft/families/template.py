"""A family's architecture as a Weft configuration with holes, used in both directions.

`fill` puts facts into the holes and gives a configuration; `match` extracts the facts of a configuration, or lists what
does not fit. The way back needs no second description: a configuration fits when the template, filled with the values
at its holes, is that configuration.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

from weft.core.errors import ConfigError
from weft.core.model import ModelConfig, parse_model
from weft.core.part_config import MOST_BLOCKS
from weft.families.canonical import canonical, canonical_data

Facts: TypeAlias = dict[str, Any]
"""The values of a family's configuration in Weft's terms, by the names of the holes."""

N_LAYERS = "n_layers"
"""The fact that is the number of blocks of `Layers`."""

NO_EFFECT = frozenset({"dropout", "std", "backend", "dispatch", "balance_loss", "z_loss", "correction_rate"})
"""Fields that affect training or speed and never a model's output, and need not match."""

ABSENT = object()


@dataclass(frozen=True)
class Fact:
    """A place for the fact ``name``; with ``each`` the fact is a list with one value per layer."""

    name: str
    each: bool = False


@dataclass(frozen=True)
class TemplateChoice:
    """A place for one of several templates, chosen by the fact ``name``; ``each`` as in `Fact`."""

    name: str
    options: Mapping[Any, Any]
    each: bool = False


@dataclass(frozen=True)
class Layers:
    """A list of blocks of one template, as many as the fact ``count`` says."""

    block: Any
    count: str = N_LAYERS


def fill(template: Any, facts: Mapping[str, Any], layer: int = 0) -> Any:
    """A configuration as plain data: the template with facts in its holes."""
    match template:
        case Fact(name=name, each=each):
            return facts[name][layer] if each else facts[name]
        case TemplateChoice(name=name, options=options, each=each):
            return fill(options[facts[name][layer] if each else facts[name]], facts, layer)
        case Layers(block=block, count=count):
            if facts[count] > MOST_BLOCKS:
                raise ConfigError([f"{facts[count]:,} layers, and a model has at most {MOST_BLOCKS:,}."])
            # Equal neighbouring blocks are written as one repeat.
            runs = [list(run) for _, run in groupby(fill(block, facts, index) for index in range(facts[count]))]
            return [{"repeat": len(run), "of": run[:1]} if len(run) > 1 else run[0] for run in runs]
        case Mapping():
            return {key: fill(value, facts, layer) for key, value in template.items()}
        case list():
            return [fill(value, facts, layer) for value in template]
        case _:
            return template


def build_config(template: Any, facts: Mapping[str, Any]) -> ModelConfig:
    """Build the configuration from the facts. Raises `ConfigError`: the facts do not give a valid configuration."""
    return parse_model(fill(template, facts))


def known_fields(template: Any, facts: Mapping[str, Any]) -> Any:
    """The template as plain data, without the fields of holes that have no fact."""
    return fill(_without_empty(template, facts), facts)


def match(template: Any, config: ModelConfig) -> tuple[Facts, list[str]]:
    """The facts with which the template gives ``config``, and a line for all that does not fit (if there is any, the
    facts must not be used)."""
    given = canonical(config)
    facts, misfits = bind(template, given)
    try:
        filled = canonical_data(known_fields(template, facts))
    except (KeyError, IndexError, ConfigError):  # the two trees differ too much for the facts to make a configuration
        return facts, _merged(misfits)
    return facts, _merged(differences(given, filled))


def _without_empty(template: Any, facts: Mapping[str, Any]) -> Any:
    """The template without fields whose holes have no fact, so that all other differences can be listed."""
    match template:
        case Mapping():
            return {key: _without_empty(value, facts) for key, value in template.items()
                    if not isinstance(value, Fact) or value.name in facts}
        case list():
            return [_without_empty(value, facts) for value in template]
        case Layers(block=block, count=count):
            return Layers(_without_empty(block, facts), count)
        case TemplateChoice(name=name, options=options, each=each):
            return TemplateChoice(name, {key: _without_empty(value, facts) for key, value in options.items()}, each)
        case _:
            return template


def _merged(problems: Iterable[str]) -> list[str]:
    """Merge equal problems of several blocks into one line each."""
    counts = Counter(re.sub(r"\bblocks\.\d+\.", "blocks.*.", problem) for problem in problems)
    return [f"{problem} ({count} blocks)" if count > 1 else problem for problem, count in counts.items()]


def bind(template: Any, data: Any) -> tuple[Facts, list[str]]:
    """The facts at the holes, as far as ``data`` has the template's structure, and where it differs."""
    facts: Facts = {}
    misfits: list[str] = []
    _bind(template, data, "", facts, misfits)
    return facts, misfits


def _bind(template: Any, data: Any, path: str, facts: Facts, misfits: list[str]) -> None:
    match template:
        case Fact(name=name, each=each):
            if data is not ABSENT:
                _take(facts, name, data, each)
        case TemplateChoice():
            _bind_choice(template, data, path, facts, misfits)
        case Layers(block=block, count=count):
            blocks = data if isinstance(data, list) else []
            facts[count] = len(blocks)
            for index, each in enumerate(blocks):
                _bind(block, each, _join(path, index), facts, misfits)
        case Mapping() if isinstance(data, Mapping):
            for key, value in template.items():
                _bind(value, data.get(key, ABSENT), _join(path, key), facts, misfits)
        case list() if isinstance(data, list) and len(data) == len(template):
            for index, value in enumerate(template):
                _bind(value, data[index], _join(path, index), facts, misfits)
        case Mapping() | list():
            misfits.append(_misfit(path, data, template))
        case _:
            if template != data:
                misfits.append(_misfit(path, data, template))


def _take(facts: Facts, name: str, value: Any, each: bool) -> None:
    if each:
        facts.setdefault(name, []).append(value)
    else:
        facts.setdefault(name, value)


def _bind_choice(choice: TemplateChoice, data: Any, path: str, facts: Facts, misfits: list[str]) -> None:
    """Bind the option with the fewest misfits."""
    best: tuple[Any, Facts, list[str]] | None = None
    for value, option in choice.options.items():
        own: Facts = {}
        wrong: list[str] = []
        _bind(option, data, path, own, wrong)
        if best is None or len(wrong) < len(best[2]):
            best = value, own, wrong
    assert best is not None, "a choice has options"
    _take(facts, choice.name, best[0], choice.each)
    for name, value in best[1].items():
        if isinstance(value, list) and isinstance(facts.get(name), list):
            facts[name] = [*facts[name], *value]
        else:
            facts.setdefault(name, value)
    misfits += best[2]


def differences(actual: Any, expected: Any, path: str = "") -> Iterator[str]:
    """Where two canonical configurations differ in what has an effect, one line each."""
    if isinstance(actual, Mapping) and isinstance(expected, Mapping) and actual.get("kind") == expected.get("kind"):
        for key in dict.fromkeys([*actual, *expected]):
            if key not in NO_EFFECT:
                yield from differences(actual.get(key), expected.get(key), _join(path, key))
    elif isinstance(actual, list) and isinstance(expected, list) and len(actual) == len(expected):
        for index, (own, other) in enumerate(zip(actual, expected, strict=True)):
            yield from differences(own, other, _join(path, index))
    elif actual != expected:
        yield _misfit(path, actual, expected)


def _misfit(path: str, actual: Any, expected: Any) -> str:
    return f"{path or 'model'}: {_name(actual)} where the family has {_name(expected)}."


def _name(value: Any) -> str:
    """A value in a message: a part by its kind, a list by its length."""
    if value is ABSENT:
        return "nothing"
    if isinstance(value, Mapping):
        return repr(value.get("kind", "a mapping"))
    return f"a list of {len(value)}" if isinstance(value, list) else repr(value)


def _join(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)
