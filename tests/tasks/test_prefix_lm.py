"""The task of prefix language models: its loss by hand, what it measures and refuses, and decoding from a prefix."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tasks.task_runs import ENCODER, ENCODER_DECODER, LINES, built, lines_file, records_file, run_of, settings
from training.test_resume import run_killed_at
from training.tiny_runs import ATTENTION, same_weights
from weft.checkpoints import Loaded
from weft.core.errors import ConfigError, DataError, InputError
from weft.core.model import LanguageModel
from weft.core.span import Span
from weft.data import Corpus, Document, TokenStream, encode_corpus
from weft.data.masking import with_drawn_prefixes
from weft.decoding import Row, beam_search, generate
from weft.evaluation import score
from weft.tasks.prefix_lm import PrefixLM, PrefixLMConfig
from weft.tokenizers import ByteTokenizer
from weft.training import parse_run, train

MODEL: dict[str, Any] = {
    "kind": "decoder", "d_model": 8, "context": 24, "position": "learned", "blocks": [{"kind": "pre", "layers": [
        {"kind": "attention", "n_heads": 2, "mask": "causal | prefix"}, {"kind": "mlp", "d_ff": 16}]}] * 2}
"""Two layers: with one, the last token of a prefix sees what it would see without one."""
HYBRID = {**MODEL, "position": "none", "blocks": [{"kind": "pre", "layers": ["lstm"]}, *MODEL["blocks"]]}


def stream_of(*texts: str) -> TokenStream:
    corpus = Corpus("lines", tuple(Document(str(i), text) for i, text in enumerate(texts)))
    return encode_corpus(corpus, ByteTokenizer())


def task(**values: Any) -> PrefixLM:
    return PrefixLM(PrefixLMConfig(), settings(**{"context": 24, **values}))


def model_of(config: dict[str, Any] = MODEL) -> LanguageModel:
    found = built(config, vocab_size=257)
    assert isinstance(found, LanguageModel)
    return found


def nats_of(model: LanguageModel, ids: np.ndarray, prefix: int, target: np.ndarray, scored: np.ndarray) -> torch.Tensor:
    """The negative log-likelihood of one document's targets behind its prefix, computed anew for every token."""
    total = torch.zeros((), dtype=torch.float64)
    for place in range(len(ids)):
        if scored[place]:
            read = torch.from_numpy(ids[None, :place + 1].copy())
            z = model(read, None, Span(prefix=torch.arange(place + 1)[None] < prefix)).y[0, -1]
            total = total + torch.logsumexp(z, 0) - z[int(target[place])]
    return total


def by_hand(model: LanguageModel, batch: Any) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(batch.prefix)):
        count = batch.prefix.shape[1] if batch.text.count is None else int(batch.text.count[row])
        starts = [place for place in range(count) if place == 0 or batch.text.begins[row, place]]
        for first, last in zip(starts, [*starts[1:], count], strict=True):
            here = (row, slice(first, last))
            total = total + nats_of(model, batch.text.inputs[here], int(batch.prefix[here].sum()),
                                    batch.text.targets[here], batch.text.scored[here])
    return total


@pytest.mark.parametrize("packing", ["stream", "documents"])
@pytest.mark.parametrize("config", [MODEL, HYBRID])
def test_loss_and_gradient_are_those_of_each_document_alone(config: dict[str, Any], packing: Any) -> None:
    made, model = task(packing=packing, rows=2), model_of(config)
    batches = made.batches(stream_of(*LINES))
    rows = batches.batch(1)
    batch = with_drawn_prefixes(batches.text.batch(1), 0)
    found = made.loss(model, rows.columns, None)
    found.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    total = by_hand(model, batch)
    torch.testing.assert_close(found.nats, total.detach(), rtol=1e-10, atol=1e-10)
    total.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-8, atol=1e-10)
    assert rows.count.predictions == batch.text.scored.sum() > 0


def test_what_is_measured_are_whole_documents_behind_fixed_prefixes() -> None:
    text, model = stream_of(*LINES[:9]), model_of()
    found = [task(**values).measure(model, text) for values in ({}, {"rows": 3, "seed": 9, "packing": "documents"})]
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-10) and found[0].tokens == found[1].tokens
    assert found[0].bits_per_byte == pytest.approx(found[0].loss * found[0].tokens / math.log(2) / found[0].bytes)
    assert found[0].measures["perplexity"] == pytest.approx(math.exp(found[0].loss))
    assert "up to a random place, the same in every run; whole documents in rows of 24" in found[0].protocol
    assert "1 of" in task().measure(model, text, 1).protocol
    prompts = Corpus("c", tuple(Document(str(i), "ask: answer", (0, 5)) for i in range(3)))
    asked = PrefixLM(PrefixLMConfig(prefix="prompt"), settings(context=24))
    alone = asked.measure(model, encode_corpus(prompts, ByteTokenizer()))
    ids = np.array([256, *b"ask: answer", 256])
    with torch.no_grad():
        nats = nats_of(model.eval(), ids[:-1], 6, ids[1:], np.arange(12) >= 5)
    assert alone.tokens == 3 * 7 and alone.loss == pytest.approx(float(nats) / 7, rel=1e-9)


