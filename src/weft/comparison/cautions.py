"""Facts that make figures of models less comparable than they look: how each was trained, what it began with, what of
the test text was seen before, and what its tokenizer loses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.checkpoints.load import read_run
from weft.comparison.contestants import Contestant
from weft.comparison.results import StudyModel
from weft.comparison.study_result import Setting
from weft.core.base_model import built_empty
from weft.core.errors import CheckpointError
from weft.data import Corpus, repeated
from weft.tasks.token_streams import training_text
from weft.training.config import RunConfig
from weft.training.parameter_groups import labelled

DECAY = "weight decay by kind of parameter"
APART = ("lr", "weight_decay", "groups", "kind")
"""Fields of an optimizer that stand in other rows, or are what trials choose."""


def settings_of(models: Sequence[Contestant], device: str) -> tuple[Setting, ...]:
    """How the models that gradients train are trained, a row for each setting that a configuration decides."""
    trained = [each for each in models if each.trained]
    if not trained:
        return ()
    rows = [_settings(each.run, device) for each in trained]
    names = [each.name for each in trained]
    decays = [_decays(each.run) for each in trained]
    # Kinds of parameters decay alike in every model that has them.
    alike = all(len({found[kind] for found in decays if kind in found}) == 1 for kind in set().union(*decays))
    return (*(Setting(key, len({row[key] for row in rows}) == 1, tuple(zip(names, [row[key] for row in rows],
                                                                            strict=True))) for key in rows[0]),
            Setting(DECAY, alike, tuple(zip(names, map(_listed, decays), strict=True))))


def _settings(run: RunConfig, device: str) -> dict[str, str]:
    training = run.training
    optimizer = {key: value for key, value in training.optimizer.model_dump(mode="json").items() if key not in APART}
    schedule = {key: value for key, value in training.schedule.model_dump(mode="json").items() if key != "kind"}
    average = None if training.average is None else training.average.model_dump(mode="json", exclude_defaults=True)
    return {"optimizer": f"{training.optimizer.kind} {_listed(optimizer)}".strip(),
            "schedule": f"{training.schedule.kind} {_listed(schedule)}".strip(),
            "precision": str(training.dtype_on(device)).removeprefix("torch."),
            "averaged weights": "none" if average is None else _listed(average) or "as by default",
            "largest norm of the gradients": "not limited" if training.clip_norm is None else f"{training.clip_norm:g}",
            "dropout": ", ".join(sorted(set(_dropouts(run.model.dump())))) or "none",
            "objective": _listed(training.objective.model_dump(mode="json", exclude_defaults=True)) or "cross-entropy"}


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
                     for key, value in values.items())


def _dropouts(place: Any, key: str = "") -> Iterator[str]:
    """Every kind of dropout that a configuration has, with its rate."""
    if isinstance(place, Mapping):
        for name, inner in place.items():
            yield from _dropouts(inner, name)
    elif isinstance(place, list):
        for inner in place:
            yield from _dropouts(inner, key)
    elif "drop" in key and isinstance(place, int | float) and place:
        yield f"{key} {place:g}"


def _decays(run: RunConfig) -> dict[str, float]:
    """The weight decay of each kind of parameter that the model has; the largest where groups by name divide one."""
    model, optimizer = built_empty(run.model), run.training.optimizer
    kinds = {id(each.parameter): each.kind for each in labelled(model)}
    found: dict[str, float] = {}
    for group in optimizer.parameter_groups(model, float(optimizer.model_dump().get("weight_decay") or 0.0)):
        for parameter in group["params"]:
            kind = kinds[id(parameter)]
            found[kind] = max(found.get(kind, 0.0), float(group["weight_decay"]))
    return dict(sorted(found.items()))


def beginnings(models: Sequence[Contestant], test: Corpus) -> tuple[str, ...]:
    """Sentences about trained weights with which all models begin, and whether the text behind them has test text."""
    said = []
    for start in dict.fromkeys(each.run.start for each in models if each.trained and each.run.start is not None):
        names = ", ".join(each.name for each in models if each.trained and each.run.start == start)
        said.append(f"{names}: not trained from random weights, but from those of {Path(start).name}, whose training "
                    f"stands in no budget; {_seen(start, test)}.")
    return tuple(said)


def _seen(start: str, test: Corpus) -> str:
    try:
        run = read_run(start)
    except CheckpointError:
        run = None
    text = None if run is None else training_text(run.get("data") or {})
    if text is None:
        return ("the text behind them is not recorded, or no longer lies where it was, so that it may hold the test "
                "text")
    return f"of the test text, {repeated(test, text).describe().replace('the training text', 'the text behind them')}"


def seen(documents: int, of: int, share: float) -> str:
    """A sentence about test text that stands in the training text, too."""
    return (f"{documents:,} of the {of:,} documents of the test text stand in the training text, too"
            + (f" ({share:.1%} of the test text does)" if share else "")
            + ": every figure is of text that was partly seen.")


def lost_text(entries: Sequence[StudyModel]) -> Iterator[str]:
    """A sentence about each model whose tokenizer loses text."""
    for entry in entries:
        paid = max((run.lost_bits_per_byte for run in entry.finished), default=0.0)
        if paid >= 0.00005:
            yield (f"{entry.name}: {paid:.4f} of its bits per byte are paid for text that its tokenizer loses (unknown "
                   "words, capitals, white space), by a code that knows nothing of the language; a better one could "
                   "ask less.")
