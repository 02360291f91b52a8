"""Extension to longer contexts: what is rescaled, what is measured, what is refused."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from weft import api
from weft.checkpoints import Loaded
from weft.core.config import parse_part
from weft.core.errors import CheckpointError, ConfigError, DataError, InputError, UnsupportedError
from weft.core.model import LanguageModel, ModelConfig, parse_model
from weft.core.span import Span
from weft.data import TokenStream
from weft.disk.lock import held
from weft.evaluation import evaluate
from weft.extending import lengths as lengths_module
from weft.extending.extend import Measuring, extend, search
from weft.extending.lengths import beyond, doubled, part_of
from weft.extending.scaling import FIXED, METHODS, frequencies, longrope, rescaled, with_weights
from weft.tokenizers import ByteTokenizer

MEASURED = Measuring(tokens=300, batch_tokens=256, search=5)


def config_of(position: Any = "rope", **fields: Any) -> ModelConfig:
    attention = {"kind": "attention", "n_heads": 2, "position": position}
    nested = {"kind": "pre", "layers": [attention, {"kind": "glu", "d_ff": 16}]}
    found = parse_part(("model",), {"kind": "decoder", "vocab_size": 257, "d_model": 16, "context": 16,
                                    "blocks": [nested, {"repeat": 2, "of": [nested]}], **fields})
    assert isinstance(found, ModelConfig)
    return found


def loaded_of(config: ModelConfig, run: dict[str, Any] | None = None) -> Loaded:
    torch.manual_seed(0)
    model = config.build()
    assert isinstance(model, LanguageModel)
    return Loaded(model.eval(), ByteTokenizer(), config, run, {}, Path("memory"))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "one.txt"
    path.write_text("".join(f"line {i} of {i * 7919 % 1009}\n" for i in range(120)))
    return path


def stream(text: Path) -> TokenStream:
    from weft.tasks.token_streams import text_stream

    return text_stream(text, ByteTokenizer())


def test_interpolation_by_s_is_the_model_at_positions_s_times_as_large() -> None:
    model = loaded_of(config_of()).model
    longer = with_weights(rescaled(model.config, 64, FIXED["linear"](16, 64)), model)
    tokens, places = torch.randint(257, (2, 12)), torch.arange(12.0).expand(2, -1)
    apart = longer.hidden(tokens, span=Span(coordinates=4 * places)).y
    assert_close(apart, model.hidden(tokens, span=Span(coordinates=places)).y, rtol=1e-5, atol=1e-6)
    assert longer.config.context == 64


@pytest.mark.parametrize("method", METHODS)
def test_every_rotary_position_is_rescaled_and_read_back(method: str, text: Path, tmp_path: Path) -> None:
    loaded = loaded_of(config_of())
    found = extend(loaded, stream(text), tmp_path / "out", context=64, method=method,
                   measuring=MEASURED if method == "longrope" else replace(MEASURED, search=None))
    saved = api.load(tmp_path / "out/rescaled")
    plain = json.dumps(saved.config.dump())
    assert plain.count(f'"scaling": {{"kind": "{method}"') == plain.count('"kind": "rope"') == 2
    assert parse_model(saved.config.dump()).context == 64 and loaded.config.dump() == config_of().dump()
    kept = loaded.model.state_dict()
    assert all(torch.equal(kept[name], tensor) for name, tensor in saved.model.state_dict().items())
    before, after = found.stages
    assert (found.lengths, before.name, after.name) == ((8, 16, 32, 64), "before", "rescaled")
    counted = part_of(stream(text), len(stream(text)) - 300, len(stream(text)))
    for stage, model in ((before, loaded), (after, saved)):
        for length, own in zip(found.lengths, stage.evaluations, strict=True):
            other = evaluate(model.model, counted, context=length, stride=length // 2)
            assert own.nats == pytest.approx(other.nats, rel=1e-5) and own.tokens == 299
    assert before.evaluations[3].nats != after.evaluations[3].nats
    assert json.loads((tmp_path / "out/result.json").read_text())["lengths"] == [8, 16, 32, 64]


def test_longrope_is_unscaled_up_to_the_trained_length(text: Path, tmp_path: Path) -> None:
    found = extend(loaded_of(config_of()), stream(text), tmp_path / "out", context=64, method="longrope",
                   measuring=MEASURED)
    factors = found.scaling["long_factor"]
    assert factors == sorted(factors) and len(factors) == 4 and found.scaling["short_factor"] == [1.0] * 4
    assert found.scaling["attention_factor"] is None and found.scaling["extended_length"] == 64


def test_the_search_finds_the_cheapest_list_that_does_not_decrease() -> None:
    wanted, asked = (1.0, 1.3, 2.5, 4.9), []

    def cost(factors: tuple[float, ...]) -> float:
        asked.append(factors)
        return sum((a - b) ** 2 for a, b in zip(factors, wanted, strict=True))

    seeds = [(4.0,) * 4, (1.0, 1.6, 2.5, 4.0)]
    found = search(seeds, 4.0, cost, evaluations=400, seed=1)
    assert asked[:2] == seeds and len(asked) == len(set(asked)) == 400
    assert cost(found) == min(map(cost, set(asked))) < 0.1 < cost(seeds[1])
    assert all(list(each) == sorted(each) and each[0] >= 1 and each[-1] <= 5 for each in asked)
    assert found == search(seeds, 4.0, cost, evaluations=400, seed=1)
    assert search([(1.0,)], 1.0, lambda factors: 0.0, evaluations=9, seed=0) == (1.0,), "no further list"


def test_factors_of_the_fixed_scalings_seed_the_search() -> None:
    model = loaded_of(config_of()).model
    own = frequencies(model)
    assert own == pytest.approx([1, 10000 ** -0.25, 0.01, 10000 ** -0.75])
    linear = frequencies(with_weights(rescaled(model.config, 64, FIXED["linear"](16, 64)), model))
    assert [a / b for a, b in zip(own, linear, strict=True)] == pytest.approx([4.0] * 4)
    ntk = frequencies(with_weights(rescaled(model.config, 64, FIXED["ntk"](16, 64)), model))
    assert [a / b for a, b in zip(own, ntk, strict=True)] == pytest.approx([4 ** (2 * i / 6) for i in range(4)])
    assert longrope(16, 64, (1.0,) * 4).amplitude() == pytest.approx(math.sqrt(1 + math.log(4) / math.log(16)))


def test_lengths_double_up_to_the_context() -> None:
    assert doubled(16, 64) == (8, 16, 32, 64)
    assert doubled(16, 50) == (8, 16, 32, 50)
    assert doubled(1, 3) == (1, 2, 3)


def test_tokens_beyond_the_trained_context_are_those_so_far_into_their_document(text: Path) -> None:
    whole = stream(text)
    cut = part_of(whole, 5, 105)
    assert len(cut) == 100 and beyond(cut, 30) == pytest.approx(0.7)
    halves = replace(cut, begins=cut.begins | (torch.arange(100).numpy() == 50))
    assert beyond(halves, 30) == pytest.approx(0.4) and beyond(halves, 50) == 0
    assert cut.tokens.tolist() == whole.tokens[5:105].tolist() and cut.begins[0]


def test_a_brief_training_follows(text: Path, tmp_path: Path) -> None:
    run = {"model": config_of().dump(), "tokenizer": "bytes", "data": {"path": str(text)},
           "training": {"steps": 3, "batch_size": 8, "optimizer": {"lr": 1e-2}}, "report": {"eval_batches": 1}}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run))
    trained = api.train(path, out=tmp_path / "run")
    found = api.extend(trained.checkpoint, tmp_path / "out", context=48, method="linear", data=text, steps=3,
                       overrides=["training.optimizer.beta1=0.8"], measuring=replace(MEASURED, search=None))
    assert [stage.name for stage in found.stages] == ["before", "rescaled", "tuned"]
    assert found.tuning == {"steps": 3, "tokens_per_step": 144, "learning_rate": pytest.approx(1e-3)}
    tuned = api.load(found.checkpoint)
    assert tuned.run is not None and tuned.config.context == 48 and found.checkpoint.is_relative_to(tmp_path / "out")
    optimizer = tuned.run["training"]["optimizer"]
    assert (optimizer["beta1"], optimizer["lr"], tuned.run["training"]["batch_size"]) == (0.8, pytest.approx(1e-3), 3)
    assert tuned.run["start"] == str(tmp_path / "out/rescaled")
    started = api.load(tmp_path / "out/rescaled").model.state_dict()
    assert any(not torch.equal(started[name], tensor) for name, tensor in tuned.model.state_dict().items())


def test_what_cannot_be_extended_is_refused_before_anything_is_written(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def refused(error: type[Exception], match: str, config: ModelConfig | None = None, **options: Any) -> None:
        with pytest.raises(error, match=match):
            extend(loaded_of(config or config_of()), options.pop("text", stream(text)), out,
                   **{"context": 64, "measuring": replace(MEASURED, search=None), **options})
        assert not out.exists()

    refused(InputError, r"unknown method 'yarm'\. Did you mean 'yarn'", method="yarm")
    refused(InputError, "16 tokens are no more than the model's context of 16", context=16)
    refused(UnsupportedError, "no rotary positions, .* weft eval --lengths", config_of("alibi"))
    refused(UnsupportedError, "already scaled, by linear",
            config_of({"kind": "rope", "scaling": {"kind": "linear", "factor": 2}}))
    refused(UnsupportedError, "also has a table of 16 positions",
            parse_model({**config_of().dump(), "position": "learned"}))
    refused(InputError, "the method 'yarn' has no search, so it cannot have 5 evaluations", measuring=MEASURED)
    refused(InputError, "400 tokens of context cannot be measured on 300", measuring=replace(MEASURED, search=None,
                                                                                    lengths=(8, 400)))
    short = part_of(stream(text), 0, 200)
    short = replace(short, begins=torch.arange(200).numpy() % 16 == 0)
    refused(DataError, "none of the 200 tokens measured is farther into its document than the trained context, 16",
            text=short)
    refused(InputError, "the checkpoint records no run", tuning=["training.steps=1"])
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds mine\.txt, and no extension"):
        extend(loaded_of(config_of()), stream(text), out, context=64, measuring=replace(MEASURED, search=None))
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


class Killed(BaseException):
    """Stands for a signal that ends the process."""


class Stopping:
    """Stops the process at the replacement of a file or folder after ``left`` others, and counts evaluations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.evaluated = 0, 0
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))
        monkeypatch.setattr(lengths_module, "evaluate", self._evaluate)

    def _counted(self, move: Callable[..., None]) -> Callable[..., None]:
        def moved(source: Any, target: Any) -> None:
            if not self.left:
                raise Killed
            self.left -= 1
            move(source, target)
        return moved

    def _evaluate(self, *args: Any, **options: Any) -> Any:
        self.evaluated += 1
        return evaluate(*args, **options)


