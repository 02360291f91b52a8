"""The compiled step: the same tokens, compiled once, and a clear refusal where it cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from decoding.small_models import LONGROPE, MLP, ROPE, decoder
from weft.core.errors import UnsupportedError
from weft.decoding import CompiledStep, Ending, generate


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


def test_rows_that_end_early_end_where_they_do_without_compiling() -> None:
    model = decoder("lstm")
    prompts = [[1, 2, 3], [6], [7, 8], [9]]
    plain = generate(model, prompts, max_new_tokens=10)
    ending = Ending(tokens=(plain.rows[0].tokens[1],))
    compiled = CompiledStep(model, backend="aot_eager")
    assert (generate(model, prompts, max_new_tokens=10, ending=ending, compiled=compiled)
            == generate(model, prompts, max_new_tokens=10, ending=ending))


def test_a_model_that_turns_by_the_document_s_length_is_refused() -> None:
    message = r"compile: this model turns its keys by the document's length, .* Leave it out"
    with pytest.raises(UnsupportedError, match=message):
        CompiledStep(decoder({**ROPE, "position": LONGROPE}))


def test_a_failure_to_compile_says_so() -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler here")

    model = decoder(ROPE)
    compiled = CompiledStep(model, backend=broken)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=r"compile: torch.compile failed: .*no compiler here.* Leave it out"):
        generate(model, [[1, 2]], max_new_tokens=3, compiled=compiled)
