"""Who does less than the law: the closed list of traits, and every registered example that holds one."""

from __future__ import annotations

import torch

from weft.core.declarations import Trait
from weft.laws import every_example, subject_of

HOLDERS = {
    **{f"encoder.{name}": {Trait.BIDIRECTIONAL} for name in (
        "dense.0", "dense.1", "dense.2", "image_encoder.0", "image_encoder.1", "image_encoder.2")},
    **{f"encoder.encoder.{index}": {Trait.BIDIRECTIONAL} for index in range(4)},
    **{f"feedforward.moe.{index}": {Trait.DISCRETE_CHOICE} for index in range(3)},
    "feedforward.moe.3": {Trait.DISCRETE_CHOICE, Trait.HOST_CHOICE},
    **{f"feedforward.moe.{index}": {Trait.DISCRETE_CHOICE} for index in range(4, 10)},
    "mixer.attention.3": {Trait.PREFIX_FIRST},
    **{f"mixer.{name}": {Trait.BIDIRECTIONAL} for name in (
        "attention.4", "global_attention.2", "global_attention.3", "latent_attention.4", "linear_attention.4",
        "linear_attention.5", "performer.3", "performer.4")},
    "mixer.latent_attention.3": {Trait.PREFIX_FIRST},
    **{f"head.{name}": {Trait.BIDIRECTIONAL} for name in (
        "layer_classes.0", "layer_classes.1", "masked_token.0", "masked_token.1", "per_token.0", "per_token.1",
        "per_token.2", "pooled.0", "pooled.1", "pooled.2", "pooled.3")},
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