@pytest.mark.parametrize("config", [MODEL, HYBRID])
def test_decoding_from_a_prefix_is_the_whole_row_recomputed_at_every_token(config: dict[str, Any]) -> None:
    """Rows of different lengths and prefixes together; then each alone in a beam; and their scores."""
    model = model_of(config).eval()
    rows = [Row((256, 7, 9, 11), prefix=4), Row((256, 5), prefix=0), Row((256, 30, 31, 32, 33, 34), prefix=3)]
    found = generate(model, rows, max_new_tokens=6, log_probs=True).rows
    scored = score(model, [Row((*row.tokens, *new.tokens), prefix=row.prefix)
                           for row, new in zip(rows, found, strict=True)])
    with torch.no_grad():
        for row, new, given in zip(rows, found, scored.rows, strict=True):
            ids = [*row.tokens, *new.tokens]
            for place in range(1, len(ids)):
                flags = torch.arange(place)[None] < row.prefix
                z = model(torch.tensor([ids[:place]]), None, Span(prefix=flags)).y[0, -1].log_softmax(-1)
                if place < row.prefix:
                    assert given.log_probs[place] is None, "it was seen before"
                    continue
                assert given.log_probs[place] == pytest.approx(float(z[ids[place]]), abs=1e-10)
                if place >= len(row.tokens):
                    assert int(z.argmax()) == ids[place] and new.log_probs is not None
                    assert new.log_probs[place - len(row.tokens)] == pytest.approx(float(z.max()), abs=1e-6)
    assert beam_search(model, rows[:1], max_new_tokens=1, beams=1).rows[0][0].tokens == found[0].tokens[:1]
    plain = generate(model, [Row(row.tokens) for row in rows], max_new_tokens=6, log_probs=True).rows
    assert plain[0].log_probs != found[0].log_probs and plain[1].tokens == found[1].tokens


def test_a_run_trains_resumes_and_its_texts_are_continued_as_prefixes(tmp_path: Path) -> None:
    run = run_of(tmp_path, "prefix_lm", {**MODEL, "context": 16}, path=lines_file(tmp_path))
    whole = train(run, tmp_path / "whole")
    run_killed_at(run, tmp_path / "killed", 5)
    resumed = train(run, tmp_path / "killed", resume=True)
    assert same_weights(resumed.model, whole.model) and resumed.validation == whole.validation
    (found,) = weft.generate(tmp_path / "whole", "line", max_new_tokens=3, log_probs=True).rows
    wanted = generate(whole.model, [Row((256, *b"line"), prefix=5), Row((256, *b"line"))], max_new_tokens=3,
                           log_probs=True).rows
    assert found.log_probs == pytest.approx(wanted[0].log_probs)
    assert found.log_probs != pytest.approx(wanted[1].log_probs, rel=1e-9)


@pytest.mark.parametrize(("model", "message"), [
    ({**ATTENTION, "vocab_size": 9}, "model: no mask of this model has a prefix, so nothing would be read in both "
                                     "directions. Give its attention mask: causal | prefix, or give task: next_token."),
    ({**ENCODER, "vocab_size": 9}, "model: a model of kind 'encoder' predicts no next token. Give a decoder whose"),
    ({**ENCODER_DECODER, "vocab_size": 9, "encoder": {**ENCODER, "vocab_size": 9}},
     "task: 'prefix_lm', and a model of kind 'encoder_decoder' decodes from a source"),
])
def test_models_that_do_not_fit_are_refused_before_anything_is_read(tmp_path: Path, model: dict[str, Any],
                                                                    message: str) -> None:
    run = parse_run({"task": "prefix_lm", "model": model, "data": {"path": str(tmp_path / "missing.txt")}})
    with pytest.raises(ConfigError, match=re.escape(message)):
        train(run, tmp_path / "run")


def test_prompts_that_are_missing_and_prefixes_that_cannot_be_are_refused(tmp_path: Path) -> None:
    path = records_file(tmp_path, [{"text": "a b c d"}] * 9)
    run = parse_run({"task": {"kind": "prefix_lm", "prefix": "prompt"}, "model": {**MODEL, "vocab_size": 257},
                     "data": {"path": str(path)}})
    with pytest.raises(DataError, match=r"no record has a prompt, which task\.prefix: prompt makes the prefix\. Name "
                                        r"its field as data\.prompt_field, or give task\.prefix: random"):
        train(run, tmp_path / "run")
    model = model_of()
    with pytest.raises(InputError, match=r"rows\[0\]\.prefix: a prefix of 3 in a row of 2 tokens\. Give the number"):
        generate(model, [{"tokens": [1, 2], "prefix": 3}], max_new_tokens=1)
    with pytest.raises(InputError, match=r"rows\[0\]\.prefix: a prefix, and no mask of this model has one\. Leave it"):
        generate(built(ATTENTION, vocab_size=9), [{"tokens": [1, 2], "prefix": 1}], max_new_tokens=1)
    with pytest.raises(InputError, match=r"the row has both 'source' and 'prefix'\. Leave one of them out"):
        generate(model, [{"source": [1], "prefix": 1}], max_new_tokens=1)
    encoder = built(ENCODER, vocab_size=9)
    loaded = Loaded(encoder, None, encoder.config, None, {}, tmp_path)
    with pytest.raises(InputError, match=r"the row has a prefix, and this model reads all tokens in both directions"):
        weft.score(loaded, [{"tokens": [1, 2], "prefix": 1}], logits=True)
