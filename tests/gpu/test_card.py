"""The speed of a card, measured with a clock that is made up; and the memory that training needs there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import weft
from weft.analysis.gpu_speed import CardSpeed, card_speed
from weft.core.base_model import built_empty
from weft.core.model import parse_model
from weft.gpu.memory import TrainingWork, largest_batch, room_problems, training_need
from weft.training.precision import narrowed

MODEL: dict[str, Any] = {"kind": "decoder", "vocab_size": 8, "d_model": 64, "context": 32, "norm": "rmsnorm",
                         "blocks": [{"repeat": 2, "of": [{"kind": "pre", "norm": "rmsnorm", "layers": [
                             {"kind": "attention", "n_heads": 4, "position": "rope"}, {"kind": "glu", "d_ff": 128}]}]}]}
CARD = torch.device("cuda")


def work(rows: int = 8, *, narrow: bool = True, recompute: bool = False) -> TrainingWork:
    model = built_empty(parse_model(MODEL))
    return TrainingWork(model, (lambda each: narrowed(each, torch.bfloat16)) if narrow else None, rows, 32,
                        recompute=recompute)


def test_rates_follow_from_the_seconds() -> None:
    def halves(run: Callable[[], object]) -> float:
        run()
        return 0.5

    before = torch.get_float32_matmul_precision()
    found = card_speed(torch.device("cpu"), size=16, copied=64, launches=5, timer=halves)
    assert found.products == dict.fromkeys(("bfloat16", "float16", "tf32", "float32"), 2 * 16**3 / 0.5)
    assert (found.copy, found.launch) == (2 * 64 / 0.5, 0.1) and found.graph is None and found.in_graph is None
    assert torch.get_float32_matmul_precision() == before


def test_what_is_held_all_the_time_is_counted_by_weights() -> None:
    """512 bytes are the allocator's least piece, by which small weights take more than their numbers."""
    numbers = sum(p.numel() for p in built_empty(parse_model(MODEL)).parameters())
    found = training_need(work())
    for own, each in ((found.weights, 4), (found.copy, 2), (found.gradients, 4), (found.optimizer, 8)):
        assert each * numbers <= own <= each * numbers + 8192 + 2 * each * 64
    assert training_need(work(narrow=False)).copy == 0
    plain = training_need(replace(work(), moments=0))
    assert plain.optimizer == 0 and found.total - plain.total == found.optimizer
    assert found.total >= found.weights + found.copy + found.optimizer + found.step


def test_what_lives_at_once_is_counted() -> None:
    """Two of three tensors of 4 KiB live at once; a view takes nothing, and 4 bytes take the least piece."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from weft.gpu.memory import _Alive

    mode = FakeTensorMode()
    with mode:
        x = torch.empty(1024)
    with mode, _Alive({x.untyped_storage()._cdata}) as alive:
        y = x * 2
        z = y + 1
        del y
        last = (z * 3).view(32, 32)
        assert (alive.now, alive.most) == (8192, 8192)
        del z
        total = last.sum()
        assert (alive.now, alive.most, total.shape) == (4096 + 512, 8192, ())


def test_a_step_grows_with_every_row_by_the_same_bytes() -> None:
    steps = {rows: training_need(work(), rows).step for rows in (128, 256, 512)}
    assert steps[512] - steps[256] == pytest.approx(2 * (steps[256] - steps[128]), rel=0.02)
    assert training_need(work(recompute=True), 256).step < steps[256]


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    there = training_need(work(), 700).total
    assert abs(largest_batch(work(), there) - 700) <= 2
    most = largest_batch(work(), there + (1 << 20))
    assert training_need(work(), most).total <= there + (1 << 20) < training_need(work(), most + 4).total
    assert largest_batch(work(), training_need(work(), 1).total // 2) == 0


def test_a_run_that_does_not_fit_is_refused_with_the_batch_that_does() -> None:
    needed = training_need(work(512)).total
    (problem,) = room_problems(work(512), CARD, free=needed // 2 + (20 << 20))
    most = largest_batch(work(512), needed // 2 + (20 << 20))
    assert f"give training.batch_size: {most}," in problem and "512 rows of 32 tokens need about" in problem
    assert "checkpoint_activations" in problem
    assert "checkpoint_activations" not in room_problems(work(512, recompute=True), CARD, free=1 << 20)[0]
    assert "Not even one row fits" in room_problems(work(512), CARD, free=1 << 20)[0]
    assert room_problems(work(512), CARD, free=needed) == [] == room_problems(work(512), torch.device("cpu"), free=1)


def test_a_run_is_refused_before_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the check that every run passes, on a card that has this many bytes free."""
    from weft.core.errors import ConfigError
    from weft.gpu import memory
    from weft.training import parse_run
    from weft.training.parallel import World
    from weft.training.requirements import require_trainable

    run = parse_run({"model": MODEL, "training": {"steps": 1, "batch_size": 512}})
    needed = training_need(work(512)).total
    monkeypatch.setattr(memory, "free_bytes", lambda device: needed)
    require_trainable(run, built_empty(run.model), World(CARD))
    monkeypatch.setattr(memory, "free_bytes", lambda device: needed // 2 + (20 << 20))
    with pytest.raises(ConfigError, match=r"At most \d+ rows fit: give training\.batch_size"):
        require_trainable(run, built_empty(run.model), World(CARD))


def test_a_step_that_cannot_be_tried_counts_as_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What must be there in any case is counted still."""
    def broken(*_: Any) -> int:
        raise RuntimeError("an operation that needs numbers")

    monkeypatch.setattr("weft.gpu.memory._alive_in_step", broken)
    found = training_need(work())
    assert found.step == 0 and found.total > found.weights + found.copy + found.optimizer
    assert room_problems(work(), CARD, free=1 << 40) == []
    assert "Not even one row fits" in room_problems(work(), CARD, free=1 << 10)[0]


def test_a_plan_on_a_gpu_counts_its_memory_and_its_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    speed = CardSpeed("cuda", {"bfloat16": 1e12, "float32": 1e11}, 1e10, 1e-6, None, None)
    monkeypatch.setattr("weft.api.examining.require_device", torch.device)
    monkeypatch.setattr("weft.gpu.memory.card_speed", lambda _: speed)
    monkeypatch.setattr("weft.gpu.memory.free_bytes", lambda _: 64 << 20)
    found = weft.plan({"model": MODEL, "training": {"batch_size": 8, "context": 32}}, here=True, device="cuda")
    assert found.dtype == "bfloat16" and found.here is not None
    assert (found.here.rate, found.here.bandwidth, found.here.machine_memory) == (1e12, 1e10, 64 << 20)
    assert found.here.train.memory == training_need(work()).total and found.here.train.fits
    most = largest_batch(work(), 64 << 20)
    assert f"On cuda 0.1 GiB are free: a batch of at most {most:,} rows of 32 tokens" in found.here.assumptions[0]
    less = {"model": MODEL, "training": {"batch_size": 8, "context": 32, "compute": {"checkpoint_activations": True}}}
    again = weft.plan(less, here=True, device="cuda").here
    assert again is not None and again.train.memory < found.here.train.memory
    plain = weft.plan({"model": MODEL}, here=True, dtype="float32", device="cuda").here
    assert plain is not None and plain.rate == 1e11