def files_of(folder: Path) -> dict[str, str]:
    """The contents of an extension's results and weights by name: other files hold seconds, in which any two runs
    differ."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    kept = {name: content for name, content in found.items()
            if name in ("extension.json", "result.json") or name.endswith("model.safetensors")}
    return {name: content.replace(str(folder).encode(), b"OUT").decode("latin-1") for name, content in kept.items()}


@pytest.mark.parametrize(("method", "steps"), [("yarn", 2), ("longrope", None)])
def test_an_extension_stopped_at_any_moment_goes_on_to_the_same_files(
        method: str, steps: int | None, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped at the first replacement of a file or folder, gone on with, stopped again, and so on; four times each
    after one, two and more replacements."""
    run = {"model": config_of().dump(), "tokenizer": "bytes", "data": {"path": str(text)},
           "training": {"steps": 2, "batch_size": 8}, "report": {"eval_batches": 1}}
    (tmp_path / "run.json").write_text(json.dumps(run))
    trained = api.load(api.train(tmp_path / "run.json", out=tmp_path / "run").checkpoint)
    def extended(out: Path) -> Any:
        return api.extend(trained, out, context=32, method=method, data=text, steps=steps,
                          measuring=MEASURED if method == "longrope" else replace(MEASURED, search=None))

    whole = extended(tmp_path / "whole")
    stopping, out, stops, found = Stopping(monkeypatch), tmp_path / "out", 0, None
    while found is None:
        stopping.left = stops // 4 + 1
        try:
            found = extended(out)
        except Killed:
            stops += 1
    assert stops >= 6
    assert files_of(out) == files_of(tmp_path / "whole") and len(files_of(out)) == (3 if steps is None else 4)
    assert replace(found, path=whole.path, checkpoint=whole.checkpoint) == whole
    assert stopping.evaluated <= 3 * 3 + stops, "what had been measured was measured again"
    again, stopping.left = stopping.evaluated, 10 ** 9
    assert extended(out) == found and stopping.evaluated == again


def test_an_extension_goes_on_only_as_it_began(text: Path, tmp_path: Path) -> None:
    out, how = tmp_path / "out", replace(MEASURED, search=None)
    loaded = loaded_of(config_of())
    extend(loaded, stream(text), out, context=64, measuring=how)
    record = (out / "extension.json").read_text()
    with pytest.raises(ConfigError, match=r"context: 48, and the extension in .* began with 64"):
        extend(loaded, stream(text), out, context=48, measuring=how)
    torch.manual_seed(1)
    other = config_of().build().eval()
    with pytest.raises(ConfigError, match="weights: "):
        extend(replace(loaded, model=other), stream(text), out, context=64, measuring=how)
    (out / "extension.json").write_text(record[:-20])
    with pytest.raises(CheckpointError, match=r"record of the extension cannot be read .*Put it back"):
        extend(loaded, stream(text), out, context=64, measuring=how)
    with held(out, "extending a model"), pytest.raises(ConfigError, match="another process"):
        extend(loaded, stream(text), out, context=64, measuring=how)


def test_changes_without_a_training_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="changes to the training, and no training was requested"):
        api.extend(loaded_of(config_of()), tmp_path / "out", context=64, overrides="training.optimizer.lr=1")
