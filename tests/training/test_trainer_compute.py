"""Trainers under other ways to compute: compiled, with activations computed again, on another route."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._inductor import config as inductor
from torch._inductor.exc import InductorError
from torch.utils._python_dispatch import TorchDispatchMode

from training.tiny_runs import ATTENTION, LSTM, same_weights, tiny_run
from weft.checkpoints import load_checkpoint
from weft.checkpoints.locate import saved_checkpoints
from weft.core.errors import ConfigError, UnsupportedError
from weft.core.layer import with_boundaries
from weft.models import stack as stack_module
from weft.ops.linear import ROUTING
from weft.ops.operator import StorageWeakRef
from weft.training import parse_run, train
from weft.training import trainer as module
from weft.training.compute import Compute, ComputeSettings
from weft.training.material import prepare
from weft.training.precision import collect_together
from weft.training.requirements import require_trainable
from weft.training.run_training import build_model
from weft.training.trainer import Trainer

DROPPING = {**ATTENTION, "blocks": [{"kind": "pre", "dropout": 0.2, "layers": [
    {"kind": "attention", "n_heads": 2, "position": "rope", "scores": {"dropout": 0.2}}, "mlp"]}] * 2}


GATED = {**ATTENTION, "norm": "rmsnorm", "blocks": [{"kind": "pre", "norm": "rmsnorm", "layers": [
    {"kind": "attention", "n_heads": 2, "position": "rope"}, "glu"]}] * 2}


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.ops.operator.LEAST", 1)
    monkeypatch.setattr(stack_module, "LEAST", 1)


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def trained(folder: Path, model: dict[str, Any], steps: int = 3, *, compute: Compute | None = None,
            compute_settings: dict[str, Any] | None = None, **training: Any) -> tuple[list[float], Trainer]:
    """The losses of a few steps, and their trainer."""
    run = tiny_run(folder, model, **training, compute={"matmul": "default", **(compute_settings or {})})
    torch.manual_seed(0)
    made = build_model(run)
    require_trainable(run, made)
    trainer = Trainer(run, made, prepare(run).train, steps=20, device="cpu", compute=compute)
    return [trainer.advance().sums.loss for _ in range(steps)], trainer


def keep(trainer: Trainer, how: Any) -> None:
    """Have it keep that much for the backward pass."""
    for part in with_boundaries(trainer.precision.working):
        part.kept_activations = how


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [p.detach() for p in trainer.model.parameters()]


@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}, {"accumulation": 2}], ids=["float32", "bf16", "two"])
def test_activations_computed_again_change_no_bit_dropout_included(tmp_path: Path, options: dict[str, Any]) -> None:
    kept, plain = trained(tmp_path, DROPPING, **options)
    found, again = trained(tmp_path, DROPPING, **options, compute_settings={"checkpoint_activations": True})
    assert found == kept
    assert all(torch.equal(a, b) for a, b in zip(weights(plain), weights(again), strict=True))


def kept(trainer: Trainer) -> int:
    """Bytes of activations that live on for the backward pass."""
    made: dict[int, tuple[StorageWeakRef, int]] = {}

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            for tensor in (out if isinstance(out, (tuple, list)) else [out]):
                if isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
            return out

    model = trainer.precision.working.train()
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    with Watch():
        held = model.hidden(torch.zeros(4, 8, dtype=torch.int64))
    size = sum(size for key, (storage, size) in made.items() if key not in weights and not storage.expired())
    held.y.sum().backward()
    return size


def test_activations_computed_again_are_not_kept(tmp_path: Path, everything_is_large: None) -> None:
    _, cheap = trained(tmp_path, DROPPING, 0)
    _, all_kept = trained(tmp_path, DROPPING, 0)
    keep(all_kept, "everything")
    _, inputs = trained(tmp_path, DROPPING, 0, compute_settings={"checkpoint_activations": True})
    # A block keeps 4 vectors of the stream's width and 8 of the hidden layer's without the cheap ones, which are the
    # two normalised vectors and the activated layer.
    assert kept(cheap) < 0.75 * kept(all_kept)
    assert kept(inputs) < 0.5 * kept(cheap)


@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}], ids=["float32", "bf16"])
@pytest.mark.parametrize("model", [DROPPING, GATED], ids=["layernorm, mlp", "rmsnorm, glu"])
def test_cheap_results_made_again_change_no_bit(tmp_path: Path, everything_is_large: None, model: dict[str, Any],
                                                options: dict[str, Any]) -> None:
    def losses(how: str) -> tuple[list[float], Trainer]:
        run = tiny_run(tmp_path, model, **options, compute={"matmul": "default"})
        torch.manual_seed(0)
        trainer = Trainer(run, build_model(run), prepare(run).train, steps=20, device="cpu")
        keep(trainer, how)
        return [trainer.advance().sums.loss for _ in range(3)], trainer

    wanted, plain = losses("everything")
    found, lean = losses("costly")
    assert found == wanted
    assert all(torch.equal(a, b) for a, b in zip(weights(plain), weights(lean), strict=True))


def test_activations_that_cannot_be_computed_again_are_refused(tmp_path: Path) -> None:
    again = {"checkpoint_activations": True}
    normed = {**ATTENTION, "norm": "batchnorm"}
    with pytest.raises(ConfigError, match=r"checkpoint_activations: running statistics of batch normalisation would"):
        trained(tmp_path, normed, compute_settings=again)
    flat = {"kind": "feedforward", "context": 8}
    with pytest.raises(ConfigError, match=r"compute\.checkpoint_activations: this model has no blocks whose"):
        trained(tmp_path, flat, compute_settings=again)


def through(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile by another backend; the usual one takes a minute to build what these tests run."""
    compile_as_usual = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: compile_as_usual(
        function, **options | {"backend": backend, "fullgraph": True}))


