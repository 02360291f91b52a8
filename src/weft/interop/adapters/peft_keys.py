"""adapter_config.json of `peft`, read and written by rules for its keys: each is carried, or refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.checkpoints.layout import PEFT_FILE
from weft.core.errors import CheckpointError
from weft.disk.documents import read_json
from weft.disk.manifest import COPY_AGAIN
from weft.families.configurations import read_keys
from weft.families.keys import NOTHING, Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together
from weft.families.template import Facts

HARMLESS_STARTS = (True, False, "gaussian", "eva", "orthogonal", None)
"""Ways to draw the first A and B that leave the model's own weights as they are."""
OTHER_MATHEMATICS = (
    "target_parameters", "modules_to_save", "trainable_token_indices", "layer_replication", "alora_invocation_tokens",
    "megatron_config", "lora_bias", "use_qalora", "use_bdlora", "arrow_config", "kasa_config", "velora_config",
    "monteclora_config", "ensure_weight_tying", "corda_config", "lora_ga_config", "loftq_config")
"""Keys that change what is computed, or the weights under the adapter."""
MOST_RANK, MOST_ALPHA = 1 << 16, 1e6
"""Ranks and alphas are at most that, and alphas at least one divided by it."""
MOST_REPEATS, REPEATS = 4, re.compile(r"[*+{]|(?<!\()\?")
"""Repetitions in a pattern for names of modules, of which a search takes at most so many-th powers of their lengths."""
WHY = "It changes what is computed: merge the adapter in `peft`, and read the merged model."


def _starts(raw: Raw, facts: Facts) -> Facts:
    value = raw.get("init_lora_weights", True)
    if value not in HARMLESS_STARTS:
        raise KeyProblem(f"init_lora_weights: {value!r} changes the weights under the adapter. Convert it in `peft` "
                         "(save_pretrained with path_initial_model_for_weight_conversion), or merge it there.")
    return {}


RULES: tuple[KeyRule, ...] = (
    Fixed("peft_type", ("LORA",), why="Other adapters have other equations."),
    Read("r", "rank", int, 8), Read("lora_alpha", "alpha", float, 8.0), Read("lora_dropout", "dropout", float, 0.0),
    Read("use_rslora", "rank_stabilised", bool, False), Read("use_dora", "dora", bool, False),
    Read("rank_pattern", "ranks", dict, {}), Read("alpha_pattern", "alphas", dict, {}),
    Fixed("bias", ("none",), default="none", why="Biases under the adapter were trained: merge it in `peft`."),
    Together(("init_lora_weights",), _starts, lambda facts: {}),
    *(Fixed(key, NOTHING, why=WHY) for key in OTHER_MATHEMATICS),
    Ignored(("base_model_name_or_path", "revision", "peft_version", "auto_mapping", "task_type"), "the origin"),
    Ignored(("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
            "which maps are adapted, which the tensors show"),
    Ignored(("inference_mode", "fan_in_fan_out", "megatron_core", "eva_config", "qalora_group_size", "runtime_config"),
            "how it was trained or is stored, not what it computes"))


@dataclass(frozen=True)
class PeftConfig:
    """The content of adapter_config.json.

    Attributes:
        base: where the model under the adapter is, or None.
        rank, alpha: of all maps that no pattern names.
        dropout: in training, of the inputs of A.
        rank_stabilised, dora: as `weft.linear.lora.LoRAConfig` has them.
        ranks, alphas: those of some modules, by regular expressions for the end of their names.
    """

    base: str | None
    rank: int
    alpha: float
    dropout: float
    rank_stabilised: bool
    dora: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]

    def rank_of(self, module: str) -> int:
        """The rank of a module of `transformers`."""
        return int(_first(self.ranks, module, self.rank))

    def scale(self, module: str) -> float:
        """The factor on B A of a module of `transformers`."""
        rank = self.rank_of(module)
        return float(_first(self.alphas, module, self.alpha)) / (rank ** 0.5 if self.rank_stabilised else rank)


