"""Every part learns: a tiny model with it, trained for some dozens of steps, predicts a text whose structure is known
better than any model that knows no more than how often tokens occur; and with positions, better than one without."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from training.tiny_runs import next_token
from weft.core.config import parse_part
from weft.core.declarations import Trait
from weft.core.layer import traits_of
from weft.core.model import EncoderInputs, LanguageModel
from weft.core.part_config import Dims, PartConfig
from weft.core.registry import REGISTRY
from weft.core.span import Memory, Span
from weft.mixers.cross_attention import CrossAttention
from weft.positions.base import PositionConfig
from weft.tasks.text import TextColumns
from weft.training.optimizers import AdamWConfig, set_lr

KNOWN, VOCABULARY, WIDTH = 8, 11, 16
"""Tokens that occur, tokens that models know of, and features of models."""
ROWS, STEPS, RATE, WARM = 16, 13, 2e-2, 10

Text = Callable[[int, torch.Generator], tuple[Tensor, Tensor | None]]
"""Rows [N,STEPS], and the source [N,1] that belongs to each where there is one."""


@cache
def transitions() -> Tensor:
    """Probabilities of each token after each: most follow one of two."""
    return torch.softmax(3 * torch.randn(KNOWN, KNOWN, generator=torch.Generator().manual_seed(5)), -1)


def chain(rows: int, generator: torch.Generator) -> tuple[Tensor, None]:
    """Every token is drawn as the one before it says."""
    found = [torch.randint(KNOWN, (rows,), generator=generator)]
    for _ in range(STEPS - 1):
        found.append(torch.multinomial(transitions()[found[-1]], 1, generator=generator)[:, 0])
    return torch.stack(found, 1), None


def echo(rows: int, generator: torch.Generator) -> tuple[Tensor, None]:
    """A value, a mark, the value again; another value, and so on. Before a mark and after it values look alike, and
    which of them is the last, only their order tells."""
    values = torch.randint(KNOWN - 1, (rows, STEPS // 3 + 1), generator=generator)
    return torch.stack([values, torch.full_like(values, KNOWN - 1), values], -1).flatten(1)[:, :STEPS], None


def told(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Each row's tokens are seven times in ten the one that its source says."""
    source = torch.randint(KNOWN, (rows, 1), generator=generator)
    noise = torch.randint(KNOWN, (rows, STEPS), generator=generator)
    kept = torch.rand(rows, STEPS, generator=generator) < 0.7
    return torch.where(kept, source, noise), source


@cache
def batches(text: Text, steps: int) -> list[tuple[Tensor, Tensor | None]]:
    """The rows of every step, on which all models are trained."""
    generator = torch.Generator().manual_seed(1)
    return [text(ROWS, generator) for _ in range(steps)]


@cache
def held_out_rows(text: Text) -> tuple[Tensor, Tensor | None]:
    return text(500, torch.Generator().manual_seed(2))


@cache
def unigram_entropy(text: Text) -> float:
    """Of the predicted tokens, in nats."""
    tokens, _ = text(4000, torch.Generator().manual_seed(3))
    share = torch.bincount(tokens[:, 1:].flatten(), minlength=KNOWN).double() / tokens[:, 1:].numel()
    return float(-(share * share.clamp(min=1e-12).log()).sum())


def learnt(config: PartConfig, text: Text, steps: int, enough: float = -math.inf) -> float:
    """Nats a token on held-out rows after so many steps, or after four sevenths of them if that is less than ``enough``
    already, as for nine models in ten."""
    torch.manual_seed(0)
    model = config.build(None)  # type: ignore[arg-type]
    assert isinstance(model, LanguageModel)
    optimizer, task = AdamWConfig(lr=RATE).create(model), next_token()
    model.train()
    for step, (tokens, source) in enumerate(batches(text, steps)):
        every = torch.ones(ROWS, STEPS - 1, dtype=torch.bool)
        given = TextColumns(tokens[:, :-1], tokens[:, 1:], every, Span(memory=memory(model, source)))
        scored = task.loss(model, given, None)
        optimizer.zero_grad()
        (scored.loss / every.numel() + sum(loss.value for loss in scored.losses)).backward()
        set_lr(optimizer, RATE * min(1.0, (step + 1) / WARM) * (1 - step / steps))
        optimizer.step()
        if step + 1 == steps * 4 // 7 and (found := held_out(model, text)) < enough:
            return found
    return held_out(model, text)


@torch.no_grad()
def held_out(model: LanguageModel, text: Text) -> float:
    tokens, source = held_out_rows(text)
    h = model.eval().hidden(tokens[:, :-1], None, Span(memory=memory(model, source))).y
    found = -float(model.readout.log_prob(h, tokens[:, 1:]).mean())
    model.train()
    return found


def memory(model: LanguageModel, source: Tensor | None) -> Memory | None:
    if source is None:
        return None
    if model.takes_source:
        return model.encode(EncoderInputs(tokens=source))
    return Memory(torch.nn.functional.one_hot(source, WIDTH).float())


def decoder(*layers: Any, **options: Any) -> PartConfig:
    """Two blocks of these layers."""
    block = {"kind": "pre", "layers": list(layers), **options.pop("block", {})}
    return parse_part(("model",), {"kind": "decoder", "vocab_size": VOCABULARY, "d_model": WIDTH, "context": STEPS,
                                   "norm": "layernorm", "blocks": [{"repeat": 2, "of": [block]}], **options})


