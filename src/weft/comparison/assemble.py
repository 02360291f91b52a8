"""From pieces of work to the study's result.

Where a study comes from, and how it can be made again: the commit of the code, how exactly its runs repeat, and its
command without the paths of one machine.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml

from weft.comparison.cautions import lost_text, settings_of
from weft.comparison.contestants import Contestant
from weft.comparison.folder import STATED, StudyFolder, now
from weft.comparison.jobs import Outcome, placed
from weft.comparison.matching import size_of, state_bytes
from weft.comparison.protocol import growth_notes, kind_and_amount, matched, notes_of, protocol_of, statement
from weft.comparison.results import RunResult, StudyModel, Trial, decoding_of
from weft.comparison.study import StudyConfig, attempt_of
from weft.comparison.study_result import Budget, CorpusFacts, Detectable, Machine, StudyResult
from weft.comparison.texts import StudyTexts
from weft.comparison.verdict import judged
from weft.core import version
from weft.core.version import VERSION
from weft.data import encode_corpus, read_text
from weft.data.prepared import open_prepared
from weft.ops.processor import main_memory, processor_name
from weft.training.config import RunConfig

REPEATS = "repeat"


@dataclass(frozen=True)
class StudyFacts:
    """Everything that is known of a study before its runs.

    Attributes:
        counted_tokens: that counted models may read; None: all.
        detectable: and ``detectable_basis``: see `StudyResult`.
        plugins: files that add parts.
    """

    study: StudyConfig
    models: Sequence[Contestant]
    texts: StudyTexts
    folder: StudyFolder
    device: str
    threads: int
    command: str
    notes: tuple[str, ...]
    counted_tokens: int | None
    detectable: tuple[Detectable, ...]
    detectable_basis: str
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """One attempt at a model.

    Attributes:
        lr: with which it ran; None for counting, and where a trial was interrupted.
        edge: see `RunResult`.
        folder: of its run, relative to the study's.
    """

    lr: float | None
    edge: bool
    trials: tuple[Trial, ...]
    outcome: Outcome
    folder: str


PENDING = Attempt(None, False, (), Outcome("pending"), "")
"""One that has not been begun."""


def assemble(account: StudyFacts, attempts: Mapping[str, Sequence[Attempt]]) -> StudyResult:
    """The result as far as the runs go.

    Args:
        attempts: at each model so far, in the order of the seeds.
    """
    study, texts = account.study, account.texts
    corpus = _corpus(account, attempts)
    entries = [_entry(account, each, attempts[each.name], corpus.train_tokens) for each in account.models]
    kind, amount = kind_and_amount(study, account.counted_tokens or 0)
    compared = matched(study, entries, _states(account))
    command = elsewhere(account.command) or f"weft compare --study {STATED} --out {REPEATS}/study"
    found = judged(StudyResult(
        name=study.name, started=account.folder.started, finished=now(), confidence=study.confidence,
        test=study.test, resamples=study.measure.resamples, seeds=len(study.seeds), corpus=corpus,
        budget=Budget(kind, amount, statement(study, account.models), compared,
                      settings_of(account.models, account.device)),
        machine=_machine(account), entries=tuple(entries),
        differences=(), tied_sets=(), detectable=account.detectable, detectable_basis=account.detectable_basis,
        protocol=protocol_of(study, texts, account.models), command=command, study_config=account.folder.text,
        study_sha256=account.folder.sha256,
        additions=account.folder.additions, share=account.folder.share, planned_runs=study.planned_runs,
        margin=study.margin,
        notes=(*account.notes, *texts.beginnings, *lost_text(entries),
               *notes_of(study, account.models, entries, account.counted_tokens, corpus, compared),
               *growth_notes(account.folder.additions))))
    return account.folder.counted(found)


def _entry(account: StudyFacts, model: Contestant, attempts: Sequence[Attempt], train_tokens: int) -> StudyModel:
    study, size = account.study, size_of(model.run.model)
    first = next((each.outcome for each in attempts if each.outcome.status == "finished"), None)
    runs = [_run(account, model, index, attempts[index] if index < len(attempts) else PENDING)
            for index in range(len(study.seeds))]
    seeds, lr = study.seeds_of(model.name, 0), attempts[0].lr if attempts else None
    run = model.with_run(**attempt_of(seeds, lr)).run
    plain = placed(run.dump(), account.folder.path)
    config = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    account.folder.write_config(model.name, config)
    whole = model.trained or account.counted_tokens is None or account.counted_tokens >= train_tokens
    return StudyModel(
        name=model.name, kind=model.run.model.in_words(), config=config,
        config_sha256=hashlib.sha256(config.encode()).hexdigest(),
        repeat=_repeat(account, model) if whole else "",
        parameters=size.parameters if model.trained else (first.numbers if first else 0),
        embedding_parameters=size.embeddings, solved=tuple(f"{key}: {width}" for key, width in model.solved.items()),
        trainable=model.trained, flops_per_token=model.flops_per_token, context=model.run.context,
        runs=tuple(runs), sample=first.sample if first else None,
        decode=decoding_of([each.outcome.decode for each in attempts if each.outcome.status == "finished"]))


def _run(account: StudyFacts, model: Contestant, index: int, attempt: Attempt) -> RunResult:
    seeds, found = account.study.seeds_of(model.name, index), attempt.outcome
    pace = found.tokens / found.seconds if found.seconds > 0 else 0.0
    return RunResult(
        index=index, seed=seeds.seed, order_seed=seeds.order_seed, lr=attempt.lr, edge=attempt.edge,
        trials=attempt.trials, status=found.status, bits_per_byte=found.bits_per_byte, loss=found.loss,
        document_nats=found.cluster_nats, steps=found.steps, tokens=found.tokens,
        flops=found.tokens * (model.flops_per_token or 0.0), seconds=found.seconds, tokens_per_second=pace,
        peak_memory_bytes=found.peak_memory_bytes, curve=found.curve, by_position=found.by_position,
        by_length=found.by_length, folder=attempt.folder or f"runs/{model.name}/{index}", note=found.note,
        lost_bits_per_byte=found.lost_bits_per_byte)


def _repeat(account: StudyFacts, model: Contestant) -> str:
    """Train the row's first run again and measure it on the study's test text, from the study's folder."""
    folder, seeds = account.folder.path, account.study.seeds_of(model.name, 0)
    again, config = shlex.quote(f"{REPEATS}/{model.name}"), shlex.quote(f"configs/{model.name}.yaml")
    device = "" if account.device == "cpu" else f" --device {account.device}"
    plugins = "".join(f" --plugin {shlex.quote(Path(each).name)}" for each in account.plugins)
    tokens, test = (shlex.quote(os.path.relpath(each, folder)) for each in (account.texts.tokens[model.name],
                                                                           account.texts.test))
    return (f"weft train {config} data.path={tokens} seed={seeds.seed} data.order_seed={seeds.order_seed} "
            f"--threads {account.threads}{device}{plugins} --out {again} && "
            f"weft eval {again} --data {test} --context {model.run.context}{device}{plugins}")