def _first(patterns: Mapping[str, float], module: str, otherwise: float) -> float:
    return next((value for pattern, value in patterns.items() if re.match(rf"(.*\.)?({pattern})$", module)), otherwise)


def read_config(folder: Path) -> PeftConfig:
    """Read a folder's adapter_config.json. Raises `CheckpointError`: it is damaged, or has keys that cannot be carried;
    all are listed."""
    path = folder / PEFT_FILE
    try:
        raw = read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the file is damaged ({error}).", where=str(path), remedy=COPY_AGAIN) from None
    if not isinstance(raw, dict):
        raise CheckpointError("the file does not hold an object.", where=str(path), remedy=COPY_AGAIN)
    facts, found = read_keys(RULES, {key: value for key, value in raw.items() if value not in NOTHING or key in (
        "lora_dropout", "r", "lora_alpha")})
    problems = [*found, *_unreadable(facts), *_out_of_range(facts)]
    base = raw.get("base_model_name_or_path")
    if not isinstance(base, str | None):
        problems.append(f"base_model_name_or_path: {base!r:.80} is no text.")
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise CheckpointError(f"this adapter cannot be read:{listed}\n", where=str(path),
                              remedy="Merge it into its model in `peft`, and read that.")
    return PeftConfig(base=base, **facts)


def _unreadable(facts: Facts) -> Iterator[str]:
    """Patterns that are no regular expressions, or may take unbounded time: Python's have no limit of their own."""
    for key, patterns in (("rank_pattern", facts.get("ranks", {})), ("alpha_pattern", facts.get("alphas", {}))):
        for pattern in patterns:
            if len(REPEATS.findall(pattern)) > MOST_REPEATS or re.search(r"\)[*+{]", pattern):
                yield (f"{key}: {pattern!r:.80} repeats a group, or has more than {MOST_REPEATS} repetitions, and "
                       "might not come to an end.")
                continue
            try:
                re.compile(pattern)
            except (re.error, OverflowError, RecursionError) as error:
                yield f"{key}: {pattern!r:.80} is no regular expression ({error})."


def _out_of_range(facts: Facts) -> Iterator[str]:
    """Numbers that no adapter has."""
    for place, value in _named(facts, "r", "rank", "ranks"):
        if type(value) is not int or not 1 <= value <= MOST_RANK:
            yield f"{place}: {value!r:.80} is no rank from 1 to {MOST_RANK:,}."
    for place, value in _named(facts, "lora_alpha", "alpha", "alphas"):
        if type(value) not in (int, float) or not 1 / MOST_ALPHA <= value <= MOST_ALPHA:
            yield f"{place}: {value!r:.80} is no alpha from {1 / MOST_ALPHA:g} to {MOST_ALPHA:g}."
    if not 0 <= facts.get("dropout", 0.0) < 1:
        yield f"lora_dropout: {facts['dropout']!r:.80} is no probability below 1."


def _named(facts: Facts, key: str, one: str, some: str) -> Iterator[tuple[str, Any]]:
    """The number of all maps, and those of some, with the keys where they stand."""
    if one in facts:
        yield key, facts[one]
    for pattern, value in facts.get(some, {}).items():
        yield f"{key.removeprefix('lora_') if key != 'r' else 'rank'}_pattern: {pattern!r:.80}", value


def written(config: PeftConfig, targets: list[str], *, transposed: bool, causal: bool) -> dict[str, Any]:
    """The content of adapter_config.json.

    Args:
        targets: names of modules, or ends of them.
        transposed: whether these modules store their matrices [in,out].
        causal: whether the model is a decoder.
    """
    return {"peft_type": "LORA", "task_type": "CAUSAL_LM" if causal else None,
            "base_model_name_or_path": config.base, "target_modules": targets, "r": config.rank,
            "lora_alpha": config.alpha, "lora_dropout": config.dropout, "use_rslora": config.rank_stabilised,
            "use_dora": config.dora, "rank_pattern": dict(config.ranks), "alpha_pattern": dict(config.alphas),
            "bias": "none", "fan_in_fan_out": transposed, "inference_mode": True, "init_lora_weights": True}
