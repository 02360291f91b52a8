"""Vocabularies of another size: new tokens, new rows, padding, tied weights, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from interop.huggingface import tiny_folders
from tasks.task_runs import ENCODER, ENCODER_DECODER
from training.test_resume import run_killed_at
from training.tiny_runs import same_weights, write_text
from weft.checkpoints import load_checkpoint, save_checkpoint
from weft.checkpoints.tensors import own_tensors
from weft.core.errors import ConfigError, TokenizerError
from weft.core.model import parse_model
from weft.interop.huggingface.loading import load_folder
from weft.tokenizers import BPETokenizer, ByteTokenizer, CharacterTokenizer, Tokenizer
from weft.tokenizers.base import extended
from weft.tokenizers.library import FileTokenizer
from weft.tokenizers.specials import Conventions
from weft.training import Event, Notice, RunConfig, parse_run, train
from weft.training.run_training import build_model
from weft.training.starting import begin_from, require_startable
from weft.training.vocabulary import vocabulary_dims

TEXT = "a line of text, and another line of it\n" * 30
TIED: dict[str, Any] = {"kind": "decoder", "d_model": 8, "context": 8, "readout": {"kind": "linear", "tied": True},
                        "blocks": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2}, "mlp"]}]}
UNTIED = {**TIED, "readout": {"kind": "linear", "tied": False, "bias": True}}
ADAPTIVE = {**TIED, "readout": {"kind": "adaptive", "cutoffs": [100], "div_val": 2, "tied": False}}
SEQUENCES = {**ENCODER_DECODER, "encoder": {**ENCODER, "vocab_size": 300}}
NEW = ["<|user|>", "<|assistant|>"]


def saved_as(folder: Path, model: dict[str, Any], tokenizer: Tokenizer | None = None, size: int = 300) -> Path:
    """A checkpoint of a byte vocabulary of 257 with rows for 300 ids, the last 43 of them padding."""
    torch.manual_seed(3)
    made = parse_model({**model, "vocab_size": size}).build()
    for tensor in own_tensors(made).values():
        if tensor.is_floating_point():
            torch.nn.init.normal_(tensor)
    return save_checkpoint(folder / "saved", made, tokenizer or ByteTokenizer())


def run_from(saved: Path, **fields: Any) -> RunConfig:
    path = saved.parent / "text.txt"
    path.write_text(TEXT)
    return parse_run({"start": str(saved), "data": {"path": str(path)}, "report": {"eval_every": 2, "eval_batches": 1},
                      "training": {"steps": 4, "batch_size": 2, "compute": {"matmul": "default"}}, **fields})


@pytest.mark.parametrize(("model", "rows", "multiple", "size"), [
    (TIED, "mean", 64, 320), (UNTIED, "normal", 64, 320), (UNTIED, "mean", 1, 259), (ADAPTIVE, "mean", 1, 259),
    (ADAPTIVE, "normal", 64, 320)])
def test_kept_rows_stay_and_new_ones_are_drawn_from_them(tmp_path: Path, model: dict[str, Any], rows: str,
                                                         multiple: int, size: int) -> None:
    """Row by row from the definition; tables of rare ids, which begin later, alike."""
    saved = saved_as(tmp_path, model)
    run = run_from(saved, vocabulary={"added_tokens": NEW, "new_rows": rows, "multiple": multiple})
    assert run.model.vocab_size == size and parse_run(run.dump()) == run
    made = build_model(run)
    require_startable(run, made)
    taken = begin_from(run, made)
    before, after, dims = own_tensors(load_checkpoint(saved).model), own_tensors(made), vocabulary_dims(run.model)
    assert dims and taken.grown == {name: after[name].shape[dim] - 257 + (size - after[name].shape[dim])
                                    for name, (dim, _) in dims.items()}
    for name, tensor in after.items():
        if name not in dims:
            assert torch.equal(tensor, before[name]), name
            continue
        old, new = (each[name].movedim(dims[name][0], 0) for each in (before, after))
        kept = 257 - (size - len(new))
        assert torch.equal(new[:kept], old[:kept]) and kept < len(new)
        mean = old[:kept].double().mean(0)
        if rows == "mean":
            torch.testing.assert_close(new[kept:].double(), mean.expand_as(new[kept:]), rtol=0, atol=1e-6)
        else:
            z = ((new[kept:].double() - mean) / old[:kept].double().std(0, correction=0)).detach()
            assert z.numel() < 20 or (abs(float(z.mean())) < 4 / np.sqrt(z.numel()) and 0.8 < float(z.std()) < 1.2)
            assert not torch.equal(new[kept], new[kept + 1])
    tied = made.get_parameter("embedding.tokens.weight")
    assert (sum(p is tied for p in made.parameters()) == 1) and ("readout.weight" in after) == (model is UNTIED)


def test_both_sides_of_an_encoder_decoder_grow(tmp_path: Path) -> None:
    run = run_from(saved_as(tmp_path, SEQUENCES), vocabulary={"added_tokens": NEW}, task="span_corruption")
    assert run.model.vocab_size == run.dump()["model"]["encoder"]["vocab_size"] == 359
    made = build_model(run)
    assert {*begin_from(run, made).grown.values()} == {102} and made.vocab_size == 359


def test_new_tokens_travel_through_training_resuming_and_saving(tmp_path: Path) -> None:
    tokenizer = BPETokenizer.train([TEXT], 270)
    saved, events = saved_as(tmp_path, TIED, tokenizer), list[Event]()
    run = run_from(saved, vocabulary={"added_tokens": NEW, "multiple": 8})
    whole = train(run, tmp_path / "whole", on_event=events.append)
    (notice,) = (each.text for each in events if isinstance(each, Notice) and each.text.startswith("starting from"))
    assert notice.endswith("nothing is fresh; 2 new rows in embedding.tokens.weight")
    run_killed_at(run, tmp_path / "halves", 3)
    assert same_weights(train(run, tmp_path / "halves", resume=True).model, whole.model)
    found = weft.load(tmp_path / "whole").tokenizer
    assert found is not None and found.vocab_size == 272 and found.encode("a line") == tokenizer.encode("a line")
    assert found.encode("<|user|>a", specials=True) == [270, *tokenizer.encode("a")]
    assert found.decode([270, 271], specials=True) == "".join(NEW) and found.decode([270]) == ""
    again = parse_run({"start": str(tmp_path / "whole"), "data": {"path": str(write_text(tmp_path))}})
    assert again.tokenizer.from_file().fingerprint() == found.fingerprint()  # type: ignore[union-attr]


def test_new_tokens_and_templates_are_in_a_converted_folder(tmp_path: Path) -> None:
    """A folder that transformers reads, and that gives the same ids when it is read back; then on from that folder."""
    tiny_folders.write(tmp_path / "llama")
    source = BPETokenizer.train([TEXT], 270).files()["tokenizer.json"]
    template = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}"
    base = FileTokenizer(source, bos="<|endoftext|>", eos="<|endoftext|>",
                         conventions=Conventions(chat_templates={"default": template}))
    saved = saved_as(tmp_path, load_folder(tmp_path / "llama").config.dump(), base)
    run = run_from(saved, vocabulary={"added_tokens": NEW})
    made = train(run, tmp_path / "run")
    weft.convert(tmp_path / "run", tmp_path / "folder", to="hf")
    declared = json.loads((tmp_path / "folder/tokenizer.json").read_text())["added_tokens"]
    assert [(each["id"], each["content"], each["special"]) for each in declared[-2:]] == [
        (270, NEW[0], True), (271, NEW[1], True)]
    back = weft.load(tmp_path / "folder")
    assert back.tokenizer is not None and back.model.vocab_size == 272
    for text in (TEXT, f"{NEW[0]} a line{NEW[1]}"):
        assert back.tokenizer.encode(text, specials=True) == made.tokenizer.encode(text, specials=True)
    assert back.tokenizer.conventions.chat_templates == {"default": template}
    again = train(run_from(tmp_path / "folder", model={"head": None}), tmp_path / "again")
    assert again.tokenizer.special_tokens == made.tokenizer.special_tokens and weft.load(
        tmp_path / "again").tokenizer.conventions.chat_templates == {"default": template}  # type: ignore[union-attr]


def test_bytes_with_further_tokens() -> None:
    plain, more = ByteTokenizer(), extended(ByteTokenizer(), NEW)
    assert more.vocab_size == 259 and more.fingerprint() != plain.fingerprint()
    assert more.encode("é<|user|>") == plain.encode("é<|user|>")
    ids = more.encode("é<|user|>x", specials=True)
    assert ids == [0xC3, 0xA9, 257, ord("x")] and more.decode(ids) == "éx" and more.byte_lengths(ids).tolist() == [
        1, 1, 0, 1]
    assert more.decode(ids, specials=True) == "é<|user|>x" and "".join(map(more.stream().push, ids)) == "éx"


@pytest.mark.parametrize(("fields", "message"), [
    ({"vocabulary": {"added_tokens": ["a", "a"]}}, r"added_tokens: 'a' is listed twice\. Give every token once"),
    ({"vocabulary": {"added_tokens": ["<|endoftext|>"]}},
     r"the token '<\|endoftext\|>' is in the vocabulary of bytes-257 already"),
    ({"vocabulary": {"added_tokens": [""]}},
     r"tokenizer\.added_tokens\.0: the token '' is empty\. Give every new token a spelling"),
    ({"vocabulary": {}, "model": {"vocab_size": 200}},
     r"model\.vocab_size: 200, while the tokenizer has 257 ids\. Leave"),
    ({"vocabulary": {"multiple": 8}, "model": {"d_model": 16}}, r"model\.d_model: 16, and the model of .* has 8"),
    ({"start": None, "vocabulary": {}, "model": {**TIED, "vocab_size": 9}},
     r"vocabulary: there is no start whose vocabulary it could resize\. Leave it out, or name a checkpoint as start"),
    ({"model": {"vocab_size": 310}}, r"model\.vocab_size: 310, and the model of .* has 300\. Leave it out, or"),
])
def test_vocabularies_that_cannot_be_are_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, TokenizerError), match=message):
        train(run_from(saved_as(tmp_path, TIED), **fields), tmp_path / "run")


def test_other_tokenizers_and_none_at_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.of: a tokenizer of kind 'characters' takes no furth"):
        extended(CharacterTokenizer.train([TEXT]), NEW)
    save_checkpoint(tmp_path / "bare", parse_model({**TIED, "vocab_size": 9}).build(), None)
    with pytest.raises(ConfigError, match=r"vocabulary\.added_tokens: .*bare has no tokenizer that could take new"):
        parse_run({"start": str(tmp_path / "bare"), "vocabulary": {"added_tokens": NEW}})
