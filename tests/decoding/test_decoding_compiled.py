"""The compiled step: the same tokens, compiled once, and a clear refusal where it cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from decoding.small_models import LONGROPE, MLP, ROPE, decoder
from weft.core.errors import UnsupportedError
from weft.decoding import CompiledStep, Ending, Row, generate
from weft.decoding.session import Session
from weft.linear.linear import Linear
from weft.ops.forms import forced


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def test_a_compiled_step_gives_eager_tokens_and_is_compiled_once() -> None:
    model = decoder(ROPE, {**ROPE, "mask": "causal & window(4)", "n_kv_heads": 1}, MLP).float()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = CompiledStep(model, backend=counter)  # type: ignore[arg-type]
    prompts = [[1, 2, 3, 4, 5], [6], [7, 8]]
    found = generate(model, prompts, max_new_tokens=9, compiled=compiled)
    assert found == generate(model, prompts, max_new_tokens=9)
    assert generate(model, prompts, max_new_tokens=9, compiled=compiled) == found
    assert counter.frame_count == 1


def test_tokens_of_inference_mode_and_others_are_compiled_once() -> None:
    """A graph's own tokens are of the first kind, those that the host has read of the second."""
    counter = CompileCounterWithBackend("eager")
    step = CompiledStep(decoder("lstm").eval(), backend=counter)  # type: ignore[arg-type]
    session = Session(step._model, [Row((1, 2))], max_new_tokens=9, compiled=step)
    session.advance(torch.tensor([1]))
    with torch.inference_mode():
        session.advance(torch.tensor([1]))
    assert counter.frame_count == 1


def test_the_compiler_multiplies_one_row_as_eager_does() -> None:
    model = decoder(blocks=[{"kind": "pre", "layers": [MLP]}]).float()
    found = generate(model, [[1]], max_new_tokens=4, log_probs=True, compiled=CompiledStep(model)).rows[0]
    eager = generate(model, [[1]], max_new_tokens=4, log_probs=True).rows[0]
    assert found.tokens == eager.tokens
    assert found.log_probs == pytest.approx(eager.log_probs, rel=1e-5)  # float32, summed in another order


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_one_token_is_multiplied_as_many_are(dtype: torch.dtype, bias: bool) -> None:
    linear = Linear(6, 5, bias).to(dtype)
    x = torch.randn(6, 4, dtype=dtype).t()[2].reshape(1, 1, 6)  # not side by side in memory
    with forced({"linear": "one_token"}):
        found = linear(x)
        with pytest.raises(UnsupportedError, match=r"cannot serve this call: it takes a single vector.*library"):
            linear(torch.randn(2, 3, 6, dtype=dtype))
    torch.testing.assert_close(found, linear(x))


def test_any_number_of_models_is_compiled() -> None:
    with torch._dynamo.config.patch(recompile_limit=1):
        for width in (4, 12):
            model = decoder({**MLP, "d_ff": width})
            assert generate(model, [[1]], max_new_tokens=3, compiled=CompiledStep(model, backend="eager")) == generate(
                model, [[1]], max_new_tokens=3)


def test_rows_that_end_early_end_where_they_do_without_compiling() -> None:
    model = decoder("lstm")
    prompts = [[1, 2, 3], [6], [7, 8], [9]]
    plain = generate(model, prompts, max_new_tokens=10)
    ending = Ending(tokens=(plain.rows[0].tokens[1],))
    compiled = CompiledStep(model, backend="aot_eager")
    assert (generate(model, prompts, max_new_tokens=10, ending=ending, compiled=compiled)
            == generate(model, prompts, max_new_tokens=10, ending=ending))


def test_a_model_that_turns_by_the_document_s_length_is_refused() -> None:
    message = r"compile: this model rotates its keys by angles that depend on the document's length, .* Leave it out"
    with pytest.raises(UnsupportedError, match=message):
        CompiledStep(decoder({**ROPE, "position": LONGROPE}))


def test_a_failure_to_compile_says_so() -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler here")

    model = decoder(ROPE)
    compiled = CompiledStep(model, backend=broken)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=r"compile: torch.compile failed: .*no compiler here.* Leave it out"):
        generate(model, [[1, 2]], max_new_tokens=3, compiled=compiled)
