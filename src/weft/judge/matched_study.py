"""Is it better? A study of a model against a baseline by `weft.comparison`: its protocol is sealed before the first
run, and its answer is a sentence that follows from the test."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.comparison.contestants import contestants
from weft.comparison.matching import is_trained, size_of
from weft.comparison.power import detectable_in, reached, summary
from weft.comparison.study import StudyConfig, read_study
from weft.comparison.study_result import StudyResult
from weft.core.errors import InputError
from weft.core.strict_json import digest
from weft.core.version import VERSION
from weft.disk.atomic import write_file
from weft.disk.documents import read_json
from weft.judge.judgement import StudyAnswer
from weft.training.config import BUDGETS, RunConfig
from weft.training.files import read_plain

RUNS, TOLERANCE = 5, 0.05
"""Runs of each model, and the share by which the baseline's parameters may differ from the thing's."""
PROTOCOL, STUDY = "protocol.json", "study"
SEEDS = 2**31


def protocol(run: RunConfig, baseline: Mapping[str, Any], text: Path | None, tokens: float | None,
             draws: Sequence[int]) -> StudyConfig:
    """The study of a run's model and a baseline of as many parameters, trained alike.

    Args:
        run: as the thing is configured; its data, tokenizer, context and batches are those of both.
        baseline: the plain data of a configuration.
        text: the test text; None: a share of the run's text.
        tokens: of training; None: the run's own length.
        draws: random numbers: that of the share which is held out, then two for each attempt.
    """
    own = {name: value for name in BUDGETS if (value := getattr(run.training, name)) is not None}
    length = own if tokens is None else {"tokens": tokens}
    if not length or "epochs" in length:
        raise InputError(f"the configuration states {'epochs' if length else 'no length of training'}, and a study "
                         "trains both models on as many tokens.", where="--tokens", remedy="Give --tokens.")
    held_out = {"split_seed": draws[0]} if text is None else {"test_path": str(text)}
    plain = run.dump()
    matched = {"kind": "parameters", "amount": size_of(run.model).parameters, "tolerance": TOLERANCE}
    return read_study(study={
        "name": "judged", "models": {"thing": {"config": plain, "solve_for": {}}, "baseline": {"config": baseline}},
        "data": {**plain["data"], **held_out}, "tokenizer": plain["tokenizer"], "length": length,
        **({"budget": matched} if is_trained(run.model) else {}),
        "seeds": [{"seed": seed, "order_seed": order} for seed, order in zip(draws[1::2], draws[2::2], strict=True)]})


def sealed(folder: Path, question: str, runs: int, text: Path | None, plugins: Sequence[str],
           make: Callable[[Sequence[int]], StudyConfig]) -> tuple[StudyConfig, dict[str, Any]]:
    """The study, and its protocol as it stands in the folder: written before the first run with seeds that nobody has
    seen, or read back where a study goes on. Its ``sha256`` is that of everything else in it.

    Raises:
        InputError: the protocol there is another one, or was changed after it had been sealed.
        ConfigError: the study cannot be run.
    """
    file = folder / PROTOCOL
    known = read_json(file) if file.is_file() else {}
    draws = known.get("draws") or [secrets.randbelow(SEEDS) for _ in range(1 + 2 * runs)]
    study = make(draws[: 1 + 2 * runs])
    found, basis = detectable_in(study, 1, 1.0, None)
    files = [Path(each) for each in plugins] + ([] if text is None else [text])
    content = {"format": "weft.protocol/1", "question": question, "power": summary(found, basis, len(study.seeds)),
               "files": {str(each): hashlib.sha256(each.read_bytes()).hexdigest() for each in files},
               "weft": VERSION, "runs": runs, "draws": draws, "study": study.model_dump(mode="json", exclude_none=True)}
    content = json.loads(json.dumps({**content, "sha256": digest(content)}))
    if known and known != content:
        raise InputError("another protocol is sealed there, or it was changed after that.", where=str(file),
                         remedy="Repeat the command with which it was sealed, or name another folder with --out.")
    if not known:
        contestants(study, read_plain)  # raises for what cannot be run, before anything is written
        folder.mkdir(parents=True, exist_ok=True)
        write_file(file, json.dumps(content, indent=1) + "\n")
    return study, content


def answer(result: StudyResult, thing: str, baseline: str, content: Mapping[str, Any], folder: Path) -> StudyAnswer:
    """The answer that the study's test gives."""
    pair = next(iter(result.differences), None)
    figures: dict[str, Any] = {
        "baseline": baseline, "power": content["power"], "protocol": str(folder / PROTOCOL),
        "protocol_sha256": content["sha256"], "report": str(folder / STUDY / "report.html"), "runs": result.seeds}
    if pair is None or pair.p_holm is None:
        notes = [run.note for entry in result.entries for run in entry.runs if run.note]
        return StudyAnswer(outcome="not done", sentence="The study says nothing: " + (
            notes[0] if notes else "no difference could be tested with so few runs") + ".", **figures)
    gap, low, high = pair.over_both.mean, pair.over_both.low, pair.over_both.high
    tested = (f"{thing} minus {baseline} is {gap:+.4f} bits per byte ({100 * result.level:.4g} % interval {low:+.4f} "
              f"to {high:+.4f}, p = {pair.p_holm:.2g}) over {result.seeds} runs of each on "
              f"{result.corpus.validation_bytes:,} bytes of held-out text.")
    finds = reached(result)
    said: dict[str, str] = {
        "better": f"{thing} is better than {baseline}: ", "worse": f"{thing} is worse than {baseline}: ",
        "as good": f"{thing} is as good as {baseline} within {result.margin:g} bits per byte: ",
        "not told apart": f"{thing} and {baseline} are not told apart by a study that finds differences of about "
                          f"{finds.mean if finds else 0:.2g} bits per byte or more: "}
    outcome = (("better" if gap < 0 else "worse") if not pair.tied else
               "as good" if pair.equivalent else "not told apart")
    return StudyAnswer(outcome=outcome, sentence=said[outcome] + tested, difference=gap, low=low, high=high,
                       p=pair.p_holm, **figures)
