"""One key of a configuration has one meaning wherever it stands, one meaning has one key, and sizes say their units."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from architecture.test_meanings import configurations
from weft.core.meanings import meanings
from weft.core.part_config import PartConfig, Settings

SEVERAL: Mapping[str, str] = MappingProxyType({
    "bias": "whether there are learned offsets or, where there are several, which",
    "tokenizer": "a part; a study may state one in full",
    "length": "of a row in tokens; of a study's training, a section whose own key is the unit",
    "norm": "a norm; of Mamba-2 the settings of its gated one",
    "path": "one path, or where several can be read a list",
    "scale": "a factor, or the rule for it",
    "std": "a number, or the rule for it",
    "shared": "the parts by name, and the reference to one",
    "weight": "whether a norm has its weight, as in PyTorch; of a source its share of a mixture"})
"""Keys that take values of several forms, and why that is one meaning."""

PUBLISHED = (frozenset({"beta_fast", "high_freq_factor"}), frozenset({"beta_slow", "low_freq_factor"}))
"""Names for one meaning that files of YaRN and of Llama 3 give it."""

UNITS: tuple[tuple[str, str], ...] = (
    (r"d_conv|dilation|.*_length|max_distance|context|at_context|length|dt_\w+|least|most", "token"),
    (r"d_\w+", "feature|unit"),
    (r".*tokens", "token"), (r"batch_size|rows|held_out", "row"), (r".*_batches|batches_\w+|accumulation", "batch"),
    (r".*bytes", "byte|megabyte"), (r"seconds", "second"), (r".*steps|.*_every", "step|update"),
    (r"height|width|size|dash|gap|patch", "pixel"), (r".*epochs", "time|pass"),
    (r"lr|adamw_lr|learning_rates", "learning rate|step"), (r".*rank|ranks", "column|feature"),
    (r"rate|share|validation|warmup|cooldown|until|tolerance|confidence", "share"),
    (r"dropout|top_p", "probability"), (r"n_\w*heads", "head"), (r"n_\w*experts", "expert"),
    (r"vocab_size|symbols", "id"), (r"\w*seed", "seed|random|draw"))
"""What keys of time, size, rate and length must name, the first that fits the whole key."""


def kind_of(annotation: Any) -> frozenset[str]:
    """What a value of a field can be, in words."""
    if get_origin(annotation) is Literal:
        return frozenset({"text"})
    if get_origin(annotation) in (list, tuple):
        return frozenset({"list"})
    if get_origin(annotation) is dict or annotation is Any:
        return frozenset({"section"})
    if isinstance(annotation, type):
        simple = {bool: "switch", str: "text", int: "number", float: "number", type(None): ""}
        found = simple.get(annotation, "part" if issubclass(annotation, PartConfig) else
                           "section" if issubclass(annotation, BaseModel) else annotation.__name__)
        return frozenset({found} - {""})
    return frozenset().union(*(kind_of(each) for each in get_args(annotation) if not isinstance(each, str)
                               and type(each).__name__ not in ("FieldInfo", "PartField")))


def keys() -> Iterator[tuple[str, type[Settings], str]]:
    """Every key of every section and part, with its class and its meaning."""
    for config in configurations():
        if issubclass(config, Settings):
            for name, text in meanings(config, config.model_fields).items():
                yield name, config, text


def test_a_key_takes_values_of_one_form_everywhere() -> None:
    forms: dict[str, dict[frozenset[str], str]] = defaultdict(dict)
    for name, config, _ in keys():
        forms[name].setdefault(kind_of(config.model_fields[name].annotation), config.__name__)
    several = {name: {"|".join(sorted(form)): where for form, where in found.items()}
               for name, found in forms.items() if len(found) > 1}
    assert {name: found for name, found in several.items() if name not in SEVERAL} == {}, "rename one of them"
    assert set(SEVERAL) <= set(several), "these have one form and need no reason"


def test_a_meaning_has_one_key() -> None:
    named: dict[str, set[str]] = defaultdict(set)
    for name, config, text in keys():
        if len(text.split()) > 3 and config.model_fields[name].annotation is not bool:
            named[text].add(name)
    assert {text: names for text, names in named.items() if len(names) > 1 and names not in PUBLISHED} == {}


def test_sizes_lengths_times_and_rates_say_their_unit() -> None:
    silent, checked = [], 0
    for name, config, text in keys():
        wanted = next((unit for pattern, unit in UNITS if re.fullmatch(pattern, name)), None)
        if wanted is None or not kind_of(config.model_fields[name].annotation) & {"number", "list"}:
            continue
        checked += 1
        if not re.search(rf"\b({wanted})", text) and not (wanted == "token" and "row" in text):
            silent.append(f"{config.__name__}.{name} ({wanted}): {text}")
    assert silent == [] and checked > 250
