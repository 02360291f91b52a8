"""The task of hidden tokens: its batches, its loss by hand, what it measures, and what it refuses."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.task_runs import ENCODER, ENCODER_DECODER, LINES, built, lines_file, run_of, settings
from training.test_resume import run_killed_at
from training.tiny_runs import LSTM, same_weights
from weft.core.errors import ConfigError, DataError
from weft.core.model import EncoderInputs
from weft.core.span import Span
from weft.data import Corpus, Document, encode_corpus
from weft.tasks.masked import MaskableText, MaskedConfig, MaskedTokens, hidden_in, mask_of
from weft.tokenizers import ByteTokenizer, WordPieceTokenizer
from weft.tokenizers.config import BPETokenizerConfig, ByteTokenizerConfig, WordPieceTokenizerConfig
from weft.training import parse_run, train

MODEL = {**ENCODER, "head": "masked_token"}
MASK = 257


def text_of(*documents: str) -> MaskableText:
    corpus = Corpus("lines", tuple(Document(str(i), text) for i, text in enumerate(documents)))
    return MaskableText(encode_corpus(corpus, ByteTokenizer()), ByteTokenizer())


def task(**values: Any) -> MaskedTokens:
    return MaskedTokens(MaskedConfig(rate=0.3), settings(**values))


def arrays(batch: Any) -> list[np.ndarray]:
    """The inputs of a batch, the original ids, and which of them are hidden."""
    return [column.numpy() for column in batch.columns[:3]]


def test_batches_hide_tokens_of_the_text_and_nothing_else() -> None:
    text = text_of(*LINES)
    batches = task().batches(text)
    seen: dict[tuple[int, int], bool] = {}
    for step in range(3 * int(batches.text.steps_per_epoch) + 2):
        plain, (inputs, originals, chosen) = batches.text.batch(step), arrays(batches.batch(step))
        places, epoch = plain.places, plain.epoch
        assert places is not None and epoch is not None
        np.testing.assert_array_equal(originals, text.stream.tokens[places])
        np.testing.assert_array_equal(inputs[~chosen], originals[~chosen])
        assert not chosen[originals == 256].any(), "the end of a document is never hidden"
        seen.update({(int(e), int(p)): bool(c) for e, row, hidden in zip(epoch, places, chosen, strict=True)
                     for p, c in zip(row, hidden, strict=True)})
    first, second = ({p: c for (e, p), c in seen.items() if e == epoch} for epoch in (0, 1))
    both = first.keys() & second.keys()
    assert len(both) > 500 and any(first[p] != second[p] for p in both), "each epoch hides others"


@pytest.mark.parametrize("packing", ["stream", "documents"])
def test_whole_words_are_hidden_as_their_first_token_is(packing: Any) -> None:
    """Words by a scan of the pieces' names, as BERT's released code groups them. A word is chosen where plain masking
    with the same seed chooses its first token, even if a row begins inside the word."""
    tokenizer = WordPieceTokenizer.train(LINES, 46)
    corpus = Corpus("lines", tuple(Document(str(i), line) for i, line in enumerate(LINES)))
    text = MaskableText(encode_corpus(corpus, tokenizer), tokenizer)
    names = {place: piece for piece, place in tokenizer.pieces.items()}
    first_of, first = list[int](), 0
    for place, token in enumerate(text.stream.tokens.tolist()):
        first = first if names[token].startswith("##") else place
        first_of.append(first)
    special = {*tokenizer.special_tokens.values()}
    assert sum(first != place for place, first in enumerate(first_of)) > 400, "many words have several pieces"
    plain = MaskedConfig(rate=0.3)
    every = np.arange(len(text))
    alone = text.masking(plain, 0)
    made = MaskedTokens(plain.model_copy(update={"whole_words": True}), settings(packing=packing))
    batches, cut = made.batches(text), 0
    for step in range(10):
        read, (_, _, chosen) = batches.text.batch(step), arrays(batches.batch(step))
        places, epoch = read.places, read.epoch
        assert places is not None and epoch is not None
        counts = np.full(4, 16) if read.count is None else read.count
        for row, number, hidden, count in zip(places, epoch, chosen, counts, strict=True):
            wanted = alone.hide(text.stream.tokens[every].astype(np.int64)[None], every[None], np.array([number]),
                                np.ones((1, len(text)), dtype=bool)).chosen[0]
            for place, is_hidden in zip(row[:count], hidden[:count], strict=True):
                if text.stream.tokens[place] not in special:
                    assert is_hidden == wanted[first_of[place]]
            cut += first_of[row[0]] < row[0]
    assert cut or packing == "documents", "rows begin inside words"


def test_whole_words_need_a_tokenizer_that_marks_them(tmp_path: Path) -> None:
    message = (r"task\.whole_words: a tokenizer of kind 'bytes' that does not mark which tokens continue a word\. Give "
               r"tokenizer: wordpiece")
    run = run_of(tmp_path, {"kind": "masked", "whole_words": True}, {**MODEL, "vocab_size": 258},
                 path=tmp_path / "absent")
    with pytest.raises(ConfigError, match=message):
        train(run, tmp_path / "run")


@pytest.mark.parametrize("packing", ["stream", "documents"])
def test_several_processes_see_the_batch_of_one(packing: Any) -> None:
    batches = task(packing=packing).batches(text_of(*LINES))
    for step in (0, 7):
        whole, parts = batches.batch(step), [batches.batch(step, rank=rank, world=2) for rank in range(2)]
        for values, *each in zip(arrays(whole), *map(arrays, parts), strict=True):
            np.testing.assert_array_equal(np.concatenate(each), values)


@pytest.mark.parametrize("packing", ["stream", "documents"])
def test_loss_and_gradient_are_those_of_each_hidden_token_by_hand(packing: Any) -> None:
    """Token by token, each document of a row alone: the fences hold, and padding is nothing."""
    made, model = task(packing=packing), built(MODEL, vocab_size=258)
    batches = made.batches(text_of(*LINES))
    batch, text = batches.batch(1), batches.text.batch(1)
    inputs, _, chosen = arrays(batch)
    found = made.loss(model, batch.columns, None)
    found.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for row in range(4):
        count = 16 if text.count is None else int(text.count[row])
        starts = [0, *(place for place in range(1, count) if text.begins[row, place]), count]
        for first, last in pairwise(starts):
            h = model.vectors(EncoderInputs(tokens=torch.from_numpy(inputs[row:row + 1, first:last]))).y
            logits = model.head.logits(h)[0]
            for place in range(first, last):
                if chosen[row, place]:
                    z = logits[place - first]
                    total = total + torch.logsumexp(z, 0) - z[int(text.inputs[row, place])]
    assert chosen.any() and batch.count.predictions == chosen.sum()
    torch.testing.assert_close(found.nats, total.detach(), rtol=1e-10, atol=1e-10)
    total.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-8, atol=1e-10)


def test_what_is_measured_is_a_fixed_choice_read_once() -> None:
    text, model = text_of(*LINES), built(MODEL, vocab_size=258)
    found = [task(**values).measure(model, text) for values in ({}, {"rows": 3}, {"seed": 9})]
    assert found[0].tokens == found[1].tokens == found[2].tokens
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-10) == pytest.approx(found[2].loss, rel=1e-10)
    assert found[0].measures["accuracy"] == found[1].measures["accuracy"] and found[0].bits_per_byte is None
    assert 0.25 < found[0].tokens / len(text) < 0.35 and found[0].unit == "hidden token"
    assert "30% of the tokens hidden, the same in every run; windows of 16 tokens" in found[0].protocol
    assert "2 of" in task().measure(model, text, 2).protocol
    nats, hits, count = 0.0, 0, 0
    masking, ids = text.masking(MaskedConfig(rate=0.3), 20_181_011), text.stream.tokens.astype(np.int64)
    model.eval()
    for first in range(0, len(ids), 16):
        places = np.arange(first, min(first + 16, len(ids)))
        hidden = masking.hide(ids[places][None], places[None], np.array([0]), np.ones((1, len(places)), dtype=bool))
        begins = text.stream.begins[places].copy()
        begins[0] = False
        with torch.no_grad():
            h = model.vectors(EncoderInputs(tokens=torch.from_numpy(hidden.inputs)),
                              Span(begins=torch.from_numpy(begins[None]))).y
            log_probs = model.head.logits(h).log_softmax(-1)[0]
        for at in np.flatnonzero(hidden.chosen[0]):
            nats -= float(log_probs[at, ids[places[at]]])
            hits += int(log_probs[at].argmax()) == ids[places[at]]
            count += 1
    assert (found[0].tokens, found[0].measures["accuracy"]) == (count, hits / count)
    assert found[0].loss == pytest.approx(nats / count, rel=1e-9)
    with pytest.raises(DataError, match=r"none of the 2 held-out tokens is hidden.*Give more text to hold out"):
        task().measure(model, text_of(""))


def test_a_token_that_does_not_count_is_never_hidden() -> None:
    corpus = Corpus("c", tuple(Document(str(i), "ask " * 5 + "answer", (0, 20)) for i in range(20)))
    text = MaskableText(encode_corpus(corpus, ByteTokenizer()), ByteTokenizer())
    batches = task().batches(text)
    read, (_, _, chosen) = batches.text.batch(0), arrays(batches.batch(0))
    assert read.places is not None and text.stream.flags is not None
    assert chosen.any() and (text.stream.flags[read.places[chosen]] == 1).all()
    assert hidden_in(read, text.stream, text.masking(MaskedConfig(), 1)).chosen.sum() < 30


def test_the_mask_is_the_vocabularys_own_or_one_id_more(tmp_path: Path) -> None:
    pieces = WordPieceTokenizer.train(LINES, 50)
    assert pieces.decode([mask_of(pieces)], specials=True) == "[MASK]" and mask_of(ByteTokenizer()) == MASK
    config = MaskedConfig()
    extra = [config.extra_ids(made) for made in (WordPieceTokenizerConfig(), ByteTokenizerConfig(),
                                                 BPETokenizerConfig())]
    assert extra == [0, 1, 1]
    run = run_of(tmp_path, "masked", MODEL, path=lines_file(tmp_path))
    assert run.model.vocab_size == 258
    small = parse_run({**run.dump(), "model": {**run.model.dump(), "vocab_size": 257}})
    with pytest.raises(ConfigError, match=r"model\.vocab_size: 257, while the tokenizer has 257 ids and the task "
                                          r"'masked' needs 1 more\. Leave it out"):
        train(small, tmp_path / "run")


def test_a_killed_run_resumes_to_the_same_weights(tmp_path: Path) -> None:
    run = run_of(tmp_path, "masked", MODEL, path=lines_file(tmp_path))
    whole = train(run, tmp_path / "whole")
    run_killed_at(run, tmp_path / "killed", 5)
    resumed = train(run, tmp_path / "killed", resume=True)
    assert same_weights(resumed.model, whole.model) and resumed.validation == whole.validation


@pytest.mark.parametrize(("name", "model", "message"), [
    ("masked", {**LSTM, "vocab_size": 9}, "task: 'masked', and a model of kind 'decoder' predicts each token from "
                                          "those before it alone. Give an encoder, or task: next_token."),
    ("masked", {**ENCODER, "vocab_size": 9}, "model.head: the model has no head. Give head: masked_token."),
    ("masked", {**ENCODER, "vocab_size": 9, "head": {"kind": "pooled", "n_classes": 2}},
     "model.head: the model has a head that predicts no tokens. Give head: masked_token."),
    ("next_token", {**ENCODER, "vocab_size": 9}, "model: a model of kind 'encoder' is not a language model."),
    ("masked", {**ENCODER_DECODER, "vocab_size": 9, "encoder": {**ENCODER, "vocab_size": 9}}, "task: 'masked', and a"),
])
def test_models_that_do_not_fit_are_refused_before_anything_is_read(tmp_path: Path, name: str, model: dict[str, Any],
                                                                    message: str) -> None:
    run = parse_run({"task": name, "model": model, "data": {"path": str(tmp_path / "missing.txt")}})
    with pytest.raises(ConfigError, match=re.escape(message)):
        train(run, tmp_path / "run")


def test_shares_that_are_more_than_all_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"task.*random: 0\.3 beside 0\.8 that are masked is more than all\. Lower"):
        parse_run({"task": {"kind": "masked", "random": 0.3}, "model": {**MODEL, "vocab_size": 9}})
