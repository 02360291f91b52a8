"""Log-probabilities over HTTP, as harnesses of benchmarks ask for them, are those of `weft.score`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

import weft
from decoding.small_models import build
from server.fake_engine import MODEL
from weft.checkpoints import Loaded
from weft.server.app import application
from weft.server.served import Served
from weft.serving.engine import Engine
from weft.serving.requests import EngineLimits
from weft.serving.thread import EngineThread
from weft.tokenizers import ByteTokenizer


def with_mixer(layer: dict[str, Any]) -> dict[str, Any]:
    """A tiny model over bytes with this mixer."""
    return {**MODEL, "blocks": [{"kind": "pre", "layers": [layer, {"kind": "mlp", "d_ff": 16}]}]}


MODELS: dict[str, dict[str, Any]] = {
    "attention": MODEL,
    "window": with_mixer({"kind": "attention", "n_heads": 2, "position": "rope", "mask": "causal & window(4)"}),
    "lstm": with_mixer({"kind": "lstm"}),
    "mamba": with_mixer({"kind": "mamba"}),
    "ngram": {"kind": "ngram", "vocab_size": 257, "order": 3},
}
TEXTS = ("The cat sat on the mat.", "é", "def f(x):\n    return x\n")


def scored(served: Served, engine: Engine, rows: list[list[int]], name: str) -> list[Any]:
    """The choices of a harness's request."""
    thread = EngineThread(engine)
    thread.start()
    try:
        with TestClient(application(served, engine), base_url="http://localhost") as client:
            answer = client.post("/v1/completions", json={"model": name, "prompt": rows, "max_tokens": 1, "echo": True,
                                                          "logprobs": 1, "temperature": 0, "seed": 1234})
    finally:
        thread.stop()
    assert answer.status_code == 200, answer.text
    found: list[Any] = answer.json()["choices"]
    return found


@pytest.mark.parametrize("kind", MODELS)
def test_scores_of_prompts_are_those_of_the_library(kind: str) -> None:
    model, tokenizer = build(MODELS[kind]).float().eval(), ByteTokenizer()
    loaded = Loaded(model, tokenizer, model.config, None, {}, Path(kind))
    rows = [[256, *text.encode()] for text in TEXTS]
    wanted = weft.score(loaded, rows).rows
    choices = scored(Served(kind, loaded), Engine(model, tokenizer, start=256, limits=EngineLimits(rows=4)), rows, kind)
    for row, expected, choice in zip(rows, wanted, choices, strict=True):
        told = choice["logprobs"]
        assert len(told["tokens"]) == len(row) + 1 and told["token_logprobs"][0] is None
        # Both are sums in float32, read in pieces of other lengths: 1e-4 is a hundred times their rounding.
        torch.testing.assert_close(torch.tensor(told["token_logprobs"][1:-1]), torch.tensor(expected.log_probs[1:]),
                                   atol=1e-4, rtol=0)
        assert max(told["top_logprobs"][-1].values()) == pytest.approx(told["token_logprobs"][-1]), "greedy is the best"


def test_an_adapter_that_a_body_names_computes_its_rows() -> None:
    models = [build(MODEL, seed=seed).float().eval() for seed in (0, 1)]
    base, other = (Loaded(each, ByteTokenizer(), each.config, None, {}, Path("a")) for each in models)
    rows, served = [[256, *TEXTS[0].encode()]], Served("base", base, adapters=("other",))
    for name, loaded in (("base", base), ("other", other)):
        engine = Engine(models[0], ByteTokenizer(), start=256, adapters={"other": models[1]})
        choice, = scored(served, engine, rows, name)
        expected, = weft.score(loaded, rows).rows
        torch.testing.assert_close(torch.tensor(choice["logprobs"]["token_logprobs"][1:-1]),
                                   torch.tensor(expected.log_probs[1:]), atol=1e-4, rtol=0)