@pytest.mark.parametrize(("model", "options"), [
    (ATTENTION, {"objective": {"z_loss": 0.1}}), (LSTM, {"carry_state": True}),
    (ATTENTION, {"compute_settings": {"checkpoint_activations": True}}),
], ids=["attention", "carried state", "activations again"])
def test_a_traced_run_follows_an_eager_one_in_one_graph(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any], options: dict[str, Any]) -> None:
    model = {**model, "embedding": {"dropout": 0.0}}
    settings = {**options.pop("compute_settings", {}), "compile": True}
    eager, _ = trained(tmp_path, model, 4, **options)
    through("aot_eager", monkeypatch)
    found, trainer = trained(tmp_path, model, 4, **options, compute_settings=settings)
    assert trainer.compute.compile
    # float32 (6e-8) through a few dozen operations whose order a compiler may change, and three updates.
    assert found == pytest.approx(eager, rel=1e-5)


def test_a_compiled_run_follows_an_eager_one(tmp_path: Path) -> None:
    model = {**ATTENTION, "embedding": {"dropout": 0.0}, "blocks": [{"kind": "pre", "layers": ["mlp"]}]}
    eager, _ = trained(tmp_path, model, 4)
    found, _ = trained(tmp_path, model, 4, compute_settings={"compile": True})
    assert found == pytest.approx(eager, rel=1e-5)


@pytest.mark.parametrize(("model", "options"), [
    (ATTENTION, {}), (LSTM, {"carry_state": True}), (ATTENTION, {"compute_settings": {"checkpoint_activations": True}}),
], ids=["attention", "carried state", "activations again"])
def test_equal_blocks_are_compiled_once_and_only_in_steps(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any], options: dict[str, Any]) -> None:
    """Three equal blocks give one graph forward, however many runs the process has made before."""
    settings = {**options.pop("compute_settings", {}), "compile": "blocks"}
    model = {**model, "embedding": {"dropout": 0.0}, "blocks": [{"repeat": 3, "of": model["blocks"]}]}
    eager, _ = trained(tmp_path, model, 4, **options)
    graphs: list[int] = []

    def counted(graph: Any, *_: Any) -> Any:
        graphs.append(len(graph.graph.nodes))
        return make_boxed_func(graph)

    through(aot_autograd(fw_compiler=counted, bw_compiler=make_boxed_func_of), monkeypatch)
    for _ in range(3):
        graphs.clear()
        found, trainer = trained(tmp_path, model, 4, **options, compute_settings=settings)
        # The first block reads what needs no gradient where embeddings are frozen, and no state in the first step.
        assert 1 <= len(graphs) <= 2
        assert found == pytest.approx(eager, rel=1e-5)  # float32, in the order of another kernel
    assert trainer.compute.compile == "blocks"
    assert all(each._compiled_call_impl is None for each in trainer.model.modules())


def test_what_cannot_be_compiled_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("no compiler was found")

    through(broken, monkeypatch)
    message = r"training\.compute\.compile: torch\.compile failed: .*no compiler was found.* Leave it out, or see"
    with pytest.raises(UnsupportedError, match=message):
        trained(tmp_path, LSTM, compute_settings={"compile": True})