def _corpus(account: StudyFacts, attempts: Mapping[str, Sequence[Attempt]]) -> CorpusFacts:
    sizes = [each.outcome.cluster_bytes for found in attempts.values() for each in found if each.outcome.cluster_bytes]
    first, texts = account.models[0], account.texts
    data = open_prepared(texts.tokens[first.name], check="size")
    tokenizer = data.tokenizer()
    test = encode_corpus(read_text(texts.test), tokenizer)
    return CorpusFacts(
        name=texts.name, sha256=texts.hashes[0], train_bytes=texts.train_bytes, validation_bytes=texts.test_bytes,
        validation_documents=texts.test_documents, document_bytes=sizes[0] if sizes else (),
        duplicated_documents=texts.repeated.found, train_tokens=len(data.stream("train")), validation_tokens=len(test),
        tokenizer=tokenizer.name, tokenizer_sha256=tokenizer.fingerprint(), vocab_size=tokenizer.vocab_size,
        duplicated_share=texts.repeated.share or 0.0, document_overlaps=texts.overlaps)


def _states(account: StudyFacts) -> list[int]:
    """Bytes of state of each trained model, where the budget counts them."""
    budget = account.study.budget
    found = []
    for each in account.models:
        context = (budget.at_context if budget else None) or each.run.context
        found += list(state_bytes(each.run.model, [context]).values()) if each.trained else []
    return found


def _machine(account: StudyFacts) -> Machine:
    """The machine, as a reader needs it to judge the seconds, with what tells how the study can be made again."""
    place = torch.device(account.device)
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else account.device
    return Machine(processor_name(), os.cpu_count() or 1, account.threads, main_memory(), name,
                   platform.platform(terse=True), platform.python_version(), torch.__version__, VERSION, commit(),
                   determinism([each.run for each in account.models], account.device))


def commit(source: Path | None = None) -> str:
    """The commit of the checkout that Weft runs from, with ``-dirty`` where files differ from it; empty where it does
    not run from one, or git is not there.

    Args:
        source: a file of Weft's; None: of the installed one.
    """
    git, file = shutil.which("git"), source or Path(version.__file__)
    if git is None:
        return ""
    place = [git, "-C", str(file.parent)]
    try:
        subprocess.run([*place, "ls-files", "--error-unmatch", file.name], check=True, capture_output=True, timeout=10)
        said = subprocess.run([*place, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"], check=True,
                              capture_output=True, text=True, timeout=10)
    except (subprocess.SubprocessError, OSError):
        return ""
    return said.stdout.strip()


def determinism(runs: Iterable[RunConfig], device: str) -> str:
    """How exactly the runs repeat, in a phrase."""
    if device == "cpu":
        return "bit for bit, on the same processor with the same versions and number of threads"
    if all(run.training.compute.repeatable for run in runs):
        return "bit for bit, on the same device with the same versions"
    return "not bit for bit: training.compute.repeatable is off, so that sums on the device may round differently"


def elsewhere(command: str) -> str:
    """A command without the absolute paths of this machine: what lies below the current folder is named from there,
    anything else by its name alone."""
    return shlex.join([_relative(word) for word in shlex.split(command)])


def _relative(word: str) -> str:
    key, sign, value = word.partition("=")
    if sign and value.startswith("/"):
        return f"{key}={_relative(value)}"
    path = Path(word)
    if not path.is_absolute():
        return word
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) and path != here else path.name or "."
