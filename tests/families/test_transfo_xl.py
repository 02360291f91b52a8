"""Transformer-XL's format against numbers of transformers 4.37.2, the last version with its class that is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from interop.huggingface.tiny_folders import stored_dropped, write_case
from weft import api
from weft.core.errors import ConfigError, UnsupportedError
from weft.core.model import LanguageModel, parse_model
from weft.core.span import Span
from weft.families.family import families
from weft.interop.huggingface.writing import fit

FAMILY = families()["transfo-xl"]
PIECES = (6, 1, 5, 1, 1, 4)
"""Other pieces than the segments of the stored numbers."""


def model_of(folder: Path) -> LanguageModel:
    found = api.load(folder).model
    assert isinstance(found, LanguageModel)
    return found


@pytest.mark.parametrize("name", stored_dropped())
def test_segments_with_memory_have_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    """In one call, and in pieces that are not its segments. The class gives log-probabilities, also where its softmax
    has no clusters."""
    case = stored_dropped()[name]
    write_case(tmp_path, case)
    model, tokens, wanted = model_of(tmp_path), torch.tensor([case["row"]]), torch.tensor(case["logits"])
    assert sum(PIECES) == tokens.shape[1]
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).y[0].log_softmax(-1)[-len(wanted):], wanted, atol=5e-5, rtol=0)
        state, found = model.init_state(1), []
        for piece in tokens.split(PIECES, 1):
            out = model(piece, state, Span())
            state, found = out.state, [*found, out.y[0].log_softmax(-1)]
    torch.testing.assert_close(torch.cat(found)[-len(wanted):], wanted, atol=5e-5, rtol=0)


@pytest.mark.parametrize("name", stored_dropped())
def test_what_is_written_is_what_was_read(name: str, tmp_path: Path) -> None:
    case = stored_dropped()[name]
    tensors = write_case(tmp_path / "a", case)
    api.convert(tmp_path / "a", tmp_path / "b", to="weft")
    done = api.convert(tmp_path / "b", tmp_path / "c", to="hf")
    assert (done.family, done.difference) == ("transfo-xl", 0)
    again = api.load(tmp_path / "c")
    assert again.config == api.load(tmp_path / "a").config
    written = load_file(tmp_path / "c" / "model.safetensors")
    assert set(written) == set(tensors)
    assert all(torch.equal(tensor, tensors[key]) for key, tensor in written.items())


def test_norms_before_the_layers_come_with_a_note() -> None:
    assert FAMILY.notes({"pre_lnorm": False}) == []
    assert [note.split(":")[0] for note in FAMILY.notes({"pre_lnorm": True})] == ["pre_lnorm"]


def read(**values: Any) -> Any:
    return FAMILY.read({"model_type": "transfo-xl", **values})[0]


@pytest.mark.parametrize(("values", "said"), [
    ({"mem_len": 0}, "mem_len: 0 with same_length hides every key; give at least 1, or same_length false."),
    ({"cutoffs": []}, "div_val: 4 without cutoffs; with a single cluster only 1 can be read."),
    ({"div_val": 1, "d_embed": 512}, "proj_share_all_but_first: with div_val 1 the maps of all clusters would be the "
     "embedding's one map; only clusters of different widths, or maps of their own, can be read."),
    ({"tie_projs": [True, False, True, True]}, "tie_projs: [True, False, True, True], but only all, none, or all but "
     "the first can be shared."),
    ({"untie_r": False}, "untie_r: False, but only True can be read. Its u and v would be the same in all layers, "
     "which no released model has."),
    ({"attn_type": 2}, "attn_type: 2, but only 0 or None can be read. Its class has no other attention."),
    ({"cutoffs": [40, 20]}, "cutoffs: [40, 20] do not increase from above 0. Give the first id of each cluster but the "
     "first, in increasing order."),
    ({"cutoffs": [20, 300000]}, "cutoffs: 300000 leaves no id for the last cluster of a vocabulary of 267735. Choose "
     "cutoffs below the number of ids.")])
def test_what_cannot_be_read_is_said(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as found, torch.device("meta"):
        read(**values).build()
    assert said in str(found.value)


def test_keys_of_the_published_file_are_known() -> None:
    """transfo-xl-wt103's own, which later versions of its class no longer name."""
    config = read(tie_weight=True, tie_projs=[False, True, True, True], tgt_len=128, ext_len=0, n_token=267735,
                  adaptive=True, init="normal", init_range=0.01, proj_init_std=0.01, sample_softmax=-1, untie_r=True,
                  task_specific_params={"text-generation": {"max_length": 250}}, eos_token_id=0)
    assert config == read() and (config.context, config.readout.tied_projections) == (128, "tails")


SMALL = {"vocab_size": 30, "cutoffs": [10], "d_model": 8, "d_embed": 8, "n_layer": 1, "n_head": 2, "d_head": 4}


@pytest.mark.parametrize("mask", ["causal & (window(4) | global(0))", "causal"])
def test_other_masks_are_not_written(mask: str) -> None:
    plain = read(pre_lnorm=True, **SMALL).dump()
    plain["blocks"][0]["layers"][0]["mask"] = mask
    with pytest.raises(UnsupportedError, match="mem_len: cannot express the mask"):
        fit(parse_model(plain), {}, family="transfo-xl")


def test_clusters_that_differ_between_embedding_and_softmax_are_not_written() -> None:
    plain = read(tie_word_embeddings=False, proj_share_all_but_first=False, **SMALL).dump()
    plain["readout"]["cutoffs"] = [12]
    with pytest.raises(UnsupportedError, match="clusters of one width or of several, both alike"):
        fit(parse_model(plain), {}, family="transfo-xl")


def test_embeddings_of_another_scale_are_not_written() -> None:
    plain = read(**SMALL).dump()
    plain["embedding"]["scale"] = 2.0
    with pytest.raises(UnsupportedError, match=r"embeddings are multiplied by 2\.0, where the class has the root"):
        fit(parse_model(plain), {}, family="transfo-xl")


def test_segments_of_another_length_than_the_context_are_not_written() -> None:
    plain = read(same_length=False, **SMALL).dump()
    with pytest.raises(UnsupportedError, match="tgt_len: segments of 128 tokens in a context of 64"):
        fit(parse_model({**plain, "context": 64}), {}, family="transfo-xl")