def hosts(config: PartConfig) -> PartConfig | None:
    """A model with the part; None for parts that no model consists of."""
    match config.group:
        case "mixer" | "feedforward":
            giver = config.giver()
            return decoder(config) if giver is None else decoder(giver, config)
        case "norm":
            return decoder("gru", norm=config, block={"norm": config})
        case "block":
            wired = config.model_copy(update={"residual": True})  # without, it is there to show what becomes of it
            return decoder(blocks=[wired, wired])
        case "readout":
            return decoder("gru", readout=config)
        case "model" if Trait.NOT_DIFFERENTIABLE not in traits_of(config.build(Dims(WIDTH))):
            return config
    return None


def parts() -> Iterator[Any]:
    """The first two examples of every part that gradients train, with the steps: without norms it takes more."""
    for part in REGISTRY.parts():
        examples = part.examples()[:2]
        for index, example in enumerate(examples):
            host = hosts(example)
            if host is not None:
                yield pytest.param(host, 120 if part.kind == "none" else 70, id=f"{part.group} {part.kind} {index}")


@pytest.mark.parametrize(("config", "steps"), list(parts()))
def test_a_model_with_the_part_learns_more_than_how_often_tokens_occur(config: PartConfig, steps: int) -> None:
    model = config.build(None)  # type: ignore[arg-type]
    reads = isinstance(model, LanguageModel) and model.takes_source
    text = told if reads or any(isinstance(part, CrossAttention) for part in model.modules()) else chain
    # The chain's own entropy is 0.72 nats below its unigram entropy, the told rows' 0.93: two fifths of the way are far
    # from what chance or a model without context could give; after 60 steps the slowest had gone 0.08 farther.
    enough = unigram_entropy(text) - 0.3
    assert learnt(config, text, steps, enough) < enough


def test_a_stack_of_sigmoid_networks_learns() -> None:
    """Without residuals and norms, where all comes through two sigmoids and their slopes."""
    elman = {"kind": "elman", "activation": "sigmoid"}
    config = decoder(norm="none", blocks=[{"kind": "plain", "layers": [elman], "residual": False}] * 2)
    assert learnt(config, chain, 150) < unigram_entropy(chain) - 0.3


SMALL = {"std": 0.02}
"""Embeddings with which what order adds is seen best: with those of the default, which here are twelve times as large,
a bag of tokens comes nearer to it in as many steps."""


def with_positions(config: PositionConfig) -> PartConfig:
    """One block of attention that has no other way to know of order."""
    scheme = config.build_for_heads(Dims(WIDTH, VOCABULARY, STEPS), 4, WIDTH // 4)
    on_embeddings = "embeddings" in scheme.acts_on
    attention = {"kind": "attention", "n_heads": 4, **({} if on_embeddings else {"position": config})}
    return decoder(position=config if on_embeddings else "none", readout={"kind": "linear", "tied": False},
                   embedding={} if config.embedding_defaults else SMALL,
                   blocks=[{"kind": "pre", "layers": [attention, {"kind": "mlp", "d_ff": 32}]}])


@cache
def without_positions() -> float:
    return learnt(decoder(readout={"kind": "linear", "tied": False}, embedding=SMALL, blocks=[
        {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 4}, {"kind": "mlp", "d_ff": 32}]}]), echo, 200)


@pytest.mark.parametrize("kind", [kind for kind in REGISTRY.kinds(("position",)) if kind != "none"])
def test_a_model_with_positions_learns_an_order_that_no_bag_of_tokens_has(kind: str) -> None:
    config = parse_part(("position",), {"kind": kind, **({"max_length": STEPS} if kind == "learned" else {})})
    assert isinstance(config, PositionConfig)
    enough = without_positions() - 0.04
    # Of every three tokens one is free: log(7) / 3 = 0.65 nats, which most schemes reach (measured with three seeds: up
    # to 0.77; linear biases, which can tell only how near a token is, 0.85 to 0.92). Without positions it is 0.97 to 1.
    assert learnt(with_positions(config), echo, 200, enough) < enough
    assert without_positions() < unigram_entropy(echo) - 0.5


def test_embeddings_under_sinusoidal_positions_are_of_the_size_of_the_waves() -> None:
    model: Any = decoder("gru", position="sinusoidal", d_model=64).build(None)  # type: ignore[arg-type]
    assert model.embedding.scale == 8.0
    assert math.isclose(float(model.embedding.tokens.weight.detach().std()), 1 / 8, rel_tol=0.1)


def test_a_stored_configuration_says_what_its_embeddings_are() -> None:
    """One in which every field is written, as checkpoints have it, keeps its meaning; so does a shared scheme."""
    stored = decoder("gru", position="sinusoidal", embedding={"scale": None, "std": 0.02})
    assert parse_part(("model",), stored.dump()) == stored
    model: Any = stored.build(None)  # type: ignore[arg-type]
    assert model.embedding.scale == 1.0
    assert float(model.embedding.tokens.weight.detach().std()) < 0.03
    for positions in ({"position": "sinusoidal"}, {"shared": {"p": "sinusoidal"}, "position": {"shared": "p"}}):
        left_out = decoder("gru", **positions)
        assert left_out.dump()["embedding"]["scale"] == "sqrt_width"
        assert parse_part(("model",), left_out.dump()) == left_out
