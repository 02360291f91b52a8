"""A form in C from outside Weft: held to the naive one, trained, checked, compiled, shown, and forced away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import fresh
from weft.core.errors import UnsupportedError
from weft.core.registry import load_plugin
from weft.ops.form_check import differences
from weft.ops.forms import forced
from weft.ops.norms import RMS_NORM, RMSNormCall, rms_norm

PLUGIN = Path(__file__).parents[2] / "examples" / "c_rms_norm.py"
CONFIG = ["transformer", "model.d_model=16", "model.context=16", "model.blocks.0.repeat=1",
          "model.blocks.0.of.0.layers.0.n_heads=2", "model.blocks.0.of.0.layers.1.d_ff=24", "tokenizer=bytes",
          "training.seconds=null", "training.steps=2", "training.batch_size=2", "report.eval_batches=1",
          "data.max_bytes=50000"]


def weft(folder: Path, *arguments: str) -> fresh.Ended:
    """The command in a process of its own, so that the form stays unknown to the other tests."""
    return fresh.fresh(fresh.weft_near, *arguments, "--plugin", str(PLUGIN), folder=folder)


def held_to_the_naive_form() -> None:
    """After the file has been loaded a second time: values, gradients, second derivatives, and the operators."""
    for _ in range(2):
        load_plugin(PLUGIN)
    form = RMS_NORM.form("c")
    found = list(differences(RMS_NORM, form))
    assert len(found) == 3 and all(max(each.values, each.gradients) <= each.allowed for each in found)
    x, scale = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 5), (5,)))
    with forced({"rms_norm": "c"}):
        assert torch.autograd.gradgradcheck(lambda x, scale: rms_norm(x, scale, 1e-3), (x, scale))
    for operator, args in ((torch.ops.c_rms_norm.forward.default, (x, scale, 1e-3)),
                           (torch.ops.c_rms_norm.forward.default, (x.detach().float(), None, 1e-3))):
        tests = ("test_schema", "test_autograd_registration", "test_faketensor")
        assert set(torch.library.opcheck(operator, args, test_utils=tests).values()) == {"SUCCESS"}
    single = x.detach().float()
    assert_close(rms_norm(single, scale.detach().float(), 1e-3), rms_norm(x, scale, 1e-3).float())  # as float32 rounds
    assert RMS_NORM.choose(RMSNormCall(x.bfloat16(), scale.bfloat16(), 1e-3)).form.name == "lean"


def compiled_in_one_graph() -> None:
    load_plugin(PLUGIN)
    x, scale = torch.randn(4, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    whole = torch.compile(lambda x, scale: rms_norm(x.sin(), scale, 1e-3), fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(whole(x, scale).square().sum(), (x, scale))
    with forced({"rms_norm": "reference"}):
        wanted = torch.autograd.grad(rms_norm(x.sin(), scale, 1e-3).square().sum(), (x, scale))
    assert_close(found, wanted, rtol=1e-5, atol=1e-6)  # sums of eight and thirty-two float32 numbers


@pytest.mark.parametrize("work", [held_to_the_naive_form, compiled_in_one_graph])
def test_it_is_the_naive_form_also_loaded_twice_and_compiled(work: object, tmp_path: Path) -> None:
    done = fresh.fresh(work, folder=tmp_path)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr


def test_it_is_trained_checked_and_shown(tmp_path: Path) -> None:
    done = weft(tmp_path, "train", *CONFIG, "--out", "run")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert any("c_rms_norm" in name for name in record["code"]), "a change of the file would be seen"
    done = weft(tmp_path, "plan", "run", "--json")
    assert done.returncode == 0, done.stderr
    forms = {(each["operation"], phase): each["form"] for each in json.loads(done.stdout)["forms"]
             for phase in each["phases"]}
    assert {forms["rms_norm", phase] for phase in ("training", "prompts", "single tokens")} == {"c"}
    assert "Not counted" not in done.stdout
    done = weft(tmp_path, "plan", "run", "--json", "--kernels", "rms_norm=reference")
    assert {each["form"] for each in json.loads(done.stdout)["forms"] if each["operation"] == "rms_norm"} == {
        "reference"}
    done = weft(tmp_path, "check", "run", "--length", "16")  # a norm does not see how long a row is
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_a_compiler_it_says_so_and_adds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = RMS_NORM.forms()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(UnsupportedError, match=r"needs a C compiler, and none of cc, gcc, clang is here\. Install one"):
        load_plugin(PLUGIN)
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho 'no such thing' >&2\nexit 1\n", encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(UnsupportedError, match=r"broken fails: no such thing Correct the code, or name another"):
        load_plugin(PLUGIN)
    assert RMS_NORM.forms() == before
