"""Runs that begin from weights that stand somewhere: what is taken, what is fresh, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from interop.huggingface import tiny_folders
from training.test_resume import run_killed_at
from training.tiny_runs import LSTM, same_weights, tiny_run, write_text
from weft.checkpoints import load_checkpoint, save_checkpoint
from weft.core.errors import CheckpointError, ConfigError
from weft.interop.huggingface.loading import load_folder
from weft.tokenizers import CharacterTokenizer
from weft.training import Event, Notice, RunConfig, parse_run, train
from weft.training.run_training import build_model
from weft.training.starting import begin_from, require_startable

TEXT = "a line of text\n" * 40
HEAD = {"kind": "pooled", "pool": "last", "n_classes": 2}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of a model with a tokenizer of its own."""
    tokenizer = CharacterTokenizer.train([TEXT])
    torch.manual_seed(7)
    model = parse_run({"model": {**LSTM, "vocab_size": tokenizer.vocab_size, "embedding": {"dropout": 0.1}}}).model
    save_checkpoint(tmp_path / "saved", model.build(), tokenizer)
    return tmp_path / "saved"


def run_from(saved: Path, **fields: Any) -> RunConfig:
    (saved.parent / "text.txt").write_text(TEXT)
    return parse_run({"start": str(saved), "data": {"path": str(saved.parent / "text.txt")},
                      "training": {"steps": 4, "batch_size": 2, "compute": {"matmul": "default"}},
                      "report": {"eval_every": 2, "eval_batches": 1}, **fields})


def test_model_and_tokenizer_travel_and_a_new_head_is_fresh(saved: Path) -> None:
    run, before = run_from(saved, model={"head": HEAD}), load_checkpoint(saved)
    assert run.model.model_copy(update={"head": None}) == before.config
    assert run.tokenizer.from_file().fingerprint() == before.tokenizer.fingerprint()  # type: ignore[union-attr]
    torch.manual_seed(0)
    model = build_model(run)
    drawn = model.head.map.weight.clone()  # type: ignore[union-attr, operator]
    taken = begin_from(run, model)
    own = model.state_dict()
    assert all(torch.equal(own[name], tensor) for name, tensor in before.model.state_dict().items())
    assert torch.equal(own["head.map.weight"], drawn)
    assert (taken.fresh, taken.left) == (("head.map.bias", "head.map.weight"), ())
    numbers = sum(p.numel() for p in before.model.parameters())
    assert taken.line() == (f"starting from {saved}: {taken.tensors} tensors ({numbers:,} numbers) taken; fresh: "
                            "head.map.bias, head.map.weight")


def test_a_head_is_taken_whole_or_not_at_all(saved: Path) -> None:
    model = build_model(run_from(saved, model={"head": HEAD}))
    save_checkpoint(saved.parent / "headed", model, load_checkpoint(saved).tokenizer)
    again = run_from(saved.parent / "headed")
    found = build_model(again)
    assert begin_from(again, found).fresh == () and same_weights(found, model)
    # A head of the same shapes that is declared otherwise is another head.
    other = run_from(saved.parent / "headed", model={"head": {**HEAD, "pool": "mean"}})
    assert begin_from(other, build_model(other)).fresh == ("head.map.bias", "head.map.weight")
    bare = run_from(saved.parent / "headed", model={"head": None})
    assert begin_from(bare, build_model(bare)).left == ("head.map.bias", "head.map.weight")
    assert parse_run(bare.dump()) == bare, "a model that is written out is not filled in again"


