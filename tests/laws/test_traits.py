"""Who does less than the law: the closed list of traits, and every registered example that holds one."""

from __future__ import annotations

import torch

from weft.core.traits import Trait
from weft.laws import every_example, subject_of

HOLDERS = {
    "encoder.encoder.0": {Trait.BIDIRECTIONAL},
    "encoder.encoder.1": {Trait.BIDIRECTIONAL},
    **{f"feedforward.moe.{index}": {Trait.DISCRETE_CHOICE} for index in range(3)},
    "feedforward.moe.3": {Trait.DISCRETE_CHOICE, Trait.HOST_CHOICE},
    "feedforward.moe.4": {Trait.DISCRETE_CHOICE},
    "feedforward.moe.5": {Trait.DISCRETE_CHOICE},
    "feedforward.moe.6": {Trait.DISCRETE_CHOICE},
    "mixer.attention.3": {Trait.PREFIX_FIRST},
    "mixer.attention.4": {Trait.BIDIRECTIONAL},
    "mixer.global_attention.2": {Trait.BIDIRECTIONAL},
    "mixer.global_attention.3": {Trait.BIDIRECTIONAL},
    **{f"head.{name}": {Trait.BIDIRECTIONAL} for name in (
        "masked_token.0", "masked_token.1", "per_token.0", "per_token.1", "pooled.0", "pooled.1", "pooled.2")},
    **{f"model.feedforward.{index}": {Trait.TOKENS_ONLY} for index in range(3)},
    **{f"model.ngram.{index}": {Trait.NOT_DIFFERENTIABLE, Trait.TOKENS_ONLY} for index in range(5)},
    "norm.batchnorm.0": {Trait.BATCH_STATISTICS},
    "norm.batchnorm.1": {Trait.BATCH_STATISTICS},
    "position.fraction.0": {Trait.DECLARED_LENGTH},
    "position.fraction.1": {Trait.DECLARED_LENGTH},
    "position.rope.2": {Trait.DECLARED_LENGTH},
    "rope_scaling.dynamic.0": {Trait.DECLARED_LENGTH},
    **{f"rope_scaling.longrope.{index}": {Trait.DECLARED_LENGTH} for index in range(3)},
}
"""Everything else obeys the laws in full. A line here is a decision: add one only with its reason in `Trait`."""


def test_the_list_of_traits_is_closed() -> None:
    assert {trait.name for trait in Trait} == {"BIDIRECTIONAL", "BATCH_STATISTICS", "DECLARED_LENGTH",
                                               "DISCRETE_CHOICE", "HOST_CHOICE", "NOT_DIFFERENTIABLE", "TOKENS_ONLY",
                                               "PREFIX_FIRST"}


def test_only_these_parts_do_less_than_the_law() -> None:
    torch.manual_seed(0)
    subjects = ((name, subject_of(config, name)) for name, config in every_example())
    found = {name: set(subject.traits) for name, subject in subjects if subject is not None and subject.traits}
    assert found == HOLDERS
