"""`torch.compile(fullgraph=True)` takes the training forward and a decoding step of every kind of part, and gives what
eager execution gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import config as dynamo
from torch.testing import assert_close

from weft.core.declarations import Trait
from weft.core.layer import LayerState, traits_of
from weft.core.model import EncoderInputs, LanguageModel, ModelState
from weft.core.part_config import Dims, PartConfig
from weft.core.registry import REGISTRY
from weft.core.span import Memory, Span
from weft.mixers.cross_attention import CrossAttention

WIDTH, VOCABULARY, STEPS, CAPACITY = 8, 11, 5, 8
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
"""float32 (6e-8) after a few dozen roundings, whose order a compiler may change; the outputs are of order one."""

ATTENTIONS = {
    "grouped, rope": {"n_heads": 4, "n_kv_heads": 2, "position": "rope"},
    "window, rope": {"n_heads": 2, "mask": "causal & window(3)", "position": "rope"},
    "alibi": {"n_heads": 2, "position": "alibi"},
}


SMALLER = {"moe": {"n_experts": 2, "expert": {"kind": "glu", "d_ff": 6}}}
"""Instead of examples that take long to trace."""


def decoder(*layers: PartConfig | dict[str, Any]) -> PartConfig:
    return REGISTRY.get(("model",), "decoder").model_validate({
        "vocab_size": VOCABULARY, "d_model": WIDTH, "context": 16, "blocks": [{"kind": "pre", "layers": list(layers)}]})


MIXERS = [part for part in REGISTRY.parts("mixer") if part.kind != "attention"]


def kinds() -> Iterator[Any]:
    """Small models that have every registered mixer, feed-forward and model that is trained by gradients, and attention
    in its main forms. Mixers share a model by fives, since more than half of what is traced of a model with one is the
    rest of it; the compiler's message names the line of the mixer that it refuses."""
    for name, fields in ATTENTIONS.items():
        yield pytest.param(decoder({"kind": "attention", **fields}), id=f"attention, {name}")
    for number in range(0, len(MIXERS), 5):
        yield pytest.param(decoder(*(part.examples()[0] for part in MIXERS[number:number + 5])),
                           id=" ".join(part.kind for part in MIXERS[number:number + 5]))
    small = [{"kind": part.kind, **SMALLER[part.kind]} if part.kind in SMALLER else part.examples()[0]
             for part in REGISTRY.parts("feedforward")]
    yield pytest.param(decoder(*small), id="all feed-forwards")
    for part in REGISTRY.parts("model"):
        config = part.examples()[-1]
        if part.kind != "decoder" and Trait.NOT_DIFFERENTIABLE not in traits_of(build(config)):
            yield pytest.param(config, id=f"model {part.kind}")


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def build(config: PartConfig) -> LanguageModel:
    torch.manual_seed(0)
    model = config.build(None)  # type: ignore[arg-type]
    assert isinstance(model, LanguageModel)
    return model.eval()


MODELS = list(kinds())
PARTITIONED = "aot_eager_default_partitioner"
"""Forward and backward are traced and cut apart. The cut of plain `aot_eager`, which searches for the least memory, is
PyTorch's alone, takes a tenth of the time, and is made where inductor compiles."""
INDUCED = {"attention": {"kind": "attention", "n_heads": 2}, "elman": {"kind": "elman"}}


def tokens(steps: int = STEPS) -> Tensor:
    return torch.randint(VOCABULARY, (2, steps), generator=torch.Generator().manual_seed(1))


def reading(model: LanguageModel) -> Callable[[Tensor], Memory | None]:
    """What the models that read a source make of it; cross-attention in a mere decoder gets vectors."""
    if model.takes_source:
        return lambda source: model.encode(EncoderInputs(tokens=source))
    if any(isinstance(part, CrossAttention) for part in model.modules()):
        return lambda source: Memory(torch.nn.functional.one_hot(source % WIDTH, WIDTH).float())
    return lambda source: None


def training(model: LanguageModel, compiler: Callable[..., Any]) -> tuple[Tensor, list[Tensor | None]]:
    """The loss and its gradients."""
    memory = reading(model)

    def loss(x: Tensor, targets: Tensor, source: Tensor) -> Tensor:
        out = model.hidden(x, None, Span(memory=memory(source)))
        return -model.readout.log_prob(out.y, targets).mean() + sum(loss.value for loss in out.losses)

    value = compiler(loss)(tokens(), tokens().flip(1), tokens(4))
    return value.detach(), list(torch.autograd.grad(value, list(model.parameters()), allow_unused=True))


