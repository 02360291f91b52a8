"""Folders with a modelling file, opened by transformers: its numbers, its generation and its own saving."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from against_transformers.tiny import own_modules
from interop.huggingface.with_code_models import CONFIGS, VOCABULARY, build, converted, model, padded, rows
from weft import api
from weft.tokenizers import BPETokenizer

TOLERANCE = 1e-5
"""On float32 logits of the size 5; the same parts compute them, in batches of another shape."""


@pytest.fixture(scope="module", autouse=True)
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where transformers copies a folder's code to before it runs it, and looks for modules from then on."""
    with own_modules(tmp_path_factory.mktemp("modules")):
        yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a model, made once and only read."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            difference = converted(model(name), made[name]).foreign
            assert difference is not None and difference <= TOLERANCE
        return made[name] / "b"

    return of


def opened(folder: Path, **options: Any) -> Any:
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True,
                                                                    local_files_only=True, **options)
    return theirs.eval()


def alone(name: str, row: list[int]) -> Tensor:
    """Weft's logits [T,V] of a row by itself."""
    with torch.no_grad():
        logits: Tensor = model(name)(torch.tensor([row])).y[0]
    return logits


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_logits_of_padded_batches_are_those_of_the_rows_alone(name: str, folder: Callable[[str], Path]) -> None:
    theirs = opened(folder(name))
    for side in ("left", "right"):
        tokens, mask = padded(rows(), side)
        with torch.no_grad():
            logits = theirs(tokens, attention_mask=mask).logits
            last = theirs(tokens, attention_mask=mask, logits_to_keep=2).logits
            chosen = theirs(tokens, attention_mask=mask, logits_to_keep=torch.tensor([0, 4])).logits
        for index, row in enumerate(rows()):
            close(logits[index][mask[index].bool()], alone(name, row))
        close(last, logits[:, -2:])
        close(chosen, logits[:, [0, 4]])


@pytest.mark.parametrize("name", list(CONFIGS))
def test_greedy_generation_is_weft_s(name: str, folder: Callable[[str], Path]) -> None:
    theirs = opened(folder(name))
    wanted = [list(row.tokens) for row in api.generate(folder(name), rows(), max_new_tokens=12).rows]
    for side in ("left", "right"):
        tokens, mask = padded(rows(), side)
        for cached in (True, False):
            found = theirs.generate(tokens, attention_mask=mask, max_new_tokens=12, do_sample=False, use_cache=cached,
                                    pad_token_id=0)
            assert found[:, tokens.shape[1]:].tolist() == wanted


@pytest.mark.parametrize("name", ["lstm", "hybrid", "feedforward"])
@pytest.mark.parametrize("options", [{"do_sample": True, "temperature": 0.8, "top_k": 20}, {"num_beams": 3},
                                     {"do_sample": True, "num_return_sequences": 2}],
                         ids=["sampling", "beams", "several"])
def test_a_cache_changes_nothing(name: str, options: dict[str, Any], folder: Callable[[str], Path]) -> None:
    theirs, (tokens, mask) = opened(folder(name)), padded(rows(), "left")
    found = []
    for cached in (True, False):
        torch.manual_seed(3)
        found.append(theirs.generate(tokens, attention_mask=mask, max_new_tokens=9, use_cache=cached, pad_token_id=0,
                                     **options).tolist())
    assert found[0] == found[1]


def test_a_row_that_ends_leaves_the_others_alone(folder: Callable[[str], Path]) -> None:
    theirs, (tokens, mask) = opened(folder("hybrid")), padded(rows(), "left")
    wanted = [list(row.tokens) for row in api.generate(folder("hybrid"), rows(), max_new_tokens=12).rows]
    end = wanted[0][3]
    found = theirs.generate(tokens, attention_mask=mask, max_new_tokens=12, do_sample=False, eos_token_id=end,
                            pad_token_id=0)[:, tokens.shape[1]:].tolist()
    for own, row in zip(found, wanted, strict=True):
        length = row.index(end) + 1 if end in row else len(row)
        assert own == (row[:length] + [0] * 12)[:len(own)]


def test_a_conversation_goes_on_from_its_cache(folder: Callable[[str], Path]) -> None:
    theirs, row = opened(folder("hybrid")), torch.tensor([rows()[1]])
    first = theirs.generate(row, attention_mask=torch.ones_like(row), max_new_tokens=4, do_sample=False,
                            return_dict_in_generate=True, pad_token_id=0)
    longer = torch.cat([first.sequences, row[:, :3]], dim=1)
    whole = theirs.generate(longer, attention_mask=torch.ones_like(longer), max_new_tokens=4, do_sample=False,
                            pad_token_id=0)
    on = theirs.generate(longer, attention_mask=torch.ones_like(longer), max_new_tokens=4, do_sample=False,
                         past_key_values=first.past_key_values, pad_token_id=0)
    assert on.tolist() == whole.tolist()


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_loss_is_the_mean_over_all_tokens_but_first_ones(side: str, folder: Callable[[str], Path]) -> None:
    theirs, own = opened(folder("hybrid")).train(), build(CONFIGS["hybrid"])
    tokens, mask = padded(rows(), side)
    loss = theirs(tokens, attention_mask=mask, labels=tokens).loss
    loss.backward()
    pieces = [torch.nn.functional.cross_entropy(own(torch.tensor([row])).y[0, :-1], torch.tensor(row[1:]),
                                                reduction="sum") for row in rows() if len(row) > 1]
    wanted = torch.stack(pieces).sum() / sum(len(row) - 1 for row in rows())
    wanted.backward()
    close(loss, wanted)
    for found, each in zip(theirs.parameters(), own.parameters(), strict=True):
        assert each.grad is not None
        close(found.grad, each.grad)