def test_a_run_says_what_it_took_and_goes_on_bit_for_bit(saved: Path) -> None:
    run, events = run_from(saved), list[Event]()
    whole = train(run, saved.parent / "whole", on_event=events.append)
    (notice,) = (each.text for each in events if isinstance(each, Notice) and each.text.startswith("starting from"))
    assert notice.startswith(f"starting from {saved}: ") and notice.endswith("nothing is fresh")
    record = json.loads((saved.parent / "whole/run.json").read_text())["start"]
    assert record["path"] == str(saved) and len(record["sha256"]) == 64
    run_killed_at(run, saved.parent / "halves", 3)
    halves = train(run, saved.parent / "halves", resume=True)
    assert same_weights(whole.model, halves.model) and whole.validation == halves.validation
    assert not same_weights(whole.model, train(run.model_copy(update={"start": None}), saved.parent / "cold").model)


def test_weights_that_have_changed_before_the_first_checkpoint_are_refused(saved: Path) -> None:
    run = run_from(saved)
    train(run, saved.parent / "run")
    shutil.rmtree(saved.parent / "run/checkpoints")
    shutil.move(saved, saved.parent / "old")
    save_checkpoint(saved, build_model(run), load_checkpoint(saved.parent / "old").tokenizer)
    with pytest.raises(CheckpointError, match=r"saved: the weights are not those that the run began with\. Put them"):
        train(run, saved.parent / "run", resume=True)


def test_what_says_how_a_model_is_trained_may_differ(saved: Path) -> None:
    run = run_from(saved, model={"context": 4, "embedding": {"dropout": 0.0}})
    require_startable(run, build_model(run))
    begin_from(run, build_model(run))
    assert (run.model.context, run.model.embedding.dropout) == (4, 0.0)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("fields", "message"), [
    ({"d_model": 8}, r"model\.d_model: 8, and the model of .*saved has 12\. Leave it out, or start afresh"),
    ({"norm": "rmsnorm"}, r"model\.norm"),
    ({"kind": "ngram", "order": 2, "vocab_size": 20}, r"a model of kind 'ngram' is fitted by counting, which starts "
                                                      r"from no weights"),
])
def test_models_that_disagree_are_refused_before_anything_is_read(saved: Path, fields: dict[str, Any],
                                                                  message: str) -> None:
    run = run_from(saved, model=fields)
    (saved.parent / "text.txt").unlink()
    with pytest.raises(ConfigError, match=message):
        train(run, saved.parent / "run")


def test_a_table_of_positions_of_another_length_is_refused(saved: Path) -> None:
    table = parse_run(tiny_run(saved.parent, {**LSTM, "position": "learned"}).dump())
    save_checkpoint(saved.parent / "learned", table.model.build(), None)
    run = run_from(saved.parent / "learned", model={"context": 16})
    with pytest.raises(ConfigError, match=r"start: embedding\.position\.table of .*learned has shape \[8, 12\], and in "
                                          r"the model \[16, 12\]"):
        begin_from(run, build_model(run))


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        parse_run({"start": str(tmp_path / "nowhere"), "model": LSTM})


def test_a_foreign_folder_gives_its_weights(tmp_path: Path) -> None:
    tiny_folders.write(tmp_path / "llama")
    run = parse_run({"start": str(tmp_path / "llama"), "model": {"head": HEAD},
                     "data": {"path": str(write_text(tmp_path))}})
    model, before = build_model(run), load_folder(tmp_path / "llama").model
    assert begin_from(run, model).fresh == ("head.map.bias", "head.map.weight")
    tokens = torch.arange(6)[None]
    assert torch.equal(model.eval()(tokens).y, before(tokens).y)


def test_an_unknown_task_or_head_is_refused_before_a_text_is_read_to_learn_a_vocabulary(tmp_path: Path) -> None:
    """What is wrong whatever the vocabulary is said before a text is read to learn one."""
    for wrong, message in (({"task": "nxt_token"}, r"task\.kind: no task of kind 'nxt_token'\. Did you mean"),
                           ({"model": {**LSTM, "head": "poold"}}, r"model\.head\.kind: no head of kind 'poold'\. Did")):
        with pytest.raises(ConfigError, match=message):
            parse_run({"model": LSTM, "tokenizer": "characters", "data": {"path": str(tmp_path / "missing")}, **wrong})
