"""Files as they are found in the world: shards, old pickles, other dtypes, junk, prefixes, old spellings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from against_transformers.cases.falcon import CASES as FALCON
from against_transformers.cases.gemma import CASES as GEMMA
from against_transformers.cases.gpt2 import CASES as GPT2
from against_transformers.cases.gpt_neox import CASES as GPT_NEOX
from against_transformers.cases.llama import CASES as LLAMA
from against_transformers.cases.mixtral import CASES as MIXTRAL
from against_transformers.cases.phi3 import CASES as PHI3
from against_transformers.tiny import TOLERANCE, Case, alone, rows, saved
from weft import api
from weft.cli.main import app
from weft.evaluation import Scored

Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]
SAVED = "model.safetensors"


def scored(folder: Path) -> tuple[Tensor, ...]:
    found: Scored = api.score(folder, rows(67), logits=True)
    assert found.logits is not None
    return found.logits


def truth(folder: Path) -> list[Tensor]:
    return [alone(folder, row) for row in rows(67)]


def greedy(folder: Path, row: list[int], count: int) -> list[int]:
    """The tokens that transformers adds to a row, up to the end of a text."""
    theirs, tokens = transformers.AutoModelForCausalLM.from_pretrained(folder), torch.tensor([row])
    added = theirs.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=count, do_sample=False)
    found: list[int] = added[0, len(row):].tolist()
    return found


def agree(found: tuple[Tensor, ...], wanted: list[Tensor], tolerance: float = TOLERANCE) -> None:
    for own, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, theirs.float(), atol=tolerance, rtol=0)


def rewritten(folder: Path, change: Change) -> None:
    save_file(change(load_file(folder / SAVED)), folder / SAVED, metadata={"format": "pt"})


def test_shards(tmp_path: Path) -> None:
    saved(LLAMA[1], tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    agree(scored(tmp_path), truth(tmp_path))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("case", [GPT2[0], LLAMA[4]], ids=["gpt2", "llama-tied"])
def test_pickled_weights(case: Case, zipped: bool, tmp_path: Path) -> None:
    """Both formats of torch.save, tied tensors under both their names, as transformers 4 wrote them."""
    model = saved(case, tmp_path)
    wanted = truth(tmp_path)
    (tmp_path / SAVED).unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    agree(scored(tmp_path), wanted)


def test_pickled_shards(tmp_path: Path) -> None:
    model = saved(GPT_NEOX[0], tmp_path)
    wanted = truth(tmp_path)
    tensors = load_file(tmp_path / SAVED)
    (tmp_path / SAVED).unlink()
    places = {name: f"pytorch_model-0000{1 + index % 2}-of-00002.bin" for index, name in enumerate(tensors)}
    for file in set(places.values()):
        torch.save({name: tensors[name] for name in places if places[name] == file}, tmp_path / file)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    agree(scored(tmp_path), wanted)
    assert model is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_weights_are_kept_or_cast(dtype: torch.dtype, tmp_path: Path) -> None:
    model = saved(LLAMA[1], tmp_path / "wide")
    model.to(dtype).save_pretrained(tmp_path / "narrow")
    kept = api.load(tmp_path / "narrow")
    assert {parameter.dtype for parameter in kept.model.parameters()} == {dtype}
    cast = api.load(tmp_path / "narrow", dtype="float32")
    assert {parameter.dtype for parameter in cast.model.parameters()} == {torch.float32}
    found = api.score(cast, rows(67), logits=True).logits
    model.float().save_pretrained(tmp_path / "rounded")
    assert found is not None
    agree(found, truth(tmp_path / "rounded"))


def bare(prefix: str) -> Change:
    return lambda tensors: {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def with_masks(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    masks = {f"h.{layer}.attn.{name}": torch.full((1, 1, 4, 4), float("nan")) for layer in range(3)
             for name in ("bias", "masked_bias")}
    return {**bare("transformer.")(tensors), **masks}


def with_rotary(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**tensors, **{f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.rand(4) for layer in range(3)}}


def falcon_junk(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    frequencies = {f"h.{layer}.self_attention.rotary.inv_freq": torch.rand(4) for layer in range(3)}
    return {**bare("transformer.")(tensors), **frequencies}


def old_norms(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {(name.replace(".weight", ".gamma").replace(".bias", ".beta") if ".ln_" in name else name): tensor
            for name, tensor in tensors.items()}


def head_only(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {("lm_head.weight" if name == "model.embed_tokens.weight" else name): tensor
            for name, tensor in tensors.items()}


def head_as_well(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}


@pytest.mark.parametrize(("case", "change"), [
    (GPT2[0], bare("transformer.")), (GPT2[0], with_masks), (GPT2[0], old_norms), (LLAMA[0], with_rotary),
    (LLAMA[4], head_only), (LLAMA[4], head_as_well), (GPT_NEOX[1], bare("nothing")), (FALCON[2], falcon_junk),
    (GEMMA[0], with_rotary), (MIXTRAL[0], bare("model.")), (PHI3[0], with_rotary)],
    ids=["no prefix", "masks and no prefix", "gamma and beta", "frequencies", "tied, only the head", "tied, both",
         "as it is", "falcon", "gemma", "mixtral, no prefix", "phi3"])
def test_other_tensors(case: Case, change: Change, tmp_path: Path) -> None:
    saved(case, tmp_path)
    wanted = truth(tmp_path)
    rewritten(tmp_path, change)
    agree(scored(tmp_path), wanted)


def old_rope(raw: dict[str, Any]) -> None:
    parameters = raw.pop("rope_parameters")
    kind = parameters.pop("rope_type")
    raw["rope_theta"] = parameters.pop("rope_theta")
    raw["rope_scaling"] = None if kind == "default" else {"type": kind, **parameters}
    raw["torch_dtype"] = raw.pop("dtype")


def old_neox(raw: dict[str, Any]) -> None:
    parameters = raw.pop("rope_parameters")
    raw["rotary_emb_base"], raw["rotary_pct"] = parameters["rope_theta"], parameters["partial_rotary_factor"]
    raw["torch_dtype"] = raw.pop("dtype")


def sparse_llama(raw: dict[str, Any]) -> None:
    """What Llama's first files said: no key/value heads, no head size, no biases."""
    for key in ("num_key_value_heads", "head_dim", "attention_bias", "mlp_bias", "attention_dropout",
                "rope_parameters"):
        raw.pop(key)