@pytest.mark.parametrize("name", ["hybrid", "s4d", "feedforward"])
def test_transformers_saves_what_weft_reads(name: str, folder: Callable[[str], Path], tmp_path: Path) -> None:
    theirs = opened(folder(name))
    theirs.save_pretrained(tmp_path / "saved", max_shard_size="3KB")
    assert len(list((tmp_path / "saved").glob("*.safetensors"))) > 1
    again = api.load(tmp_path / "saved")
    assert again.config == model(name).config
    stored = {each for file in (tmp_path / "saved").glob("*.safetensors") for each in load_file(file)}
    assert stored == set(load_file(folder(name) / "model.safetensors"))
    tokens = torch.tensor([rows()[1]])
    with torch.no_grad():
        close(again.model(tokens).y, theirs(tokens).logits)
        close(opened(tmp_path / "saved")(tokens).logits, theirs(tokens).logits)


def test_tied_weights_are_one_tensor(folder: Callable[[str], Path]) -> None:
    theirs = opened(folder("hybrid"))
    assert theirs.get_parameter("model.readout.weight") is theirs.get_parameter("model.embedding.tokens.weight")
    assert theirs.config.tie_word_embeddings
    assert not opened(folder("s4d")).config.tie_word_embeddings


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_dtype_is_honoured(dtype: torch.dtype, folder: Callable[[str], Path]) -> None:
    tokens = torch.tensor([rows()[1]])
    for name in ("hybrid", "dynamic"):
        theirs, own = opened(folder(name), dtype=dtype), build(CONFIGS[name]).to(dtype)
        assert {each.dtype for each in theirs.parameters()} == {each.dtype for each in own.parameters()}
        assert (torch.float32 in {each.dtype for each in own.parameters()}) == (name == "hybrid"
                                                                                and dtype == torch.bfloat16)
        with torch.no_grad():
            assert torch.equal(theirs(tokens).logits, own(tokens).y)
        for key, weight in own.named_parameters():
            assert torch.equal(theirs.get_parameter(f"model.{key}"), weight), key


def test_a_fresh_model_begins_as_weft_s_parts_do(folder: Callable[[str], Path]) -> None:
    config = transformers.AutoConfig.from_pretrained(folder("hybrid"), trust_remote_code=True)
    assert (config.vocab_size, config.max_position_embeddings) == (VOCABULARY, 32)
    torch.manual_seed(5)
    auto: Any = transformers.AutoModelForCausalLM
    theirs = auto.from_config(config, trust_remote_code=True)
    torch.manual_seed(5)
    own = model("hybrid").config.build()
    for found, wanted in zip(theirs.model.state_dict().values(), own.state_dict().values(), strict=True):
        assert torch.equal(found, wanted)


def test_missing_weights_are_never_made_up(folder: Callable[[str], Path], tmp_path: Path) -> None:
    theirs = opened(folder("lstm"))
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"no weights for model\.norm\.weight\. Copy all of its files"):
        opened(tmp_path)


def test_without_weft_it_is_said_what_to_install(folder: Callable[[str], Path], tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder("lstm"), tmp_path / "elsewhere")  # of a name that has not been imported yet
    monkeypatch.setitem(sys.modules, "weft.interop.huggingface.columns", None)
    with pytest.raises(ImportError, match=r"built by the Python package `weft`, which cannot be used here \(.*\). "
                                          r"Install Weft, in the version that config.json names under `weft`"):
        opened(tmp_path / "elsewhere")


def test_text_goes_in_and_comes_out(tmp_path: Path) -> None:
    tokenizer = BPETokenizer.train(["some text to learn from"], 259)
    converted(build({**CONFIGS["lstm"], "vocab_size": 259}), tmp_path, tokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "b")
    theirs.pad_token, theirs.padding_side = theirs.eos_token, "left"
    texts = ["some", "some more text"]
    found = opened(tmp_path / "b").generate(**theirs(texts, return_tensors="pt", padding=True), max_new_tokens=6,
                                            do_sample=False, eos_token_id=None)
    wanted = api.generate(tmp_path / "b", texts, max_new_tokens=6)
    raw = json.loads((tmp_path / "b" / "generation_config.json").read_text())
    assert raw["eos_token_id"] == tokenizer.eos_id
    for index, row in enumerate(wanted.rows):
        assert found[index, -6:].tolist()[:len(row.tokens)] == list(row.tokens)
