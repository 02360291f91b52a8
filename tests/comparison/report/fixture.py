"""Studies made up for the report: plausible numbers by formula, so that every page is the same on every machine."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import random
from dataclasses import dataclass

from weft.comparison.results import (
    CurvePoint,
    DecodePoint,
    LengthPoint,
    PositionPoint,
    RunResult,
    Sample,
    StudyModel,
    Trial,
)
from weft.comparison.statistics import Interval
from weft.comparison.student import SeedTest, detectable_difference
from weft.comparison.study_result import Budget, CorpusFacts, Detectable, GapPoint, Machine, Matched, StudyResult
from weft.comparison.verdict import judged

TOKENS, CONTEXT, SEEDS = 12_288_000, 256, 3
DOCUMENTS = tuple(4000 + 137 * (place % 60) for place in range(61))
"""Bytes of the documents of the test text."""
TEXT = ("def read(self, size=-1):\n    if size < 0:\n        return self._buffer.getvalue()\n    data = "
        "self._buffer[:size]\n"
        "    self._position += len(data)\n    return data\n\n")


@dataclass(frozen=True)
class Shape:
    """How a made-up model behaves."""

    name: str
    kind: str
    level: float
    speed: float
    flops: float
    state: float
    grows: bool
    trainable: bool = True


SHAPES = (
    Shape("transformer", "decoder: attention, glu", 1.502, 41_300, 9.6e6, 98_304, True),
    Shape("s4d", "decoder: s4d, glu", 1.517, 35_800, 9.1e6, 131_072, False),
    Shape("lstm", "decoder: lstm", 1.561, 21_400, 1.02e7, 9_216, False),
    Shape("convolution", "decoder: gated convolution, mlp", 1.604, 52_100, 8.8e6, 43_008, False),
    Shape("feed-forward", "feed-forward: window of 8 tokens", 1.871, 88_000, 7.7e6, 64, False),
    Shape("kneser-ney-5", "n-gram: 5 tokens, modified Kneser-Ney", 2.013, 310_000, 0.0, 32, False, trainable=False),
)


@functools.cache
def study(models: int = 6, seeds: int = SEEDS, shapes: tuple[Shape, ...] = SHAPES, validations: int = 40,
          test: SeedTest = "welch") -> StudyResult:
    """A whole study, judged as studies are; beyond six models the shapes come again under other names."""
    chosen = [dataclasses.replace(shapes[index % len(shapes)], name=_name(shapes, index),
                                  level=shapes[index % len(shapes)].level + 0.013 * (index // len(shapes)))
              for index in range(models)]
    entries = tuple(_entry(shape, seeds, validations) for shape in chosen)
    config = "models: [transformer, s4d, lstm, convolution]\nbudget: {parameters: 1_600_000}\n"
    return judged(StudyResult(
        name="Six ages of language models on Python source", started="2026-11-20T20:14:03Z",
        finished="2026-11-20T23:41:55Z",
        confidence=0.95, test=test, resamples=1000, seeds=seeds, budget=_budget(),
        corpus=_corpus(), machine=_machine(), entries=entries,
        differences=(), tied_sets=(),
        detectable=tuple(Detectable(runs, detectable_difference(0.004, runs, 0.95, max(1, math.comb(models, 2)), test))
                         for runs in sorted({3, 5, 10, seeds})),
        detectable_basis="They are for a deviation of 0.004 between seeds, which the study states.",
        protocol=("Every token of the validation text is predicted once; windows do not overlap.",
                  "Bytes are those of the text before tokenisation, line ends included."),
        command="weft compare six-ages.yaml --out studies/six-ages", study_config=config, study_sha256=_hash(config),
        notes=("Attention ran in float32 on the CPU; on a GPU the speeds would differ in order.",
               "The n-gram was counted once over the whole training text; its runs differ only in name.")))


def _name(shapes: tuple[Shape, ...], index: int) -> str:
    turn = index // len(shapes)
    return shapes[index % len(shapes)].name + (f"-{turn + 1}" if turn else "")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _entry(shape: Shape, seeds: int, validations: int) -> StudyModel:
    config = f"model:\n  kind: decoder\n  d_model: 192\n# {shape.name}\ntraining:\n  lr: 0.003\n  batch: 32\n"
    embeddings = 393_216 if shape.trainable else 0
    return StudyModel(
        name=shape.name, kind=shape.kind, config=config, config_sha256=_hash(config),
        repeat=f"weft train studies/six-ages/{shape.name}/run-0/config.yaml --out again", trainable=shape.trainable,
        parameters=1_602_000 + len(shape.name) * 311 if shape.trainable else 107_412, embedding_parameters=embeddings,
        solved=("model.d_model: 192",) if shape.trainable else (), flops_per_token=shape.flops if shape.trainable
        else None,
        context=CONTEXT,
        runs=tuple(_run(shape, index, validations) for index in range(seeds)), decode=_decode(shape),
        sample=Sample("def close(self):\n", TEXT * (8 if shape.name == "lstm" else 2),
                      "temperature 0.8, top-p 0.95, seed 0"))


def _trials(shape: Shape, index: int) -> tuple[Trial, ...]:
    """Of one attempt: the best of the LSTM is the highest, and the third attempt at S4D chooses another than the
    first two."""
    if not shape.trainable:
        return ()
    noise = random.Random(f"{shape.name} {index} tuning")
    if shape.name.startswith("lstm"):
        return tuple(Trial(lr, "finished", shape.level + 0.4 - 0.08 * place + noise.gauss(0, 0.01), 91.0)
                     for place, lr in enumerate((3e-4, 1e-3, 3e-3)))
    best = 0.001 if shape.name.startswith("s4d") and index == 2 else 0.003
    last = Trial(1e-2, "diverged", None, 12.0, "the loss was not finite at step 112")
    return (*(Trial(lr, "finished", shape.level + 0.2 + 0.05 * abs(math.log(lr / best)) + noise.gauss(0, 0.01), 90.0)
              for lr in (3e-4, 1e-3, 3e-3)), last)


def _run(shape: Shape, index: int, validations: int) -> RunResult:
    draws = random.Random(f"{shape.name} {index}")
    common = random.Random(index).gauss(0, 0.006)
    final = shape.level + ((common + draws.gauss(0, 0.0022)) if shape.trainable else 0.0)
    seconds = TOKENS / shape.speed if shape.trainable else 11.4
    curve = tuple(_point(shape, final, share / validations, seconds, draws) for share in range(1, validations + 1))
    trials = _trials(shape, index)
    best = min((trial for trial in trials if trial.bits_per_byte is not None),
               key=lambda trial: trial.bits_per_byte or 0.0, default=None)
    return RunResult(
        index=index, seed=index, order_seed=100 + index, lr=best.lr if best else None,
        edge=shape.name.startswith("lstm"), trials=trials,
        status="finished", bits_per_byte=final, loss=final * 2.21, document_nats=_documents(shape, index, final),
        steps=1500 if shape.trainable else 0, tokens=TOKENS, flops=shape.flops * TOKENS,
        seconds=seconds * (1 + 0.01 * index),
        tokens_per_second=shape.speed * (1 - 0.01 * index), peak_memory_bytes=round(4.2e8 + 2.1e4 * shape.flops ** 0.6),
        curve=curve if shape.trainable else curve[-1:], by_position=_positions(shape, final),
        by_length=_lengths(shape, final),
        folder=f"{shape.name}/run-{index}")


def _documents(shape: Shape, index: int, final: float) -> tuple[float, ...]:
    """Of a text that is easier in places, for all models alike, and a little differently for each."""
    text, own = random.Random("documents"), random.Random(f"{shape.name} {index} documents")
    rough = [size * (1 + text.gauss(0, 0.1) + own.gauss(0, 0.02)) for size in DOCUMENTS]
    scale = final * math.log(2) * sum(DOCUMENTS) / sum(rough)
    return tuple(each * scale for each in rough)


def _point(shape: Shape, final: float, share: float, seconds: float, draws: random.Random) -> CurvePoint:
    # The recurrent models learn faster at first, so that one order changes on the way.
    early = 0.55 if shape.name.startswith(("lstm", "s4d")) else 0.8
    bits = final + early * (share ** -0.42 - 1) * 0.6 + draws.gauss(0, 0.006) * (1 - share)
    return CurvePoint(round(1500 * share), round(TOKENS * share), shape.flops * TOKENS * share, seconds * share, bits,
                      bits * 2.21)


def _positions(shape: Shape, final: float) -> tuple[PositionPoint, ...]:
    reach = {"kneser-ney-5": 4, "feed-forward": 8, "convolution": 64}.get(shape.name, 256)
    stretches = [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 31), (32, 63), (64, 127), (128, 255)]
    return tuple(PositionPoint(first, last, final + 1.6 * min(last + 1, reach) ** -0.75 - 1.6 * reach ** -0.75,
                               1000 * (last - first + 1))
                 for first, last in stretches)


def _lengths(shape: Shape, final: float) -> tuple[LengthPoint, ...]:
    found = []
    for context in (64, 128, 256, 512, 1024):
        beyond = math.log2(context / CONTEXT)
        bits = final + (0.05 * -beyond if beyond < 0 else (0.11 if shape.grows else -0.01) * beyond)
        reached = not (shape.grows and context > 512)
        found.append(LengthPoint(context, bits if reached else None, 2 ** (bits * 3.2) if reached else None,
                                 context == CONTEXT))
    return tuple(found)


def _decode(shape: Shape) -> tuple[DecodePoint, ...]:
    return tuple(DecodePoint(context, (30 / shape.speed) * (1 + (context / 900 if shape.grows else 0)),
                             round(shape.state * (context / 64 if shape.grows else 1)))
                 for context in (64, 256, 1024, 4096))


def _budget() -> Budget:
    return Budget("parameters", 1_600_000, "1.6 million parameters, within 1 %, and 12.3 million tokens for every "
                  "model.", (
        Matched("parameters", True, 0.0018), Matched("parameters without embeddings", False, 0.0024),
                      Matched("training tokens", True, 0.0),
        Matched("training FLOPs", False, 0.32), Matched("training seconds", False, 3.1),
                      Matched("state bytes", False, 2047.0)))


def _corpus() -> CorpusFacts:
    return CorpusFacts("Python's standard library", _hash("corpus"), train_bytes=9_812_331,
                       validation_bytes=sum(DOCUMENTS), validation_documents=len(DOCUMENTS), document_bytes=DOCUMENTS,
                       duplicated_documents=0, train_tokens=3_104_772, validation_tokens=160_931,
                       tokenizer="byte-level BPE", tokenizer_sha256=_hash("tokenizer"), vocab_size=2048)


def _machine() -> Machine:
    return Machine("AMD EPYC 7B13", 2, 2, 8_000_000_000, "cpu", "Linux 6.1, x86_64", "3.11.2", "2.13.0", "0.1.0")


HOSTILE = "<script>alert(1)</script>\"'&amp;--><img src=http://x.example/a.png onerror=alert(1)>\u202eevil\x07\ud800"


def unfinished(result: StudyResult, names: tuple[str, ...] | None = None) -> StudyResult:
    """The same study with every run of these models (of all, without names) diverged."""
    lost = {entry.name for entry in result.entries} if names is None else set(names)
    entries = tuple(_lost(entry) if entry.name in lost else entry for entry in result.entries)
    kept = tuple(each for each in result.differences if not {each.first, each.second} & lost)
    sets = tuple(left for each in result.tied_sets if (left := tuple(name for name in each if name not in lost)))
    return dataclasses.replace(result, entries=entries, differences=kept, tied_sets=sets)


def _lost(entry: StudyModel) -> StudyModel:
    runs = tuple(dataclasses.replace(run, status="diverged", bits_per_byte=None, loss=None, document_nats=(),
                                     note=f"the loss was not finite at step {300 + run.index}",
                                     curve=run.curve[:12], by_position=(), by_length=()) for run in entry.runs)
    return dataclasses.replace(entry, runs=runs, sample=None)


def bare(result: StudyResult) -> StudyResult:
    """The same study without anything that may be missing, and with infinities where a number may be one."""
    entries = []
    for entry in result.entries:
        point = CurvePoint(0, 0, 0.0, 0.0, math.inf, math.nan)
        runs = tuple(dataclasses.replace(run, lr=None, edge=False, trials=(), loss=math.nan, flops=math.nan,
                                         seconds=math.inf,
                                         tokens_per_second=math.nan,
                                         curve=(point, *(dataclasses.replace(each, bits_per_byte=math.inf)
                                                         for each in run.curve[:2])),
                                         by_position=(PositionPoint(0, 0, math.nan, 0),),
                                         by_length=(LengthPoint(64, None, None, False),
                                                    LengthPoint(128, math.inf, math.inf, True)))
                     for run in entry.runs)
        entries.append(dataclasses.replace(entry, runs=runs, flops_per_token=None, sample=None,
                                           decode=(DecodePoint(64, None, 0),), solved=(), config="", repeat=""))
    differences = tuple(dataclasses.replace(
        each, over_seeds=Interval(each.over_seeds.mean, None, None), over_documents=Interval(math.nan, None, None),
        seed_error=None, document_error=math.nan, p_value=None, p_holm=None, tied=True,
        gaps=(GapPoint(0.5, Interval(math.inf, -math.inf, math.inf)), GapPoint(1.0, Interval(math.nan, None, None))))
        for each in result.differences)
    return dataclasses.replace(result, entries=tuple(entries), differences=differences, tied_sets=(), detectable=(),
                               detectable_basis="", protocol=(), notes=(), finished="")


def hostile(result: StudyResult) -> StudyResult:
    """The same study with markup, control characters and half a surrogate in every text that data may bring."""
    names = {entry.name: f"{index}{HOSTILE}" for index, entry in enumerate(result.entries)}
    entries = tuple(dataclasses.replace(
        entry, name=names[entry.name], kind=HOSTILE, config=HOSTILE, config_sha256=HOSTILE, repeat=HOSTILE,
        solved=(HOSTILE,),
        sample=Sample(HOSTILE, HOSTILE, HOSTILE),
        runs=tuple(dataclasses.replace(
            run, folder=HOSTILE, note=HOSTILE, status="failed" if run.index else run.status,
            trials=tuple(dataclasses.replace(trial, status="failed", bits_per_byte=None, note=HOSTILE)
                         for trial in run.trials))
                   for run in entry.runs))
        for entry in result.entries)
    differences = tuple(dataclasses.replace(each, first=names[each.first], second=names[each.second])
                        for each in result.differences)
    budget = dataclasses.replace(result.budget, statement=HOSTILE, matched=(Matched(HOSTILE, False, math.nan),))
    corpus = dataclasses.replace(result.corpus, name=HOSTILE, sha256=HOSTILE, tokenizer=HOSTILE,
                                 tokenizer_sha256=HOSTILE)
    machine = dataclasses.replace(result.machine, processor=HOSTILE, device=HOSTILE, system=HOSTILE, python=HOSTILE,
                                  torch=HOSTILE, weft=HOSTILE)
    return dataclasses.replace(
        result, name=HOSTILE, started=HOSTILE, finished=HOSTILE, budget=budget, corpus=corpus, machine=machine,
        entries=entries,
        differences=differences, tied_sets=tuple(tuple(names[name] for name in each) for each in result.tied_sets),
        detectable_basis=HOSTILE, protocol=(HOSTILE,), command=HOSTILE, study_config=HOSTILE, study_sha256=HOSTILE,
        notes=(HOSTILE,))


def identical(result: StudyResult) -> StudyResult:
    """Every model is the first one, under its own name."""
    first = result.entries[0]
    return judged(dataclasses.replace(result, entries=tuple(dataclasses.replace(first, name=entry.name)
                                                            for entry in result.entries)))


def foreign(result: StudyResult) -> StudyResult:
    """Right-to-left and wide scripts in names and samples, and a very long name."""
    names = ["نموذج-المحولات", "変換器モデル・八層・幅百九十二・回転位置符号", "a-very-long-name-" * 9 + "one",
             "a-very-long-name-" * 9 + "two"]
    texts = ["كان يا ما كان، في قديم الزمان،\u200f نموذج لغوي صغير.\n",
             "むかしむかし、あるところに\u200bおじいさんがいました。" * 40,
             "\x00\x1b[31mred\x1b[0m\t\u2028", ""]
    rename = dict(zip([entry.name for entry in result.entries], names, strict=False))
    entries = tuple(dataclasses.replace(entry, name=rename.get(entry.name, entry.name),
                                        sample=Sample("שלום <עולם>\n", texts[index % 4], "greedy")) for index,
                    entry in enumerate(result.entries))
    differences = tuple(dataclasses.replace(each, first=rename.get(each.first, each.first),
                                            second=rename.get(each.second, each.second))
                        for each in result.differences)
    sets = tuple(tuple(rename.get(name, name) for name in each) for each in result.tied_sets)
    return dataclasses.replace(result, entries=entries, differences=differences, tied_sets=sets)
