"""The client that lm-eval has for OpenAI's completions, asking `weft serve`, against Weft's own model of lm-eval."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lm_eval.models.openai_completions import LocalCompletionsAPI

from against_lm_eval.families import BEGIN, CONTEXT, FAMILIES, saved
from against_lm_eval.test_requests import PAIRS, SETTINGS, TEXTS, instances, largest, mine
from server.test_process import Process


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, Any]]:
    """A family's name, its folder, and lm-eval's client of a server of it."""
    name: str = request.param
    folder = saved(name, tmp_path_factory.mktemp(f"served_{name}"))
    server = Process(folder, "--name", name)
    yield name, folder, LocalCompletionsAPI(
        base_url=f"http://127.0.0.1:{server.port}/v1/completions", model=name, tokenizer=str(folder),
        tokenizer_backend="huggingface", max_length=CONTEXT, batch_size=4, add_bos_token=FAMILIES[name][3])
    server.process.send(signal.SIGTERM)
    assert server.process.end(30).returncode == 0


def alike(client: Any, *texts: str) -> bool:
    """Whether lm-eval gives texts, one after the other, to servers as it does to models. Of those that do not fit into
    the context it leaves a token more to models; and it puts a second opening token before a text that has one, or that
    begins a document, where the tokenizer puts one too."""
    opened = client.add_bos_token and (not texts[0] or texts[0].startswith(BEGIN))
    return not opened and sum(len(client.tok_encode(text)) for text in texts) < CONTEXT - 2


def test_every_request_has_the_same_answer_over_http(asked: tuple[str, Path, Any]) -> None:
    name, folder, client = asked
    pairs = instances("loglikelihood", [pair for pair in PAIRS if alike(client, *pair)])
    assert len(pairs) >= 7
    found, wanted = client.loglikelihood(pairs, disable_tqdm=True), mine(folder, 1).loglikelihood(pairs)
    largest(name, "loglikelihood over HTTP", [each for each, _ in found], [each for each, _ in wanted])
    assert [greedy for _, greedy in found] == [greedy for _, greedy in wanted]
    texts = instances("loglikelihood_rolling", [(text,) for text in TEXTS if alike(client, text)])
    assert len(texts) >= 2
    largest(name, "rolling over HTTP", client.loglikelihood_rolling(texts, disable_tqdm=True),
            mine(folder, 1).loglikelihood_rolling(texts))


def test_texts_are_continued_alike_over_http(asked: tuple[str, Path, Any]) -> None:
    _, folder, client = asked
    written = [("Question: is this", SETTINGS), ("The quick", {"until": ["e"], "max_gen_toks": 8})]
    for each in written:
        one = instances("generate_until", [each])
        assert client.generate_until(one, disable_tqdm=True) == mine(folder, 1).generate_until(one)
