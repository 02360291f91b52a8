"""Probes see what a model computes, wherever it is called, and leave nothing behind."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from weft.core.config import parse
from weft.core.declarations import Adjustable
from weft.core.errors import InputError
from weft.core.layer import Pointwise
from weft.core.probes import points_of, probe
from weft.core.span import Span
from weft.decoding import Row, generate, stream
from weft.linear.linear import HOOKS
from weft.models.decoder import Decoder, DecoderConfig

MOE = {"kind": "moe", "n_experts": 3, "top_k": 2, "expert": {"kind": "glu", "d_ff": 6}}
BLOCKS = [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2}, {"kind": "mlp", "d_ff": 12}]},
          {"kind": "pre", "layers": ["gru", MOE]}]


def model(**fields: object) -> Decoder:
    torch.manual_seed(0)
    data = {"vocab_size": 11, "d_model": 8, "context": 32, "blocks": BLOCKS, **fields}
    return parse(DecoderConfig, data).build().double().eval()


def tokens(batch: int = 2, steps: int = 7) -> Tensor:
    return torch.randint(11, (batch, steps), generator=torch.Generator().manual_seed(1))


def untouched(probed: nn.Module) -> bool:
    """No module has a hook or is asked for anything."""
    return not any(vars(module)[hooks] for module in probed.modules() for hooks in HOOKS) and not any(
        "asked" in vars(module) for module in probed.modules())


def test_values_are_those_of_the_computation() -> None:
    one, x = model(), tokens()
    with probe(one, "stack.layers.?.output", "*.stream", "stack.layers.*.layers.?.output", "norm.output",
               "embedding.output") as seen:
        h = one.hidden(x).y
    stream = one.embedding(x, Span().resolve(None, x))
    assert torch.equal(seen["embedding.output"][0], stream)
    for index, block in enumerate(one.stack.children_layers()):
        mixed = block.layers[0](block.norms[0](stream, None)).y  # type: ignore[operator, index]
        assert torch.equal(seen[f"stack.layers.{index}.layers.0.output"][0], mixed)
        fed = block.layers[1](block.norms[1](stream + mixed, None)).y  # type: ignore[operator, index]
        assert torch.equal(seen[f"stack.layers.{index}.layers.1.output"][0], fed)
        stream = stream + mixed + fed
        assert torch.equal(seen[f"stack.layers.{index}.output"][0], stream)
        assert torch.equal(seen[f"stack.layers.{index}.stream"][0], stream)
    assert torch.equal(seen["norm.output"][0], h)
    assert {len(values) for values in seen.values()} == {1} and len(seen) == 2 * 2 + 2 * 2 + 2


def test_a_router_shows_what_it_chose() -> None:
    one, x = model(), tokens()
    with probe(one, "*.choices", "*.gates", "stack.layers.1.norms.1.output") as seen:
        one(x)
    router = one.get_submodule("stack.layers.1.layers.1.router")
    logits = router(seen["stack.layers.1.norms.1.output"][0])
    best = logits.topk(2, -1)
    assert torch.equal(seen["stack.layers.1.layers.1.choices"][0], best.indices)
    # float64 softmax of two numbers: a few units in the last place.
    torch.testing.assert_close(seen["stack.layers.1.layers.1.gates"][0], best.values.softmax(-1), rtol=0, atol=1e-15)


def test_pieces_that_thread_a_state_show_what_the_whole_shows() -> None:
    one, x = model(), tokens()
    with torch.no_grad():
        with probe(one, "*") as whole:
            one(x)
        state = one.init_state(2)
        with probe(one, "*") as seen:
            for piece in x.split([3, 1, 3], 1):
                state = one(piece, state).state  # type: ignore[assignment]
    names = [name for name in whole if name.endswith((".layers.0.output", ".layers.1.output", "gates", "stream"))]
    assert len(names) == 4 + 2 + 1 + 2
    for name in names:
        assert len(seen[name]) == 3
        # float64; the sums over keys are taken in another order.
        torch.testing.assert_close(torch.cat(seen[name], 1), whole[name][0], rtol=0, atol=1e-12)


def test_decoding_is_seen_step_by_step_and_stays_as_it_is() -> None:
    one, prompt = model(), Row([1, 2, 3])
    steps = 20  # more than the ordinary steps before a tape
    plain = list(generate(one, [prompt], max_new_tokens=steps).rows[0].tokens)
    with probe(one, "stack.output", "*.choices") as seen:
        assert list(generate(one, [prompt], max_new_tokens=steps).rows[0].tokens) == plain
    assert untouched(one)
    assert [value.shape[1] for value in seen["stack.output"]] == [3] + [1] * (steps - 1)
    text = torch.tensor([[*prompt.tokens, *plain][:-1]])
    with torch.no_grad(), probe(one, "stack.output") as whole:
        one(text)
    torch.testing.assert_close(torch.cat(seen["stack.output"], 1), whole["stack.output"][0], rtol=0, atol=1e-12)


def test_a_probe_may_begin_and_end_amid_a_text() -> None:
    one, prompt, found, middle = model(), [1, 2, 3], list[int](), list[Tensor]()
    tokens = stream(one, [Row(prompt)], max_new_tokens=40)
    for new in tokens:
        found.append(new.token)
        if len(found) == 20:  # by then a tape takes the steps
            with probe(one, "stack.output") as seen:
                found += [next(tokens).token for _ in range(3)]
            middle = seen["stack.output"]
    assert untouched(one) and len(middle) == 3
    with torch.no_grad(), probe(one, "stack.output") as whole:
        one(torch.tensor([[*prompt, *found]]))
    assert len(found) == 40
    torch.testing.assert_close(torch.cat(middle, 1), whole["stack.output"][0][:, len(prompt) + 19:len(prompt) + 22],
                               rtol=0, atol=1e-12)


@pytest.mark.parametrize("keep", ["everything", "costly", "inputs"])
def test_training_is_seen_once_and_keeps_its_gradients(keep: Any) -> None:
    one, x = model(), tokens()
    one.stack.kept_activations = keep
    one(x).y.square().sum().backward()
    wanted = [p.grad for p in one.parameters()]
    one.zero_grad(set_to_none=True)
    with probe(one, "stack.layers.0.layers.0.output", "*.gates") as seen:
        one(x).y.square().sum().backward()
    assert {len(values) for values in seen.values()} == {1}
    assert all(torch.equal(p.grad, grad) for p, grad in zip(one.parameters(), wanted, strict=True)
               if p.grad is not None and grad is not None)
    value = seen["stack.layers.0.layers.0.output"][0]
    assert value.requires_grad and value.grad_fn is not None


def test_gradients_with_respect_to_an_activation() -> None:
    one, x = model(), tokens()
    with probe(one, "stack.output") as seen:
        loss = one(x).y.sum()
    slope, = torch.autograd.grad(loss, seen["stack.output"])
    # logits are linear in the stack's output: no norm follows, and the sum weights each by the embedding's columns.
    wanted = one.embedding.tokens.weight.sum(0).expand_as(slope)
    torch.testing.assert_close(slope, wanted, rtol=0, atol=1e-14)


def test_compiled_functions_run_uncompiled_inside_the_block() -> None:
    one, x = model(), tokens()
    compiler = CompileCounter()
    compiled = torch.compile(one, backend=compiler, dynamic=False)
    with torch.no_grad():
        y, graphs = compiled(x).y, compiler.frame_count
        with probe(one, "stack.output", "*.choices") as seen:
            assert torch.equal(compiled(x).y, y)
        compiled(x)
    assert compiler.frame_count == graphs > 0, "nothing was compiled for the probe"
    assert {len(values) for values in seen.values()} == {1}


def test_nothing_is_left_behind_even_by_an_error_and_by_probes_inside_probes() -> None:
    one, x = model(), tokens()
    with pytest.raises(ZeroDivisionError), probe(one, "*"):
        raise ZeroDivisionError
    assert untouched(one)
    with probe(one, "*.choices") as outer:
        with probe(one, "*.choices", "*.gates") as inner:
            one(x)
        one(x)
    assert untouched(one)
    assert [len(outer[name]) for name in outer] == [2] and [len(inner[name]) for name in inner] == [1, 1]


def test_a_part_alone_is_probed_by_its_own_names() -> None:
    layer = model().get_submodule("stack.layers.1.layers.1")
    with probe(layer, "choices", "experts.0.output", "output") as seen:
        y = layer(torch.randn(1, 4, 8, dtype=torch.float64)).y
    assert torch.equal(seen["output"][0], y) and seen["choices"][0].shape == (1, 4, 2)


def test_a_module_at_two_places_is_listed_once_and_matches_by_either() -> None:
    shared = {"kind": "mlp", "d_ff": 12}
    blocks = [{"kind": "pre", "layers": [{"shared": "ff"}]}] * 2
    one = model(blocks=blocks, shared={"ff": shared})
    assert points_of(one)["stack.layers.1.layers.0.output"] == points_of(one)["shared.ff.output"]
    with probe(one, "stack.layers.1.layers.0.output") as seen:
        one(tokens())
    assert [len(values) for values in seen.values()] == [2]
    with probe(one, "*ff.output", "*layers.0.output") as seen:
        one(tokens())
    assert {name: len(values) for name, values in seen.items() if not name.startswith("stack.layers.0.output")} == {
        "shared.ff.output": 2}


def test_a_pattern_that_matches_nothing_is_refused_with_what_is_near() -> None:
    one = model()
    with pytest.raises(InputError, match=r"^probe: nothing matches 'stack.layers.0.layer.0.output'. Did you mean "
                       r"'stack.layers.0.layers.0.output'\? Points here are choices, gates, output, stream, "), probe(
                           one, "stack.output", "stack.layers.0.layer.0.output"):
        pass
    with pytest.raises(InputError, match=r"nothing matches '\*.wieghts'. Points here are choices, gates, output, "
                       r"stream, weights, at paths such as .*stack.output"), probe(one, "*.wieghts"):
        pass
    with pytest.raises(InputError, match=r"^probe: no pattern. Points here are"), probe(one):
        pass
    assert untouched(one)


def test_a_model_that_is_not_probed_runs_no_line_of_the_probes() -> None:
    one, x, files = model(), tokens(), set[str]()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        files.add(frame.f_code.co_filename)

    with torch.no_grad():
        sys.setprofile(note)
        try:
            one(x)
        finally:
            sys.setprofile(None)
    assert any("weft/feedforward/moe.py" in file for file in files)
    assert not any("core/points" in file or "core/probes" in file for file in files)


class Halves(Pointwise, Adjustable):
    """A part of a new kind, which shows a value of its own, and makes it only where it is asked for."""

    points = ("halves",)
    made = 0

    def each(self, x: Tensor) -> Tensor:
        if self.asked is not None and "halves" in self.asked:
            self.made += 1
            self.asked.give("halves", x / 2)
        return 2 * x


def test_a_point_of_a_new_part_is_made_only_where_it_is_asked_for() -> None:
    part, x = Halves(), torch.ones(1, 2, 3)
    part(x)
    with probe(part, "output"):
        part(x)
    assert part.made == 0
    with probe(part, "h*") as seen:
        part(x)
    assert part.made == 1 and torch.equal(seen["halves"][0], x / 2)