def with_infinity(raw: dict[str, Any]) -> None:
    raw["problem_type"] = {"__float__": "Infinity"}


def old_gemma(raw: dict[str, Any]) -> None:
    """What Gemma's first files said, and what came after."""
    raw["hidden_act"], raw["hidden_activation"] = "gelu", None


def old_phi3(raw: dict[str, Any]) -> None:
    """LongRoPE under the name "yarn", and the original length outside alone."""
    parameters = raw.pop("rope_parameters")
    raw["rope_theta"] = parameters["rope_theta"]
    raw["rope_scaling"] = {"type": "yarn", "short_factor": parameters["short_factor"],
                           "long_factor": parameters["long_factor"]}


@pytest.mark.parametrize(("case", "change"), [
    (LLAMA[0], old_rope), (LLAMA[7], old_rope), (LLAMA[11], old_rope), (LLAMA[0], sparse_llama),
    (GPT_NEOX[2], old_neox), (LLAMA[0], with_infinity), (GEMMA[0], old_gemma), (PHI3[3], old_phi3)],
    ids=["rope_theta", "yarn", "longrope", "sparse", "rotary_pct", "infinity", "gemma", "phi3"])
def test_other_spellings(case: Case, change: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    saved(case, tmp_path)
    wanted, before = truth(tmp_path), api.load(tmp_path).config
    path = tmp_path / "config.json"
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))
    assert api.load(tmp_path).config == before
    agree(scored(tmp_path), wanted)


def test_the_commands_take_such_a_folder(tmp_path: Path) -> None:
    saved(LLAMA[1], tmp_path / "model")
    (tmp_path / "rows.json").write_text(json.dumps(rows(67)))
    done = CliRunner().invoke(app, ["score", str(tmp_path / "model"), "--rows", str(tmp_path / "rows.json"),
                                    "--logits", str(tmp_path / "logits.safetensors")])
    assert done.exit_code == 0, done.output
    logits = load_file(tmp_path / "logits.safetensors")
    agree(tuple(logits[f"row_{index}"] for index in range(5)), truth(tmp_path / "model"))
    done = CliRunner().invoke(app, ["generate", str(tmp_path / "model"), "--rows", str(tmp_path / "rows.json"),
                                    "--greedy", "--max-new-tokens", "6", "--json"])
    assert done.exit_code == 0, done.output
    assert [row["tokens"] for row in json.loads(done.output)["rows"]] == [greedy(tmp_path / "model", row, 6)
                                                                          for row in rows(67)]


@pytest.mark.parametrize("case", [LLAMA[1], GPT2[0], GPT_NEOX[0], GEMMA[0], MIXTRAL[0], PHI3[3], FALCON[2], FALCON[5]],
                         ids=lambda case: case.name)
def test_the_laws_hold_on_such_a_folder(case: Case, tmp_path: Path) -> None:
    saved(case, tmp_path)
    assert api.check(tmp_path).holds