def decoding(model: LanguageModel, compiler: Callable[..., Any]) -> tuple[list[Tensor], ModelState]:
    """The logits of single tokens and the last state; after the first step nothing may be compiled again."""
    def step(x: Tensor, state: ModelState) -> tuple[Tensor, ModelState | None]:
        out = model(x, state, Span(bound=CAPACITY))
        return out.y, out.state

    step, found = compiler(step), []
    with torch.no_grad():
        state = model.init_state(2, capacity=CAPACITY, memory=reading(model)(tokens(4)))
        for t in range(STEPS):
            with dynamo.patch(error_on_recompile=t > 0):
                y, state = step(tokens()[:, t:t + 1], state)
            found.append(y)
    return found, state


def compiled(backend: str) -> Callable[..., Any]:
    return lambda function: torch.compile(function, fullgraph=True, backend=backend)


def check(config: PartConfig, backend: str, steps: str) -> None:
    """Compare training as one backend compiles it, and ``steps`` of decoding as another does."""
    model = build(config)
    assert_close(training(model, compiled(backend)), training(model, lambda loss: loss), **CLOSE)
    logits, state = decoding(model, compiled(steps))
    wanted, last = decoding(model, lambda step: step)
    assert_close(logits, wanted, **CLOSE)
    assert_close({path: tensor for path, (tensor, _) in state.tensors().items()},
                 {path: tensor for path, (tensor, _) in last.tensors().items()}, **CLOSE)


@pytest.mark.parametrize("config", MODELS)
def test_traced_whole_and_equal_to_eager(config: PartConfig) -> None:
    """Training forward and backward; decoding, which has no backward, as it is traced."""
    check(config, PARTITIONED, "eager")


BEGINS = torch.tensor([[False, False, True, True, False], [False, True, False, False, False]])


@pytest.mark.parametrize("part", MIXERS, ids=lambda part: part.kind)
def test_packed_documents_are_traced_whole_and_equal_to_eager(part: type[PartConfig]) -> None:
    """Documents that begin inside a row, in a call of the mixer alone that goes on from a state and in one without."""
    torch.manual_seed(0)
    mixer = part.examples()[0].build(Dims(WIDTH, VOCABULARY, 16)).eval()
    x, source = torch.randn(2, STEPS, WIDTH), Memory(torch.randn(2, 4, WIDTH))

    def both(x: Tensor, state: LayerState | None) -> tuple[Tensor, Tensor]:
        return mixer(x, None, Span(begins=BEGINS, memory=source)).y, mixer(x, state, Span(begins=BEGINS)).y

    with torch.no_grad():
        found, wanted = ([*run(x, mixer.init_state(2, memory=source))] for run in (compiled("eager")(both), both))
    assert_close(found, wanted, **CLOSE)


def test_a_model_that_reads_packed_documents_is_traced_whole_and_equal_to_eager() -> None:
    model = build(decoder({"kind": "attention", **ATTENTIONS["window, rope"]}))

    def both(x: Tensor, state: ModelState | None) -> tuple[Tensor, Tensor]:
        return model(x, None, Span(begins=BEGINS)).y, model(x, state, Span(begins=BEGINS)).y

    with torch.no_grad():
        found, wanted = ([*run(tokens(), model.init_state(2))] for run in (compiled("eager")(both), both))
    assert_close(found, wanted, **CLOSE)


def test_packed_state_spaces_are_trained_in_one_graph() -> None:
    model = build(decoder({"kind": "s4d", "d_state": 4}))

    def loss(x: Tensor) -> Tensor:
        return model(x, None, Span(begins=BEGINS)).y.square().sum()

    found, wanted = ([value := run(tokens()), *torch.autograd.grad(value, list(model.parameters()))]
                     for run in (compiled(PARTITIONED)(loss), loss))
    assert_close(found, wanted, **CLOSE)


@pytest.mark.parametrize("name", INDUCED)
def test_compiled_by_inductor_and_equal_to_eager(name: str) -> None:
    check(decoder(INDUCED[name]), "inductor", "inductor")


def test_a_step_without_reserved_buffers_would_be_compiled_again() -> None:
    """The check for recompilation can fail: keys that grow by each chunk change their shape."""
    model = build(decoder({"kind": "attention", "n_heads": 2}))
    step = compiled("eager")(lambda x, state: model(x, state).state)
    with torch.no_grad(), pytest.raises(torch._dynamo.exc.RecompileError):
        state = step(tokens()[:, :1], model.init_state(2))
        with dynamo.patch(error_on_recompile=True):
            step(tokens()[:, 1:2], state)
