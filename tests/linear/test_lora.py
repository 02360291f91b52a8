"""LoRA, against W + s B A written out by hand: values, gradients, what trains, checkpoints, decoding, conversion."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import weft
from fresh import check_near
from linear.small import EXACT, LAYERS, TOKENS, VOCAB, by_hand, described, model
from training.tiny_runs import same_weights, tiny_run
from weft.checkpoints import load_checkpoint, save_checkpoint
from weft.checkpoints.tensors import read_tensors
from weft.core.errors import ConfigError, UnsupportedError
from weft.decoding import CompiledStep, Row, generate
from weft.decoding.session import Session
from weft.heads.readout import LinearReadout
from weft.laws.check import check
from weft.linear.low_rank import LowRank
from weft.linear.merging import merged
from weft.ops.int8_linear import quantised
from weft.training import train
from weft.training.optimizers import AdamWConfig

LORA = {"kind": "lora", "rank": 2, "alpha": 3.0}
READOUT = {"readout": {"kind": "linear", "tied": False, "bias": True, "softcap": 5.0, "d_embedding": 6}}


def loss(found: Any) -> torch.Tensor:
    out = found.train()(TOKENS)
    return out.y.log_softmax(-1).gather(-1, TOKENS.flip(1)[..., None]).sum() + sum(x.value for x in out.losses)


@pytest.mark.parametrize(("rewrite", "scale"), [
    ({**LORA, "maps": ["*"]}, 1.5), ({**LORA, "maps": ["*"], "rank_stabilised": True}, 3 / math.sqrt(2)),
    ({**LORA, "maps": ["qkv", "experts.*.down", "router"]}, 1.5)])
def test_values_and_gradients_are_those_of_the_sum_written_out(rewrite: Any, scale: float) -> None:
    adapted, plain = model([rewrite], **READOUT), model([], seed=1, **READOUT)
    low = by_hand(adapted, plain, scale)
    assert len(low) == sum(isinstance(module, LowRank) for module in adapted.modules()) >= 5
    assert_close(adapted.eval()(TOKENS).y, plain.eval()(TOKENS).y, **EXACT)
    loss(adapted).backward()
    loss(plain).backward()
    for name, (a, b) in low.items():
        whole = plain.get_parameter(name).grad
        assert_close(a.grad, scale * b.detach().t() @ whole, **EXACT)
        assert_close(b.grad, scale * whole @ a.detach().t(), **EXACT)


def test_left_out_maps_are_all_but_the_readouts() -> None:
    found = model([LORA], **READOUT)
    assert isinstance(found.stack.layers[0].layers[0].qkv, LowRank)
    assert isinstance(found.readout.projection, LowRank) and isinstance(found.readout, LinearReadout)


def test_only_a_and_b_train_and_the_optimiser_sees_no_others() -> None:
    found = model([{**LORA, "also_train": ["norm.*"]}])
    trained = {name for name, p in found.named_parameters() if p.requires_grad}
    assert trained == {name for name, _ in found.named_parameters() if ".a." in name or ".b." in name} | {"norm.weight"}
    optimizer = AdamWConfig().create(found)
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {
        id(found.get_parameter(name)) for name in trained}


def test_two_rewrites_of_several_ranks_both_train() -> None:
    found = model([{**LORA, "maps": ["qkv"]}, {**LORA, "rank": 1, "maps": ["glu.gate", "*.down"][1:]}])
    ranks = {module.a.weight.shape[0] for module in found.modules() if isinstance(module, LowRank)}
    assert ranks == {1, 2}
    assert all(p.requires_grad == (".a." in name or ".b." in name) for name, p in found.named_parameters())


def test_dropout_is_of_the_inputs_of_a_alone() -> None:
    found = model([{**LORA, "dropout": 0.5, "maps": ["qkv"]}], LAYERS[:1])
    qkv, x = found.stack.layers[0].layers[0].qkv.train(), torch.ones(4000, 8, dtype=torch.float64)
    torch.manual_seed(0)
    y = qkv(x)
    assert_close(y.mean(0), qkv.eval()(x)[0], rtol=0, atol=0.5)  # the mean of 4,000 draws, about 4 apart
    assert y.std(0).max() > 1
    qkv.b.weight.data.zero_()
    assert torch.equal(qkv.train()(x), qkv.base(x))


@pytest.mark.parametrize("tied", [True, False])
def test_a_readout_is_adapted_and_the_embedding_is_not(tied: bool) -> None:
    found = model([{**LORA, "maps": ["readout"]}], readout={"kind": "linear", "tied": tied})
    plain = model([], seed=1, readout={"kind": "linear", "tied": False})
    by_hand(found, plain, 1.5)
    assert_close(found.eval()(TOKENS).y, plain.eval()(TOKENS).y, **EXACT)
    assert (found.readout.map.base.weight is found.embedding.tokens.weight) is tied
    h = found.hidden(TOKENS).y
    scored = torch.ones_like(TOKENS, dtype=torch.bool)
    sums = found.readout.cross_entropy(h, TOKENS, scored)
    assert_close(sums.nats, -plain.readout.log_prob(h, TOKENS).sum(), **EXACT)


def test_a_run_trains_a_and_b_alone_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    config = tiny_run(tmp_path, {**described([LORA, ], LAYERS[:2]), "vocab_size": 300}, steps=6)
    result = train(config, tmp_path / "run")
    fresh = config.model.build()
    before, after = fresh.state_dict(), result.model.state_dict()
    torch.manual_seed(config.seed)
    start = config.model.build().state_dict()
    moved = {name for name in after if not torch.equal(start[name], after[name])}
    assert moved == {name for name in before if ".a." in name or ".b." in name}
    loaded = load_checkpoint(result.checkpoint)
    assert same_weights(loaded.model, result.model) and loaded.config.rewrites[0].kind == "lora"
    assert {name for name, p in loaded.model.named_parameters() if p.requires_grad} == moved
    train(config.model_copy(update={"training": config.training.model_copy(update={"steps": 6})}), tmp_path / "again")
    assert same_weights(load_checkpoint(tmp_path / "again").model, result.model)


def test_it_is_checked_saved_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_near(monkeypatch, traced=True)
    adapted = model([{**LORA, "maps": ["stack.layers.0.layers.0", "readout"]}], LAYERS[:2])
    save_checkpoint(tmp_path / "a", adapted, None)
    loaded = load_checkpoint(tmp_path / "a")
    assert same_weights(loaded.model, adapted)
    # Where in memory a matrix begins decides the last bits of a product on some processors.
    assert_close(loaded.model(TOKENS).y, adapted.eval()(TOKENS).y, **EXACT)
    assert loaded.model.readout.map.base.weight is loaded.model.embedding.tokens.weight
    assert "readout.map.base.weight" not in read_tensors(tmp_path / "a/model.safetensors")
    found = check(loaded.config, loaded.model, length=40)
    assert found.holds, [report.broken() for report in found.reports()]


def test_a_tape_and_the_compiled_step_decode_what_the_written_out_model_does() -> None:
    adapted = model([{**LORA, "maps": ["*"]}], LAYERS[:2]).eval()
    plain = model([], LAYERS[:2], seed=1, readout={"kind": "linear", "tied": False}).eval()
    by_hand(adapted, plain, 1.5)
    prompts = [[1, 2, 3], [4]]
    wanted = generate(plain, prompts, max_new_tokens=20)
    assert generate(adapted, prompts, max_new_tokens=20) == wanted
    torch._dynamo.reset()
    assert generate(adapted, prompts, max_new_tokens=20, compiled=CompiledStep(adapted, backend="aot_eager")) == wanted
    taped, by_itself = (Session(adapted, [Row((1, 2, 3))], max_new_tokens=30, plain=plain) for plain in (False, True))
    with torch.inference_mode():
        for _ in range(12):
            for session in (taped, by_itself):
                session.advance(torch.tensor([5]))
    assert taped.by_tape
    assert_close(taped.logits, by_itself.logits, **EXACT)


def test_merged_it_is_the_model_without_rewrites_and_computes_the_same(tmp_path: Path) -> None:
    adapted = model([{**LORA, "maps": ["*"]}], **READOUT).eval()
    plain = merged(adapted)
    assert plain.config.rewrites == [] and set(plain.state_dict()) == set(model([], **READOUT).state_dict())
    assert_close(plain(TOKENS).y, adapted(TOKENS).y, **EXACT)
    assert merged(plain) is plain


def test_a_tied_readout_that_was_adapted_alone_is_not_merged() -> None:
    message = (r"rewrites: 'readout.weight' shares its matrix with 'embedding.tokens.weight', and only one of them "
               r"was adapted, .* Untie them before training .*, or leave 'readout' out")
    with pytest.raises(UnsupportedError, match=message):
        merged(model([{**LORA, "maps": ["readout"]}]))


@pytest.mark.parametrize(("rewrite", "message"), [
    ({"also_train": ["nrom.weight"]}, r"rewrites.0.also_train.0: 'nrom.weight' matches no parameter of this model. Did "
                                      r"you mean 'norm.weight'\?"),
    ({"maps": ["qvk", "qkv"]}, r"rewrites.0.maps.0: 'qvk' matches no linear map of this model. Did you mean 'qkv'\?"),
    ({"maps": []}, r"rewrites.0.maps: List should have at least 1 item"),
    ({"rang": 3}, r"rewrites.0.rang: unknown key 'rang'. Did you mean 'rank'\?")])
def test_what_cannot_be_done_is_one_error(rewrite: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model([{**LORA, **rewrite}])


def test_the_package_converts_the_merged_model(tmp_path: Path) -> None:
    adapted = model([{**LORA, "maps": ["qkv", "down"]}], LAYERS[:2]).float().eval()
    save_checkpoint(tmp_path / "a", adapted, None)
    weft.convert(tmp_path / "a", tmp_path / "hf", to="hf")
    found = weft.load(tmp_path / "hf").model
    assert found.config.rewrites == []
    # float32, and one rounding of W + s B A.
    assert_close(found(TOKENS).y, adapted(TOKENS).y, rtol=1e-4, atol=1e-4)
    assert found.vocab_size == VOCAB


def begun(folder: Path, start: Path, rewrites: list[Any]) -> Any:
    """The model of a run that starts there and has made no step yet, as good as: at a rate that changes no bit."""
    config = tiny_run(folder, {**described(rewrites, LAYERS[:2]), "vocab_size": 300}, steps=1,
                      optimizer={"kind": "sgd", "lr": 1e-30})
    config = config.model_copy(update={"start": str(start)})
    return train(config, folder / f"run{len(list(folder.iterdir()))}").model


def test_a_run_that_starts_from_other_weights_reads_them_first_and_rewrites_them_then(tmp_path: Path) -> None:
    plain = tiny_run(tmp_path, {**described([], LAYERS[:2]), "vocab_size": 300}, steps=3)
    trained = train(plain, tmp_path / "plain").model
    adapted = begun(tmp_path, tmp_path / "plain", [LORA])
    both = begun(tmp_path, tmp_path / "plain", ["int8", LORA])
    torch.manual_seed(plain.seed)
    for place in ("0.qkv", "1.gate", "1.down"):
        weight = trained.get_parameter(f"stack.layers.0.layers.{place}.weight")
        assert torch.equal(adapted.get_submodule(f"stack.layers.0.layers.{place}").base.weight, weight)
        matrix = both.get_submodule(f"stack.layers.0.layers.{place}").base.matrix
        assert torch.equal(matrix.values, quantised(weight)[0])
    assert torch.equal(both.embedding.tokens.weight, trained.embedding.tokens.weight)

    tuned = tiny_run(tmp_path, {**described([LORA], LAYERS[:2]), "vocab_size": 300}, steps=5)
    found = train(tuned.model_copy(update={"start": str(tmp_path / "plain")}), tmp_path / "tuned").model
    assert not torch.equal(found(TOKENS).y, trained(TOKENS).y)
    again = begun(tmp_path, tmp_path / "tuned", [LORA])
    assert same_weights(again, found)
    # float32, and one rounding of W + s B A.
    assert_close(begun(tmp_path, tmp_path / "tuned", [])(TOKENS).y, found(TOKENS).y, rtol=1e-4, atol=1e-4)
