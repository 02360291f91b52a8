"""From pieces of work to the study's result."""

from __future__ import annotations

import hashlib
import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from weft.comparison.contestants import Contestant, changed
from weft.comparison.folder import STATED, StudyFolder, now
from weft.comparison.jobs import Outcome
from weft.comparison.machine import this_machine
from weft.comparison.matched import kind_and_amount, matched, statement
from weft.comparison.origin import placed
from weft.comparison.protocol import detectable_in, notes_of, protocol_of
from weft.comparison.quantities import kind_of, size_of, state_bytes
from weft.comparison.results import Budget, CorpusFacts, Entry, RunResult, StudyResult
from weft.comparison.study import Seeds, StudyConfig
from weft.comparison.texts import StudyTexts
from weft.comparison.trials import Search
from weft.comparison.verdict import judged
from weft.data import encode_corpus, read_text
from weft.data.prepared import open_prepared

REPEATS = "repeat"


@dataclass(frozen=True)
class Account:
    """What is known of a study before its runs.

    Attributes:
        notes: so far.
        counted_tokens: that counted models may read; None: all.
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


def assemble(account: Account, searches: Mapping[str, Search],
             outcomes: Mapping[str, Sequence[Outcome]]) -> StudyResult:
    """The result as far as the runs go.

    Args:
        account: of the study.
        searches: of the models that gradients train.
        outcomes: of each model's runs so far, in the order of the seeds.
    """
    study, texts = account.study, account.texts
    corpus = _corpus(account, outcomes)
    entries = [_entry(account, each, searches.get(each.name), outcomes[each.name], corpus.train_tokens)
               for each in account.models]
    detectable, basis = detectable_in(study, searches, len(list(itertools.combinations(account.models, 2))))
    kind, amount = kind_and_amount(study, account.counted_tokens or 0)
    compared = matched(study, entries, _states(account))
    command = account.command or f"weft compare --study {account.folder.path / STATED}"
    return judged(StudyResult(
        name=study.name, started=account.folder.started, finished=now(), confidence=study.confidence,
        test="paired", resamples=study.measure.resamples, seeds=len(study.seeds), corpus=corpus,
        budget=Budget(kind, amount, statement(study), compared),
        machine=this_machine(account.device, account.threads), entries=tuple(entries),
        differences=(), tied_sets=(), detectable=detectable, detectable_basis=basis,
        protocol=protocol_of(study, texts, account.models), command=command, study_config=account.folder.text,
        study_sha256=account.folder.sha256,
        notes=(*account.notes, *notes_of(study, account.models, entries, account.counted_tokens, corpus, compared))))


def _entry(account: Account, model: Contestant, found: Search | None, outcomes: Sequence[Outcome],
           train_tokens: int) -> Entry:
    study, size = account.study, size_of(model.run.model)
    first = next((each for each in outcomes if each.status == "finished"), None)
    runs = [_run(account, model, index, seeds, outcomes[index] if index < len(outcomes) else None, found)
            for index, seeds in enumerate(study.seeds)]
    plain = changed(model.run, {"seed": study.seeds[0].seed, "data.order_seed": study.seeds[0].order_seed}).dump()
    config = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    account.folder.write_config(model.name, config)
    whole = model.trained or account.counted_tokens is None or account.counted_tokens >= train_tokens
    return Entry(
        name=model.name, kind=kind_of(model.run.model), config=config,
        config_sha256=_hash(plain, account.folder.path),
        repeat=_repeat(account, model, study.seeds[0]) if whole else account.command or (
            f"weft compare --study {shlex.quote(str(account.folder.path / STATED))}"),
        parameters=size.parameters if model.trained else (first.numbers if first else 0),
        embedding_parameters=size.embeddings, solved=tuple(f"{key}: {width}" for key, width in model.solved.items()),
        trainable=model.trained, flops_per_token=model.flops_per_token, context=model.run.context,
        runs=tuple(runs), decode=first.decode if first else (), sample=first.sample if first else None)


def _hash(run: Mapping[str, Any], folder: Path) -> str:
    """Of a run's configuration, wherever the study's folder lies."""
    text = yaml.safe_dump(placed(run, folder), sort_keys=False, allow_unicode=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _run(account: Account, model: Contestant, index: int, seeds: Seeds, outcome: Outcome | None,
         tuned: Search | None) -> RunResult:
    found = outcome or Outcome("pending")
    pace = found.tokens / found.seconds if found.seconds > 0 else 0.0
    return RunResult(
        index=index, seed=seeds.seed, order_seed=seeds.order_seed, lr=tuned.lr if tuned else None,
        edge=bool(tuned and tuned.edge), trials=tuned.trials if tuned else (), status=found.status,
        bits_per_byte=found.bits_per_byte, loss=found.loss, document_nats=found.cluster_nats,
        steps=found.steps, tokens=found.tokens,
        flops=found.tokens * (model.flops_per_token or 0.0), seconds=found.seconds, tokens_per_second=pace,
        peak_memory_bytes=found.peak_memory_bytes, curve=found.curve, by_position=found.by_position,
        by_length=found.by_length, folder=f"runs/{model.name}/{index}", note=found.note)


def _repeat(account: Account, model: Contestant, seeds: Seeds) -> str:
    """Train the row again and measure it on the study's test text."""
    folder = account.folder.path
    again = shlex.quote(str(folder / REPEATS / model.name))
    device = "" if account.device == "cpu" else f" --device {account.device}"
    return (f"weft train {shlex.quote(str(folder / 'configs' / f'{model.name}.yaml'))} seed={seeds.seed} "
            f"data.order_seed={seeds.order_seed} --threads {account.threads}{device} --out {again} && "
            f"weft eval {again} --data {shlex.quote(str(account.texts.test))} --context {model.run.context}{device}")


def _corpus(account: Account, outcomes: Mapping[str, Sequence[Outcome]]) -> CorpusFacts:
    first, texts = account.models[0], account.texts
    sizes = next((each.cluster_bytes for found in outcomes.values() for each in found if each.cluster_bytes), ())
    data = open_prepared(texts.tokens[first.name], check="size")
    tokenizer = data.tokenizer()
    test = encode_corpus(read_text(texts.test), tokenizer)
    return CorpusFacts(
        name=texts.name, sha256=texts.sha256, train_bytes=texts.train_bytes, validation_bytes=texts.test_bytes,
        validation_documents=texts.test_documents, document_bytes=sizes,
        duplicated_documents=0, train_tokens=len(data.stream("train")), validation_tokens=len(test),
        tokenizer=tokenizer.name, tokenizer_sha256=tokenizer.fingerprint(), vocab_size=tokenizer.vocab_size)


def _states(account: Account) -> list[int]:
    """Bytes of state of each trained model, where the budget counts them."""
    budget = account.study.budget
    found = []
    for each in account.models:
        context = (budget.at_context if budget else None) or each.run.context
        found += list(state_bytes(each.run.model, [context]).values()) if each.trained else []
    return found
