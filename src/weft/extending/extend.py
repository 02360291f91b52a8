"""`extend`: a trained model is adapted to a longer context, and its perplexity measured at every length before and
after.

The search for LongRoPE's factors: an evolutionary search over non-decreasing lists.

Ding et al. 2024, section 3.2 and algorithm 1. The paper also searches for a number of first tokens whose positions are
not scaled. That is omitted here, as in the released models, whose configurations have no such number.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from weft.checkpoints import Loaded
from weft.checkpoints.save import save_checkpoint
from weft.checkpoints.tensors import own_tensors, tensors_digest
from weft.core.errors import InputError
from weft.core.model import LanguageModel, ModelConfig, language_model
from weft.core.strict_json import Record, build, dumps, number
from weft.data import TokenStream
from weft.disk.atomic import write_file
from weft.disk.lock import LOCK_FILE
from weft.disk.manifest import has_manifest
from weft.evaluation import Evaluation, evaluate
from weft.extending.folder import RESCALED, RESULT, TUNED, Once, extension_folder
from weft.extending.lengths import Stage, doubled, measure, part_of, require_lengths, require_long
from weft.extending.scaling import (
    FIXED,
    SEARCHED,
    built,
    frequencies,
    longrope,
    require_extensible,
    rescaled,
    with_weights,
)
from weft.positions.frequencies import RopeScalingConfig
from weft.training.config import BUDGETS, RunConfig
from weft.training.events import Event, Notice
from weft.training.files import parse_run
from weft.training.folder import RUN_FILE
from weft.training.run_training import train

Factors: TypeAlias = tuple[float, ...]
Cost: TypeAlias = Callable[[Factors], float]

MUTATION = 0.3
"""Probability that a mutation replaces a factor by a random one."""
LARGEST = 1.25
"""Random factors are between 1 and this multiple of the scale (table 4)."""
STEP = 0.01
"""Random factors are multiples of this (table 4)."""
PARENTS = 8
"""Number of the best lists so far from which new ones are derived. The paper's search derives 32 lists from 32 parents
in each of 40 rounds; this one derives one at a time, so that few evaluations already use what the others showed."""
TRIES = 100
"""Attempts to derive a list not evaluated before, after which the search ends: with few pairs of features all lists may
have been evaluated."""


def search(seeds: Sequence[Factors], scale: float, cost: Cost, *, evaluations: int, seed: int) -> Factors:
    """Return the list of factors with the least cost.

    Args:
        seeds: lists to begin with, one factor for each pair of features, from the fastest pair to the slowest.
        scale: s, the new length divided by the trained one.
        cost: the function to minimise, such as perplexity at the new length.
        evaluations: number of calls of ``cost``, at least one for each of the seeds.
        seed: seed of the random choices.
    """
    draw, costs = random.Random(seed), {}
    for factors in seeds:
        costs[factors] = cost(factors)
    while len(costs) < evaluations:
        parents = sorted(costs, key=costs.__getitem__)[:PARENTS]
        child = next((new for new in (_child(parents, scale, draw) for _ in range(TRIES)) if new not in costs), None)
        if child is None:
            break
        costs[child] = cost(child)
    return min(costs, key=costs.__getitem__)


def _child(parents: Sequence[Factors], scale: float, draw: random.Random) -> Factors:
    """Derive a list: with equal probability a mutation of one parent or a crossover of two."""
    first, second = draw.choice(parents), draw.choice(parents)
    if first != second and draw.random() < 0.5:
        made = [draw.choice(pair) for pair in zip(first, second, strict=True)]
    else:
        made = [_drawn(scale, draw) if draw.random() < MUTATION else factor for factor in first]
    # The paper rejects lists that decrease anywhere. Sorting the same factors gives a valid list without rejections.
    return tuple(sorted(made))


def _drawn(scale: float, draw: random.Random) -> float:
    steps = round((max(scale * LARGEST, 1.0) - 1) / STEP)
    return round(1 + STEP * draw.randint(0, steps), 2)


RATE = 0.1
"""The learning rate as a share of the run's own. After position interpolation Chen et al. 2023 train LLaMA 7B at 2e-5,
which Touvron et al. 2023 pretrained at 3e-4; that is a fifteenth."""
SCHEDULE = {"kind": "constant", "warmup": 0.02}
"""The learning-rate schedule: as in Chen et al. 2023, 20 warmup steps of 1000, then a constant rate."""


def run_with(loaded: Loaded, config: ModelConfig) -> dict[str, Any] | None:
    """Return the configuration of the run that trained the model, with another model in it; None if there was none."""
    if loaded.run is None:
        return None
    return {**loaded.run, "model": config.dump(), "training": {**loaded.run["training"], "context": None}}


def tuning_run(loaded: Loaded, start: Path, context: int, changes: Sequence[str]) -> RunConfig:
    """Return the run that trains the checkpoint ``start`` further, on the data, with the batch and by the optimiser of
    the run that trained the model.

    A step has as many tokens as in that run, rounded to whole rows of the new context.

    Args:
        loaded: the model before the extension.
        start: the checkpoint with the initial weights.
        context: length of a row, in tokens.
        changes: ``key=value``, the number of steps (``training.steps=50``) and others, such as ``data.path=books``.

    Raises:
        InputError: the checkpoint records no run.
        ConfigError: changes that are not valid.
    """
    if loaded.run is None:
        raise InputError("the checkpoint records no run, so the data for further training are unknown.",
                         where=str(loaded.path), remedy="Extend it without training, and train the "
                         "result by weft train with start: and data of your own.")
    original, old = loaded.run, loaded.run["training"]
    before = old.get("context") or loaded.config.context
    optimizer = {**old["optimizer"], "lr": old["optimizer"]["lr"] * RATE}
    settings = {**old, **dict.fromkeys(BUDGETS), "context": None, "optimizer": optimizer,
                "schedule": SCHEDULE, "batch_size": max(round(old["batch_size"] * before / context), 1)}
    plain = {key: value for key, value in original.items() if key != "model"}
    report = {**original["report"], "eval_every": None, "checkpoint_every": None, "log_every": None}
    return parse_run({**plain, "report": report, "training": settings, "start": str(start)}, changes,
                     where=str(loaded.path))


EVALUATIONS = 48
"""Default number of lists of factors that a search evaluates."""
SEARCH_TOKENS = 8192
"""Minimum length, in tokens, of the text on which factors are searched for."""

Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Extended(Record):
    """The result of an extension.

    Attributes:
        path: the folder, with the checkpoint ``rescaled`` and, after training, the run ``tuned``.
        checkpoint: the model to use: the trained one if there was training, otherwise the rescaled one.
        method: the method by which rotary positions were rescaled.
        scaling: the configuration of the scaling, with its numbers.
        trained: context of the model before, in tokens.
        context: context of the model now, in tokens.
        beyond: share of the measured tokens that are more than ``trained`` tokens into their document.
        lengths: contexts, in tokens, at which the stages were measured.
        stages: before, rescaled and, after training, tuned.
        tuning: number of training steps, tokens of each and learning rate; None without training.
    """

    path: Path
    checkpoint: Path
    method: str
    scaling: dict[str, Any]
    trained: int
    context: int
    beyond: float
    lengths: tuple[int, ...]
    stages: tuple[Stage, ...]
    tuning: dict[str, Any] | None = None


@dataclass(frozen=True)
class Measuring:
    """How perplexity is measured.

    Attributes:
        tokens: number of tokens at the end of the text that are measured; all of a shorter text.
        lengths: contexts in tokens; None: from half of the model's context on, doubled up to the new one.
        search: number of evaluations in LongRoPE's search for factors; None: 48.
        batch_tokens: number of tokens that run together.
    """

    tokens: int = 65536
    lengths: tuple[int, ...] | None = None
    search: int | None = None
    batch_tokens: int = 8192
    seed: int = 0


def extend(loaded: Loaded, text: TokenStream, out: str | Path, *, context: int, method: str = "yarn",
           measuring: Measuring | None = None, tuning: Sequence[str] | None = None,
           on_event: Listener | None = None) -> Extended:
    """Rescale a model's rotary positions for a longer context, and measure it. The same call goes on where an earlier
    one was stopped.

    Args:
        text: the text on whose last tokens perplexity is measured. A search for factors uses the tokens before those.
        out: a folder that does not exist yet, is empty, or holds this extension.
        context: length of the new context, in tokens.
        method: ``linear`` (position interpolation), ``ntk``, ``yarn`` or ``longrope``.
        tuning: ``key=value`` changes to the run that trained the model, such as ``training.steps=100``, for further
            training; None: no further training.
        on_event: called with notices of progress and with the events of training.

    Raises:
        InputError: an unknown method, or a context or lengths out of range.
        UnsupportedError: the model is not a language model, or has no rotary positions to rescale.
        ConfigError: changes to the run that are not valid, or ``out`` holds something else, or another extension.
        DataError: the text has no document longer than the model's context.
        CheckpointError: the record of an extension in ``out`` is damaged.
    """
    how, report = measuring or Measuring(), on_event or _silent
    folder, model = Path(out), language_model(loaded.model, "perplexity", where=str(loaded.path))
    require_extensible(model, context, method)
    if how.search is not None and method != SEARCHED:
        raise InputError(f"the method {method!r} has no search, so it cannot have {how.search} evaluations.",
                         where="search", remedy=f"Leave it out, or use the method {SEARCHED!r}.")
    if tuning is not None:
        tuning_run(loaded, loaded.path, context, tuning)  # an error in it is reported before anything is computed
    counted = part_of(text, max(len(text) - how.tokens, 0), len(text))
    trained, start = model.config.context, len(text) - len(counted)
    lengths = require_lengths(how.lengths or doubled(trained, context), len(counted))
    share = require_long(counted, trained)
    asked = {"model": str(loaded.path), "weights": tensors_digest(own_tensors(model)), "text": text.corpus_sha256,
             "tokens": len(text), "tokenizer": text.tokenizer_sha256, "context": context, "method": method,
             "measuring": asdict(how), "tuning": tuning}

    with extension_folder(folder, asked) as once:
        def stage(name: str, model: LanguageModel) -> Stage:
            return Stage(name, tuple(_measured(name, model, counted, length, how, once, report) for length in lengths))

        before = stage("before", model)
        scaling = _scaling(model, text, start, context, method, how, once, report)
        config = rescaled(model.config, context, scaling)
        longer, saved = with_weights(config, model), folder / RESCALED
        if not has_manifest(saved):
            save_checkpoint(saved, longer, loaded.tokenizer, run=run_with(loaded, config),
                            facts={"extended": {"from": str(loaded.path), "method": method, "trained": trained}})
        stages, facts = [before, stage("rescaled", longer)], None
        if tuning is not None:
            run, place = tuning_run(loaded, saved, context, tuning), folder / TUNED
            begun = (place / RUN_FILE).exists() or (place / LOCK_FILE).exists()
            result = train(run, place, resume=begun, on_event=on_event)
            saved, facts = result.checkpoint, {
                "steps": result.steps, "tokens_per_step": run.training.batch_size * run.context,
                "learning_rate": run.training.optimizer.lr}
            stages.append(stage("tuned", language_model(result.model, "perplexity")))
        extended = Extended(folder, saved, method, scaling.dump(), trained, context, share, lengths, tuple(stages),
                            facts)
        write_file(folder / RESULT, dumps(extended, indent=1) + "\n")
    return extended


def _measured(name: str, model: LanguageModel, counted: TokenStream, length: int, how: Measuring, once: Once,
              report: Listener) -> Evaluation:
    """Return the evaluation of a stage at a length, which is kept."""
    def compute() -> dict[str, Any]:
        report(Notice(0, f"perplexity {name}, at {length:,} tokens of context"))
        return asdict(measure(model, counted, length, how.batch_tokens))

    return build(Evaluation, once(f"{name}, {length} tokens", compute))


def _scaling(model: LanguageModel, text: TokenStream, start: int, context: int, method: str, how: Measuring,
             once: Once, report: Listener) -> RopeScalingConfig:
    """Return the scaling of a method; LongRoPE's factors are searched for on the tokens before ``start``."""
    trained = model.config.context
    if method in FIXED:
        return FIXED[method](trained, context)
    own, pieces = frequencies(model), max(-(-SEARCH_TOKENS // context), 1)
    sample = part_of(text, max(start - pieces * context - 1, 0), start)
    require_long(sample, trained)
    evaluations = how.search or EVALUATIONS
    done = itertools.count(1)

    def cost(factors: Factors) -> float:
        tried = next(done)
        def compute() -> float:
            candidate = with_weights(rescaled(model.config, context, longrope(trained, context, factors)), model)
            loss = evaluate(candidate, sample, context=context, batch_size=max(how.batch_tokens // context, 1)).loss
            report(Notice(tried, f"search for factors, {tried} of {evaluations}: {loss:.4f} nats per token"))
            return loss

        return number(once(f"factors {list(factors)}", compute))

    seeds = [tuple(theta / other for theta, other in zip(own, others, strict=True)) for others in
             (frequencies(built(rescaled(model.config, context, FIXED[name](trained, context)))) for name in FIXED)]
    factors = search(seeds, context / trained, cost, evaluations=evaluations, seed=how.seed)
    return longrope(trained, context, factors)


def _silent(event: Event) -> None:
    del event
