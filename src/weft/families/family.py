"""`Family`: how one kind of published model is read and written, as data; and the known families.

Suggestions for a name that stands for nothing: by family and by what it is, then by its spelling.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from weft.checkpoints.tensors import own_tensors
from weft.core.errors import CheckpointError, ConfigError
from weft.core.model import Model, ModelConfig
from weft.families import known
from weft.families.common import BUFFERS, COMMON, WITH_SOURCE, common_beside
from weft.families.configurations import notes_on, read_keys, write_keys
from weft.families.keys import KEPT, KeyRule, Raw
from weft.families.template import Facts, TemplateChoice, build_config, known_fields, match
from weft.families.unknown import Unknown, computing, on_by_default
from weft.families.weights import Rule, TensorMap, UnusedTensors, account
from weft.preset_files.published_models import Size, published, sizes_of


@dataclass(frozen=True)
class Native:
    """The format in which `transformers` stores a family.

    Attributes:
        model_type: its name in config.json.
        architecture: the class that opens a folder.
        keys: the rules for the keys of config.json, in the order in which they are read (see `rules`).
        weights: the rules of its tensors, given the facts.
        prefix: prefix of tensors' names, which files of the bare model lack.
        junk: further tensors that files may hold (`BUFFERS` are added).
        tied: for tied embeddings, the name of the repeated tensor and that of the original.
        copies: names of tensors that repeat others whatever is tied, which files hold or lack, each with the
            original's.
        takes_source: whether its models are encoder-decoders, to which other common rules apply.
        architectures: further classes whose folders can be read.
        model_types: further names of the same format.
        limits: lists what its class cannot open although its configuration can express it.
        otherwise: rules of other forms in which files hold the same tensors; they are only read.
        widens: whether a simpler family has the same model where its own keys have their neutral values; a model that
            both can hold is written as the simpler one, unless it came from this one.
        opened_by: a version of `transformers` that has the class, where later ones have dropped it; empty: none has.
    """

    model_type: str
    architecture: str
    keys: tuple[KeyRule, ...]
    weights: Callable[[Facts], list[Rule]]
    prefix: str = ""
    junk: tuple[UnusedTensors, ...] = ()
    tied: tuple[str, str] | None = None
    copies: tuple[tuple[str, str], ...] = ()
    takes_source: bool = False
    architectures: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()
    limits: Callable[[Facts], list[str]] = lambda facts: []
    otherwise: tuple[Callable[[Facts], list[Rule]], ...] = ()
    widens: bool = False
    opened_by: str = ""

    @property
    def rules(self) -> tuple[KeyRule, ...]:
        """The rules of all keys: the family's own, and the common ones for keys that these do not name."""
        return (*self.keys, *common_beside(self.keys, WITH_SOURCE if self.takes_source else COMMON))


@dataclass(frozen=True)
class Family:
    """One kind of published model.

    Attributes:
        template: its architecture, see `weft.families.template`.
        native: the foreign format; None for models that were published without weights.
    """

    name: str
    template: Any
    source: str
    native: Native | None

    @property
    def sizes(self) -> tuple[Size, ...]:
        """Its published models."""
        return sizes_of(self.name)

    def read(self, raw: Raw, *, strict: bool = False) -> tuple[ModelConfig, Facts]:
        """Convert a foreign configuration; return also its facts.

        Args:
            strict: refuse unknown keys for which `notes` has a note too.

        Raises:
            ConfigError: listing every key that is missing, has a value that cannot be read, or is unknown and may
                change what is computed (see `weft.families.unknown`).
        """
        assert self.native is not None, "a family without a foreign format reads none"
        rules = self.native.rules
        named = {key for rule in rules for key in rule.keys}
        facts, problems = read_keys(rules, {key: value for key, value in raw.items() if key in named})
        unknown = self._unknown(raw)
        problems += [*unknown.problems, *(unknown.notes if strict else ()), *self._foreign_class(raw)]
        if problems:
            raise ConfigError(problems)
        return build_config(self.template, facts), facts

    def notes(self, raw: Raw) -> list[str]:
        """Notes for the user about keys that are ignored, or unknown and not used."""
        assert self.native is not None, "a family without a foreign format reads none"
        return [*notes_on(self.native.rules, raw), *self._unknown(raw).notes]

    def write(self, config: ModelConfig, kept: Mapping[str, Any]) -> tuple[dict[str, Any], Facts, list[str]]:
        """The foreign configuration of ``config``, its facts, and a line for all that does not fit (if there is any,
        the other two must not be used).

        Args:
            kept: values of `Kept` keys in the folder that the model was read from.
        """
        assert self.native is not None, "a family without a foreign format writes none"
        facts, problems = match(self.template, config)
        if problems:
            return {}, facts, problems
        facts[KEPT] = dict(kept)
        raw, problems = write_keys(self.native.rules, facts)
        problems += self.native.limits(facts)
        named = {"architectures": [self.native.architecture], "model_type": self.native.model_type}
        return {**named, **raw}, facts, problems

    def head(self, config: ModelConfig, kind: str) -> dict[str, Any]:
        """The fields that the family's head of that kind has on the model ``config``, as plain data; none where it has
        no such head."""
        choice = self.template.get("head")
        options = choice.options.values() if isinstance(choice, TemplateChoice) else ()
        found = next((each for each in options if isinstance(each, Mapping) and each["kind"] == kind), {})
        fields: dict[str, Any] = known_fields(found, match(self.template, config)[0])
        return fields

    def account(self, model: Model, facts: Facts, stored: Iterable[str] = ()) -> TensorMap:
        """The account between a model with these facts, which may be on the meta device, and the tensors of a file.

        Args:
            stored: the names in a file, from which its form is recognised; none: the form that is written.
        """
        assert self.native is not None, "a family without a foreign format has no file"
        tied = dict(self.native.copies)
        tied |= dict([self.native.tied]) if self.native.tied and facts.get("tied") else {}
        junk = (*self.native.junk, *BUFFERS)
        forms = [account(rules(facts), own_tensors(model), prefix=self.native.prefix, junk=junk, tied=tied)
                 for rules in (self.native.weights, *self.native.otherwise)]
        names = tuple(stored)
        return max(forms, key=lambda form: form.known(names))

    def config(self, size: Size) -> ModelConfig:
        """The configuration of a published size."""
        return build_config(self.template, size.values) if self.native is None else self.read(size.values)[0]

    def _unknown(self, raw: Raw) -> Unknown:
        assert self.native is not None
        return Unknown(self.native.rules, raw, computing_keys(), keys_on_by_default())

    def _foreign_class(self, raw: Raw) -> list[str]:
        assert self.native is not None
        named = raw.get("architectures") or []
        if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
            return ["architectures: it is no list of names of classes."]
        able = {self.native.architecture, *self.native.architectures}
        wrong = [name for name in named if name not in able]
        return [f"architectures: {', '.join(wrong)}, but only {', '.join(sorted(able))} can be read."] if wrong else []


