"""A task of a user's own, as one file: which letters are vowels, by a head that gives each token its classes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tasks.task_runs import ENCODER, lines_file
from weft.core.errors import ConfigError
from weft.core.model import Classifier, EncoderInputs, Model, ModelState
from weft.core.span import Span
from weft.data import Batch, TokenStream
from weft.data.batches import MadeOfText
from weft.data.settings import DataSettings
from weft.tasks import BatchSums, Count, Material, Rows, Task, TaskConfig, TaskSettings, Validation
from weft.tasks.text import TextColumns, text_batches, text_columns
from weft.tasks.token_streams import HeldOut, held_out_text, text_material
from weft.tokenizers import Tokenizer
from weft.tokenizers.config import TokenizerConfig
from weft.training import RunConfig, parse_run, train

VOWELS = torch.tensor([letter in "aeiou" for letter in map(chr, range(256))] + [False]).long()


class VowelsConfig(TaskConfig):
    """Tell vowels from other bytes."""

    kind: ClassVar[str] = "test_vowels"

    def create(self, settings: TaskSettings) -> Vowels:
        return Vowels(self, settings)


class Vowels(Task[VowelsConfig, TokenStream, TextColumns]):
    """Every byte is an example of its own."""

    def problems(self, model: Model) -> list[str]:
        fits = isinstance(model.head, Classifier) and not model.head.pooled and model.head.n_outputs == 2
        return [*super().problems(model), *([] if fits else ["model.head: Give {kind: per_token, n_classes: 2}."])]

    def material(self, data: DataSettings, tokenizer: TokenizerConfig) -> Material[TokenStream]:
        return text_material(data, tokenizer)

    def held_out(self, data: DataSettings, tokenizer: Tokenizer, part: HeldOut = "validation") -> TokenStream:
        return held_out_text(data, tokenizer, part)

    def batches(self, examples: TokenStream) -> MadeOfText[Rows[TextColumns]]:
        return MadeOfText(text_batches(self.settings, examples), self._rows)

    def _rows(self, batch: Batch) -> Rows[TextColumns]:
        return Rows(text_columns(batch), Count(*batch.inputs.shape[:1], batch.inputs.size))

    def loss(self, model: Model, columns: TextColumns, state: ModelState | None) -> BatchSums:
        found = F.cross_entropy(self._scores(model, columns.inputs), VOWELS[columns.inputs].flatten(), reduction="sum")
        return BatchSums(found.detach(), found)

    def _scores(self, model: Model, tokens: Tensor) -> Tensor:
        assert isinstance(model.head, Classifier)
        out = model.vectors(EncoderInputs(tokens=tokens))
        return model.head.scores(out.y, Span()).flatten(0, 1)

    def guess(self, model: Model) -> float:
        return float(np.log(2))

    @torch.no_grad()
    def measure(self, model: Model, examples: TokenStream, batches: int | None = None) -> Validation:
        tokens = torch.from_numpy(examples.tokens[:examples.tokens.size // 8 * 8].astype(np.int64)).view(-1, 8)
        scores, wanted = self._scores(model, tokens), VOWELS[tokens].flatten()
        right = float((scores.argmax(-1) == wanted).float().mean())
        return Validation(None, float(F.cross_entropy(scores, wanted)), len(wanted), 0, "every byte once",
                          {"accuracy": right}, "accuracy", rising=True, unit="byte")


def run_of(folder: Path, head: Any) -> RunConfig:
    run = parse_run({"model": {**ENCODER, "head": head}, "data": {"path": str(lines_file(folder))},
                     "training": {"steps": 40, "batch_size": 8, "accumulation": 2, "optimizer": {"lr": 3e-2},
                                  "compute": {"matmul": "default"}}, "report": {"eval_every": 10, "keep": 9}})
    return run.model_copy(update={"task": VowelsConfig()})


def test_it_learns_and_chooses_by_its_own_measure(tmp_path: Path) -> None:
    run = run_of(tmp_path, {"kind": "per_token", "n_classes": 2})
    events: list[str] = []
    whole = train(run, tmp_path / "whole", on_event=lambda event: events.append(event.line()))
    assert whole.validation.measures["accuracy"] > 0.97
    assert any("loss 0." in line and "nats/token" in line and "bits/byte" not in line for line in events)
    assert any("accuracy 0." in line or "accuracy 1." in line for line in events)
    accuracies = [float(line.split("accuracy ")[1].split()[0]) for line in events if "accuracy" in line]
    assert int(whole.best.name) == 10 * (1 + accuracies.index(max(accuracies)))
    # The tasks of a record are found in the registry, where this one is not: the same process goes on without.
    with pytest.raises(ConfigError, match=r"task\.kind: no task of kind 'test_vowels'"):
        train(run, tmp_path / "whole", resume=True)


def test_a_model_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.head: Give \{kind: per_token, n_classes: 2\}"):
        train(run_of(tmp_path, "masked_token"), tmp_path / "run")


class ListedConfig(VowelsConfig):
    """Tell vowels, from a list of rows."""

    kind: ClassVar[str] = "test_listed"

    def create(self, settings: TaskSettings) -> Vowels:
        return Listed(self, settings)


class Listed(Vowels):
    """Its batches are a list."""

    def batches(self, examples: TokenStream) -> Any:
        return [super().batches(examples).batch(0)]


@pytest.mark.parametrize("budget", [{"steps": 2}, {"steps": None, "tokens": 64}, {"steps": None, "epochs": 1}])
def test_batches_that_are_no_source_of_batches_are_refused(budget: dict[str, int | None], tmp_path: Path) -> None:
    run = run_of(tmp_path, {"kind": "per_token", "n_classes": 2})
    run = run.with_(training=budget).model_copy(update={"task": ListedConfig()})
    with pytest.raises(ConfigError, match=r"task: the batches of 'test_listed' are of the class list\. Let its method "
                                          r"`batches` return an object of a subclass of weft\.data\.BatchSource"):
        train(run, tmp_path / "run")
    assert not (tmp_path / "run").exists() or not any((tmp_path / "run").rglob("*.safetensors"))


@pytest.mark.parametrize(("base", "name", "told"), [
    (Vowels, "given", "It comes with the rows: the batches give weft.tasks.Rows"),
    (Vowels, "count", "It comes with the rows: the batches give weft.tasks.Rows"),
    (Vowels, "unit", "Return it as a field of weft.tasks.TaskDeclared from the method `declares`"),
    (Vowels, "name", "A task is called by the kind of its configuration"),
    (Vowels, "notice", "It is asked of the batches: give it as a property of a weft.data.BatchSource"),
    (Vowels, "fit", "Inherit from weft.tasks.protocols.FitsByCounting too"),
    (Vowels, "compared", "Inherit from weft.tasks.protocols.ComparesWithStart too"),
    (VowelsConfig, "labels", "Inherit from weft.tasks.protocols.HasClasses too"),
    (VowelsConfig, "mixes", "Return it as a field of weft.tasks.TaskDeclared from the method `declares`"),
    (VowelsConfig, "source", "Give it as a field of weft.core.part_config.About in the attribute `about`"),
    (VowelsConfig, "acts", "It is read of position schemes alone"),
    (VowelsConfig, "in_words", "Inherit from weft.core.part_config.ModuleConfig too")])
def test_a_name_that_would_not_be_read_is_refused_with_where_it_belongs(base: type, name: str, told: str) -> None:
    """Also the names that tasks had before, so that a task of that form says what to do."""
    with pytest.raises(TypeError, match=rf"Deaf: {name} would not be read\. {re.escape(told)}"):
        type("Deaf", (base,), {name: lambda self: ()})
