"""The task of hidden spans: its loss by hand for both kinds of model, what it measures, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.task_runs import ENCODER, ENCODER_DECODER, END, LINES, built, lines_file, run_of, settings
from training.test_resume import run_killed_at
from training.tiny_runs import LSTM, same_weights
from weft.core.errors import ConfigError, DataError
from weft.core.model import EncoderInputs, LanguageModel
from weft.core.span import Span
from weft.data import Corpus, Document, encode_corpus
from weft.data.span_corruption import SpanCounts
from weft.tasks.span_corruption import CorruptibleText, SpanCorruptionConfig, SpanCorruptionTask, named_sentinels
from weft.tokenizers import ByteTokenizer
from weft.training import parse_run, train
from weft.training.material import prepare

VOCAB = 257 + 100
PREFIXED = {"kind": "decoder", "d_model": 8, "context": 32, "position": "learned", "blocks": [
    {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "mask": "causal | prefix"}, "mlp"]}] * 2}
"""Two layers: with one, what the source attends to changes nothing behind it."""
MODELS: dict[bool, dict[str, Any]] = {
    False: {**ENCODER_DECODER, "vocab_size": VOCAB, "encoder": {**ENCODER, "vocab_size": VOCAB}},
    True: {**PREFIXED, "vocab_size": VOCAB}}


def text_of(*documents: str, task: SpanCorruptionTask) -> CorruptibleText:
    corpus = Corpus("lines", tuple(Document(str(i), text) for i, text in enumerate(documents)))
    return task._readied(encode_corpus(corpus, ByteTokenizer()), ByteTokenizer())


def task(joined: bool, **values: Any) -> SpanCorruptionTask:
    config = SpanCorruptionConfig(rate=0.3, mean_span=2.0, joined=joined)
    return SpanCorruptionTask(config, settings(**{"context": 32 if joined else 16, **values}))


def model_of(joined: bool) -> LanguageModel:
    found = built(MODELS[joined])
    assert isinstance(found, LanguageModel)
    return found


def log_probs(model: LanguageModel, joined: bool, source: np.ndarray, target: np.ndarray) -> list[torch.Tensor]:
    """The log-probabilities after each beginning of one target, computed anew for every token."""
    memory = None if joined else model.encode(EncoderInputs(tokens=torch.from_numpy(source[None])))
    found = []
    for place in range(1, len(target)):
        read = np.concatenate([source if joined else source[:0], target[:place]])
        prefix = torch.arange(len(read))[None] < len(source) if joined else None
        z = model(torch.from_numpy(read[None]), None, Span(memory=memory, prefix=prefix)).y[0, -1]
        found.append(z - torch.logsumexp(z, 0))
    return found


@pytest.mark.parametrize("joined", [False, True])
def test_a_row_fills_the_context(joined: bool) -> None:
    made = task(joined)
    batches = made.batches(text_of(*LINES, task=made))
    lengths, batch = batches.lengths, batches.batch(0)
    source, target = batch.columns.source.shape[1], batch.columns.target.shape[1] - 1
    assert lengths == ((source + target, None) if joined else (target, source))
    longer = SpanCounts.of(batches.text.length + 1, 0.3, 2.0)
    more = longer.tokens + 2 * longer.spans + 4 if joined else longer.rest + longer.spans + 1
    assert (source + target <= 32 if joined else source <= 16) and more > (32 if joined else 16)
    assert batch.count.predictions == 4 * target == batches.tokens_per_batch
    assert "rows of" in str(batches.notice) and f"sources of {source} tokens" in str(batches.notice)
    parts = [batches.batch(5, rank=rank, world=2) for rank in range(2)]
    assert torch.equal(torch.cat([part.columns.target for part in parts]), batches.batch(5).columns.target)


@pytest.mark.parametrize("joined", [False, True])
def test_loss_and_gradient_are_those_of_each_target_alone(joined: bool) -> None:
    made, model = task(joined), model_of(joined)
    batch = made.batches(text_of(*LINES, task=made)).batch(2).columns
    found = made.loss(model, batch, None)
    found.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    rows = zip(batch.source.numpy(), batch.target.numpy(), strict=True)
    total = -torch.stack([each[int(token)] for source, target in rows
                          for each, token in zip(log_probs(model, joined, source, target), target[1:], strict=True)
                          ]).sum()
    torch.testing.assert_close(found.nats, total.detach(), rtol=1e-10, atol=1e-10)
    total.backward()
    assert len(gradients) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-8, atol=1e-10)


def test_what_is_measured_is_a_fixed_choice_of_spans_read_once() -> None:
    made, model = task(joined=True), model_of(joined=True)
    text = text_of(*LINES[:12], task=made)
    found = [task(joined=True, **values).measure(model, text) for values in ({}, {"rows": 3, "seed": 9})]
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-10) and found[0].measures == pytest.approx(
        found[1].measures)
    corruption = made._corruption(text, 20_181_011)
    length, nats, right, tokens = corruption.counts.tokens, 0.0, 0, 0
    with torch.no_grad():
        for start in range(0, len(text) - length + 1, length):
            ids = text.stream.tokens[start:start + length].astype(np.int64)[None]
            row = corruption.corrupt(ids, np.array([start]), np.array([0]))
            for each, token in zip(log_probs(model, True, row.source[0], row.target[0]), row.target[0, 1:],
                                   strict=True):
                nats, right, tokens = nats - float(each[int(token)]), right + int(each.argmax() == token), tokens + 1
    assert (found[0].tokens, found[0].measures["accuracy"]) == (tokens, right / tokens)
    assert found[0].loss == pytest.approx(nats / tokens, rel=1e-9)
    assert found[0].measures["perplexity"] == pytest.approx(np.exp(nats / tokens))
    assert "30% of the tokens hidden in spans of 2 on average, the same in every run" in found[0].protocol
    assert "1 of" in made.measure(model, text, 1).protocol
    with pytest.raises(DataError, match=r"one row needs \d+\. Give more text to hold out, or lower training\.context"):
        made.measure(model, text_of("ab", task=made))


def test_sentinels_are_the_vocabularys_own_or_further_ids(tmp_path: Path) -> None:
    run = run_of(tmp_path, "span_corruption", ENCODER_DECODER, path=lines_file(tmp_path))
    assert run.model.vocab_size == VOCAB == run.dump()["model"]["encoder"]["vocab_size"]
    made = task(joined=False)
    assert text_of(*LINES, task=made).sentinels[:3].tolist() == [356, 355, 354] and END == 256
    assert named_sentinels(ByteTokenizer()) == []


def test_sources_end_where_the_encoder_s_positions_do(tmp_path: Path) -> None:
    """Its table has 16, and the context is 32."""
    lengths = {}
    for context in (16, 32):
        run = run_of(tmp_path, "span_corruption", {**ENCODER_DECODER, "context": context}, path=lines_file(tmp_path))
        made = run.made_task()
        lengths[context] = made.batches(prepare(run).train).lengths
    assert lengths[32] == lengths[16] and lengths[16].source == 16


def test_a_killed_run_resumes_to_the_same_weights(tmp_path: Path) -> None:
    run = run_of(tmp_path, "span_corruption", ENCODER_DECODER, path=lines_file(tmp_path))
    whole = train(run, tmp_path / "whole")
    run_killed_at(run, tmp_path / "killed", 5)
    resumed = train(run, tmp_path / "killed", resume=True)
    assert same_weights(resumed.model, whole.model) and resumed.validation == whole.validation
    assert set(whole.validation.measures) == {"perplexity", "accuracy"}


@pytest.mark.parametrize(("model", "fields", "message"), [
    ({**LSTM, "vocab_size": 9}, {}, "task.joined: false, and a model of kind 'decoder' reads no source. Give an "
                                    "encoder-decoder, or set task.joined: true."),
    (MODELS[False], {"joined": True}, "task.joined: true, and a model of kind 'encoder_decoder' reads a source by "
                                      "itself. Leave task.joined out."),
    ({**ENCODER, "vocab_size": 9}, {}, "model: a model of kind 'encoder' predicts no next token. Give an encoder-"),
    ({**MODELS[False], "encoder": {**ENCODER, "vocab_size": 9}}, {}, "model.encoder.vocab_size: 9, while targets have"),
    ({**MODELS[False], "context": 2}, {}, "training.context: 2 tokens, in which no hidden span fits. Raise it."),
    ({**MODELS[False], "encoder": {**ENCODER, "vocab_size": VOCAB, "context": 2}}, {},
     "model.encoder: positions for 2 tokens, in which no hidden span fits. Give it more."),
])
def test_models_that_do_not_fit_are_refused_before_anything_is_read(
        tmp_path: Path, model: dict[str, Any], fields: dict[str, Any], message: str) -> None:
    run = parse_run({"task": {"kind": "span_corruption", **fields}, "model": model,
                     "data": {"path": str(tmp_path / "missing.txt")}})
    with pytest.raises(ConfigError, match=re.escape(message)):
        train(run, tmp_path / "run")


def test_too_few_sentinels_and_tokens_that_do_not_count_are_refused() -> None:
    few = SpanCorruptionTask(SpanCorruptionConfig(rate=0.3, mean_span=1, sentinels=3), settings())
    with pytest.raises(DataError, match=r"task\.sentinels: a row of 15 tokens has 4 hidden spans, which need 5 "
                                        r"sentinels, and there are 3\. Lower training\.context, or raise"):
        text_of(*LINES, task=few)
    corpus = Corpus("c", (Document("1", "ask an answer", (0, 4)),))
    with pytest.raises(DataError, match=r"some tokens are read and not scored, while the task 'span_corruption' hides "
                                        r"any\. Leave out data\.prompt_field"):
        few._readied(encode_corpus(corpus, ByteTokenizer()), ByteTokenizer())