@cache
def families() -> Mapping[str, Family]:
    """Every family by name, in alphabetical order."""
    found: dict[str, Family] = {}
    for info in sorted(pkgutil.iter_modules(known.__path__), key=lambda each: each.name):
        module = importlib.import_module(f"{known.__name__}.{info.name}")
        for family in vars(module).values():
            if isinstance(family, Family):
                assert found.setdefault(family.name, family) is family, f"two families are called {family.name}"
    return dict(sorted(found.items()))


@cache
def computing_keys() -> frozenset[str]:
    """The keys on which what is computed depends in any family."""
    return frozenset().union(*(computing(family.native.rules) for family in families().values() if family.native))


@cache
def keys_on_by_default() -> frozenset[str]:
    """The keys that are true where they are missing, in every family that reads them."""
    return on_by_default(rule for family in families().values() if family.native for rule in family.native.rules)


def family_of(raw: Raw, where: str) -> Family:
    """The family of a foreign configuration. Raises `CheckpointError`: it has no model_type, or an unknown one; the
    message gives the nearest."""
    formats = {name: family for family in families().values() if family.native is not None
               for name in (family.native.model_type, *family.native.model_types)}
    kind, classes = raw.get("model_type"), raw.get("architectures")
    if kind is None and isinstance(classes, list):
        kind = next((family.native.model_type for family in formats.values() if family.native is not None
                     and family.native.architecture in classes), None)
    if not isinstance(kind, str) or kind not in formats:
        named = "has no model_type" if kind is None else f"is of the family {kind!r}, which is not known here"
        hint = relative_hint(str(kind), formats)
        raise CheckpointError(f"the model {named}.", where=where, remedy=f"{hint}{' ' if hint else ''}Known families: "
                                                                         f"{', '.join(sorted(formats))}.")
    return formats[kind]


NEAR = 0.8
"""Similarity (`difflib.SequenceMatcher.ratio`) from which a name is a misspelling."""
SHOWN = 8
"""Names of a list in a message."""


def name_hint(name: str, presets: Iterable[str]) -> str:
    """A hint with the published models of the family that ``name`` names, or the name that it misspells, or where all
    are listed.

    Args:
        name: that is not known.

    >>> name_hint("gptj", [])
    "Published models of that name: 'gpt-j-6b'."
    """
    own = sorted(presets)
    names = [*own, *published(), *(other for size in published().values() for other in size.also)]
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=NEAR)
    if near and _digits(near[0]) == _digits(name):
        return f"Did you mean {near[0]!r}?"
    word = _plain(name)
    meant = [size.name for size in published().values()
             if word and word in (_plain(size.family), _plain(size.name)[:len(word)])]
    if meant:
        more = f" and {len(meant) - SHOWN} more (weft list families)" if len(meant) > SHOWN else ""
        return f"Published models of that name: {', '.join(map(repr, meant[:SHOWN]))}{more}."
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"Presets: {', '.join(own)}; `weft list families` shows published models."


def relative_hint(kind: str, formats: Iterable[str]) -> str:
    """A hint with the known model_type that ``kind`` misspells or is a version or variant of; empty where there is
    none: likeness of letters alone says nothing about what a model computes.

    >>> relative_hint("mistrall", ["mistral", "llama"])
    "Did you mean 'mistral'?"
    >>> relative_hint("qwen2_vl", ["llama", "qwen2"])
    "It is named after 'qwen2', which is known, and may differ from it."
    """
    known = sorted(formats)
    near = difflib.get_close_matches(kind, known, n=1, cutoff=NEAR)
    if near and _digits(near[0]) == _digits(kind):
        return f"Did you mean {near[0]!r}?"
    stems = [each for each in known if re.match(rf"{re.escape(each)}(?![a-z])", kind)]
    if stems:
        return f"It is named after {max(stems, key=len)!r}, which is known, and may differ from it."
    return ""


def _digits(name: str) -> list[str]:
    """The numbers in a name: another number is another model, and no misspelling."""
    return re.findall(r"\d+", name)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