def make_boxed_func_of(graph: Any, *_: Any) -> Any:
    return make_boxed_func(graph)


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"accumulation": 2, "dtype": "bfloat16"}])
def test_a_step_that_finds_its_batches_read_ahead_is_the_same_step(tmp_path: Path, options: dict[str, Any],
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the next batches are read before the host waits, and gradients are collected together."""
    plain, one = trained(tmp_path, ATTENTION, 4, **options)
    read: list[int] = []
    clip, batches = Trainer._clip, Trainer._batches

    def as_on_a_gpu(self: Trainer) -> None:
        self.device = torch.device("cuda")
        try:
            clip(self)
        finally:
            self.device = torch.device("cpu")

    def counted(self: Trainer, step: int) -> Any:
        read.append(step)
        return batches(self, step)

    monkeypatch.setattr(Trainer, "_clip", as_on_a_gpu)
    monkeypatch.setattr(Trainer, "_batches", counted)
    monkeypatch.setattr("weft.training.precision.Precision.collect_gradients",
                        lambda self: collect_together(self.model, self.working))
    found, other = trained(tmp_path, ATTENTION, 4, **options)
    assert found == plain and read == [0, 1, 2, 3, 4] and list(other._ahead) == [4]
    assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))
    other.resume(other.tensors(), step=2, seconds=0.0, where="here")
    assert other._ahead == {}, "what was read for another step is not taken"


def group_of_a_child() -> int:
    """The process group of a program that is started here, as the compiler's are."""
    said = subprocess.run([sys.executable, "-S", "-c", "import os; print(os.getpgid(0))"], capture_output=True,
                          text=True, check=True)
    return int(said.stdout)


def test_what_holds_while_forward_is_compiled_holds_while_backward_is(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are not chosen by timing, an error says what to do, and Ctrl-C in a terminal, which interrupts a group of
    processes, does not reach the compiler: one that ended of it would leave no step to be saved, or another."""
    wrong, seen = ["forward", "backward"], []

    def compiler(of: str) -> Any:
        def compiling(graph: Any, *_: Any) -> Any:
            seen.append((of, inductor.deterministic, group_of_a_child() == os.getpgid(0)))
            if of in wrong:
                wrong.remove(of)
                raise InductorError(ValueError("no compiler was found"), None)
            return make_boxed_func(graph)
        return compiling

    through(aot_autograd(fw_compiler=compiler("forward"), bw_compiler=compiler("backward")), monkeypatch)
    for _ in wrong[:]:
        torch._dynamo.reset()
        with pytest.raises(UnsupportedError, match="no compiler was found"):
            trained(tmp_path, LSTM, 1, compute_settings={"compile": True})
        assert not inductor.deterministic and group_of_a_child() == os.getpgid(0), "outside all is as ever"
    torch._dynamo.reset()
    trained(tmp_path, LSTM, 1, compute_settings={"compile": True})
    assert not inductor.deterministic and group_of_a_child() == os.getpgid(0)
    assert seen == [(of, True, False) for of in ("forward", "forward", "backward", "forward", "backward")]


def test_ctrl_c_in_a_later_step_of_compiled_training_saves_it_and_the_run_goes_on_to_the_same_weights(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of the third step, when the graph has long been made."""
    through("eager", monkeypatch)
    changes = ["training.compute.compile=true", "report.keep=3", "model.blocks=[{kind: pre, layers: [mlp]}]"]
    run = parse_run(tiny_run(tmp_path, LSTM, steps=5).dump(), changes)
    train(run, tmp_path / "whole")
    real, steps = module.add_gradients, []

    def interrupted(*args: Any, **options: Any) -> Any:
        steps.append(len(steps) + 1)
        if len(steps) == 3:
            signal.raise_signal(signal.SIGINT)
        return real(*args, **options)

    monkeypatch.setattr(module, "add_gradients", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "run")
    assert steps == [1, 2, 3] and [each.name for each in saved_checkpoints(tmp_path / "run")] == ["00000003"]
    train(run, tmp_path / "run", resume=True)
    assert steps == [1, 2, 3, 4, 5]
    assert same_weights(*(load_checkpoint(tmp_path / name).model for name in ("whole", "run")))


def test_the_route_holds_in_a_step_and_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    real = module.add_gradients

    def watched(*args: Any, **options: Any) -> Any:
        assert ROUTING.routes is not None
        seen.append((ROUTING.routes.otherwise, torch.get_num_threads()))
        return real(*args, **options)

    monkeypatch.setattr(module, "add_gradients", watched)
    threads = torch.get_num_threads()
    chosen = replace(Compute.choose(ComputeSettings(matmul="default")), matmul="onednn", threads=threads + 1)
    trained(tmp_path, LSTM, 1, compute=chosen)
    assert seen == [("onednn", threads + 1)]
    assert (ROUTING.routes, torch.get_num_threads()) == (None, threads)
