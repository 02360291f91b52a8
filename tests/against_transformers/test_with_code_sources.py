"""Encoder-decoders that no native class expresses: from a source, as ids and as text, transformers writes what Weft
writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from against_transformers.tiny import own_modules
from interop.huggingface.with_code_models import LARGER, SOURCED, build, converted, padded, rows, sourced
from weft import api
from weft.core.model import EncoderInputs
from weft.core.span import Span
from weft.interop.huggingface.columns import NO_TARGET
from weft.tokenizers import BPETokenizer

TOLERANCE = 2e-5
"""On float32 logits of the size 5; batches have other shapes than rows alone."""
START = 3
GREEDY = {"do_sample": False, "max_new_tokens": 9, "decoder_start_token_id": START, "pad_token_id": 0}
TEXTS = ["some", "some more text to read", "learn from text"]


@pytest.fixture(scope="module", autouse=True)
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where transformers copies a folder's code to before it runs it, and looks for modules from then on."""
    with own_modules(tmp_path_factory.mktemp("modules")):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a model, made once and only read."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            difference = converted(sourced(name), made[name]).foreign
            assert difference is not None and difference <= TOLERANCE
        return made[name] / "b"

    return of


def opened(folder: Path) -> Any:
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True).eval()


def alone(name: str, source: list[int], target: list[int]) -> Tensor:
    """Weft's logits [T,V] of one pair."""
    model = sourced(name)
    with torch.no_grad():
        memory = model.encode(EncoderInputs(torch.tensor([source])))
        logits: Tensor = model(torch.tensor([target]), None, Span(memory=memory)).y[0]
    return logits


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", list(SOURCED))
def test_logits_and_loss_of_padded_pairs_are_those_of_each_alone(name: str, side: str,
                                                                 folder: Callable[[str], Path]) -> None:
    theirs, (tokens, mask) = opened(folder(name)), padded(rows(), side)
    theirs.generation_config.decoder_start_token_id = START
    targets = rows((4, 2, 9, 5))
    labels = torch.tensor([row + [NO_TARGET] * (9 - len(row)) for row in targets])
    pairs = {"attention_mask": mask, "labels": labels, "decoder_attention_mask": labels != NO_TARGET}
    with torch.no_grad():
        found = theirs(tokens, **pairs)
        encoded = theirs(tokens, attention_mask=mask)
        again = theirs(encoder_outputs=encoded, **pairs, logits_to_keep=2)
    close(again.logits, found.logits[:, -2:])
    close(again.loss, found.loss)
    wanted = [alone(name, source, [START, *target[:-1]]) for source, target in zip(rows(), targets, strict=True)]
    for index, each in enumerate(wanted):
        close(found.logits[index, :len(each)], each)
    ids = torch.tensor([token for row in targets for token in row])
    close(found.loss, torch.nn.functional.cross_entropy(torch.cat(wanted), ids))


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("name", list(SOURCED))
def test_greedy_targets_and_beams_are_weft_s(name: str, cached: bool, folder: Callable[[str], Path]) -> None:
    theirs, (tokens, mask) = opened(folder(name)), padded(rows(), "left")
    pairs = [{"source": row, "target": [START]} for row in rows()]
    with torch.no_grad():
        greedy = theirs.generate(tokens, attention_mask=mask, use_cache=cached, **GREEDY)
        beams = theirs.generate(tokens, attention_mask=mask, use_cache=cached, num_beams=3, **GREEDY)
    assert greedy[:, 1:].tolist() == [list(row.tokens) for row in api.generate(folder(name), pairs,
                                                                               max_new_tokens=9).rows]
    found = api.beam_search(folder(name), pairs, max_new_tokens=9, beams=3)
    assert beams[:, 1:].tolist() == [list(row[0].tokens) for row in found.rows]


def test_the_beginning_of_a_target_may_be_given(folder: Callable[[str], Path]) -> None:
    theirs, (tokens, mask) = opened(folder("hybrid")), padded(rows(), "right")
    beginning, flags = padded([[START, *row[:4]] for row in rows()], "left")
    with torch.no_grad():
        found = theirs.generate(tokens, attention_mask=mask, decoder_input_ids=beginning.where(flags.bool(), START),
                                decoder_attention_mask=flags, **GREEDY)
    pairs = [{"source": row, "target": [START, *row[:4]]} for row in rows()]
    wanted = [list(row.tokens) for row in api.generate(folder("hybrid"), pairs, max_new_tokens=9).rows]
    assert found[:, beginning.shape[1]:].tolist() == wanted


def test_attention_maps_are_not_offered(folder: Callable[[str], Path]) -> None:
    theirs = opened(folder("hybrid"))
    with pytest.raises(ValueError, match="returns no attention maps and no hidden states"):
        theirs.generate(torch.tensor(rows()[:1]), output_attentions=True, return_dict_in_generate=True, **GREEDY)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", list(SOURCED))
def test_from_text_to_text(name: str, side: str, tmp_path: Path) -> None:
    """As the folder says it: the tokens around a source, that which opens the target, and that which ends it."""
    tokenizer = BPETokenizer.train(["some text to learn from"], 259)
    done = converted(build({**SOURCED[name], **LARGER}), tmp_path, tokenizer)
    assert done.foreign is not None and done.foreign <= TOLERANCE
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "b", padding_side=side)
    given = read(TEXTS, padding=True, return_tensors="pt")
    theirs = opened(tmp_path / "b")
    for beams in (1, 3):
        with torch.no_grad():
            found = theirs.generate(**given, num_beams=beams, do_sample=False, max_new_tokens=12)
        search = api.Search(beams=beams, length_penalty=1.0, length_formula="power", max_new_tokens=12)
        wanted = api.translate(tmp_path / "a", TEXTS, search).texts
        assert tuple(text.strip() for text in read.batch_decode(found, skip_special_tokens=True)) == wanted
    theirs.generation_config.update(num_beams=3, length_penalty=2.0, max_new_tokens=12, early_stopping="never")
    theirs.save_pretrained(tmp_path / "c")
    read.save_pretrained(tmp_path / "c")
    assert api.translate(tmp_path / "c", TEXTS, search).texts == wanted
    with torch.no_grad():
        found = theirs.generate(**given)
    with pytest.warns(UserWarning, match="sets num_beams 3, length_penalty 2.0, max_new_tokens 12"):
        followed = api.translate(tmp_path / "c", TEXTS).texts
    assert tuple(text.strip() for text in read.batch_decode(found, skip_special_tokens=True)) == followed
