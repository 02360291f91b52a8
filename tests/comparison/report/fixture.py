"""Studies made up for the report: plausible numbers by formula, so that every page is the same on every machine."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import random
from dataclasses import dataclass

from weft.comparison.results import (
    Budget,
    CorpusFacts,
    CurvePoint,
    DecodePoint,
    Detectable,
    Difference,
    Entry,
    GapPoint,
    Interval,
    LengthPoint,
    Machine,
    Matched,
    PositionPoint,
    RunResult,
    Sample,
    StudyResult,
    Trial,
)
from weft.comparison.statistics import holm, t_test, tied_sets

TOKENS, CONTEXT, SEEDS = 12_288_000, 256, 3
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
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


def study(models: int = 6, seeds: int = SEEDS, shapes: tuple[Shape, ...] = SHAPES,
          validations: int = 40) -> StudyResult:
    """A whole study; beyond six models the shapes come again under other names."""
    chosen = [dataclasses.replace(shapes[index % len(shapes)], name=_name(shapes, index),
                                  level=shapes[index % len(shapes)].level + 0.013 * (index // len(shapes)))
              for index in range(models)]
    entries = tuple(_entry(shape, seeds, validations) for shape in chosen)
    differences = _differences(entries)
    tied = {frozenset((each.first, each.second)): each.tied for each in differences}
    means = {entry.name: entry.bits_per_byte or 0.0 for entry in entries}
    config = "models: [transformer, s4d, lstm, convolution]\nbudget: {parameters: 1_600_000}\n"
    return StudyResult(
        name="Six ages of language models on Python source", started="2026-11-20T20:14:03Z",
        finished="2026-11-20T23:41:55Z",
        confidence=0.95, seeds=seeds, budget=_budget(), corpus=_corpus(), machine=_machine(), entries=entries,
        differences=differences, tied_sets=tied_sets(means, tied) if seeds > 1 else (),
        test="welch",
        detectable=tuple(Detectable(runs, 0.0196 / math.sqrt(runs) if seeds > 1 else None) for runs in (3, 5, 10)),
        detectable_basis="That is with a power of 0.8, for a deviation of 0.004 between seeds." if seeds > 1 else "",
        protocol=("Every token of the validation text is predicted once; windows do not overlap.",
                  "Bytes are those of the text before tokenisation, line ends included."),
        command="weft compare six-ages.yaml --out studies/six-ages", study_config=config, study_sha256=_hash(config),
        notes=("Attention ran in float32 on the CPU; on a GPU the speeds would differ in order.",
               "The n-gram was counted once over the whole training text; its runs differ only in name."))


def _name(shapes: tuple[Shape, ...], index: int) -> str:
    turn = index // len(shapes)
    return shapes[index % len(shapes)].name + (f"-{turn + 1}" if turn else "")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _entry(shape: Shape, seeds: int, validations: int) -> Entry:
    config = f"model:\n  kind: decoder\n  d_model: 192\n# {shape.name}\ntraining:\n  lr: 0.003\n  batch: 32\n"
    embeddings = 393_216 if shape.trainable else 0
    return Entry(
        name=shape.name, kind=shape.kind, config=config, config_sha256=_hash(config),
        repeat=f"weft train studies/six-ages/{shape.name}/run-0/config.yaml --out again", trainable=shape.trainable,
        parameters=1_602_000 + len(shape.name) * 311 if shape.trainable else 107_412, embedding_parameters=embeddings,
        solved=("model.d_model: 192",) if shape.trainable else (), flops_per_token=shape.flops if shape.trainable
        else None,
        context=CONTEXT, runs=tuple(_run(shape, index, validations) for index in range(seeds)), decode=_decode(shape),
        sample=Sample("def close(self):\n", TEXT * (8 if shape.name == "lstm" else 2),
                      "temperature 0.8, top-p 0.95, seed 0"))


def _trials(shape: Shape) -> tuple[Trial, ...]:
    if not shape.trainable:
        return ()
    if shape.name.startswith("lstm"):
        return tuple(Trial(lr, "finished", shape.level + 0.4 - 0.08 * place, 91.0) for place,
                     lr in enumerate((3e-4, 1e-3, 3e-3)))
    last = Trial(1e-2, "diverged", None, 12.0, "the loss was not finite at step 112")
    return (*(Trial(lr, "finished", shape.level + 0.2 + 0.05 * abs(math.log(lr / 0.003)), 90.0)
              for lr in (3e-4, 1e-3, 3e-3)), last)


def _run(shape: Shape, index: int, validations: int) -> RunResult:
    draws = random.Random(f"{shape.name} {index}")
    common = random.Random(index).gauss(0, 0.006)
    final = shape.level + ((common + draws.gauss(0, 0.0022)) if shape.trainable else 0.0)
    seconds = TOKENS / shape.speed if shape.trainable else 11.4
    curve = tuple(_point(shape, final, share / validations, seconds, draws) for share in range(1, validations + 1))
    return RunResult(
        index=index, seed=index, order_seed=100 + index, lr=0.003 if shape.trainable else None,
        edge=shape.name.startswith("lstm"), trials=_trials(shape), document_nats=(final * 3.0,) * 61,
        status="finished", bits_per_byte=final, loss=final * 2.21,
        steps=1500 if shape.trainable else 0, tokens=TOKENS, flops=shape.flops * TOKENS,
        seconds=seconds * (1 + 0.01 * index),
        tokens_per_second=shape.speed * (1 - 0.01 * index), peak_memory_bytes=round(4.2e8 + 2.1e4 * shape.flops ** 0.6),
        curve=curve if shape.trainable else curve[-1:], by_position=_positions(shape, final),
        by_length=_lengths(shape, final),
        folder=f"{shape.name}/run-{index}")


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


def _differences(entries: tuple[Entry, ...]) -> tuple[Difference, ...]:
    pairs = list(itertools.combinations(sorted(entries, key=lambda entry: entry.bits_per_byte or 0.0), 2))
    tests = [t_test(_paired(a, b), 0.95) for a, b in pairs]
    corrected = holm([test.p_value for test in tests])
    return tuple(_difference(a, b, test.interval, test.variance, test.p_value, p)
                 for (a, b), test, p in zip(pairs, tests, corrected, strict=True))


def _paired(a: Entry, b: Entry) -> list[float]:
    return [(one.bits_per_byte or 0.0) - (two.bits_per_byte or 0.0) for one, two in zip(a.runs, b.runs, strict=True)]


def _difference(a: Entry, b: Entry, seeds: Interval, variance: float | None, p: float | None,
                corrected: float | None) -> Difference:
    documents = Interval(seeds.mean, seeds.mean - 0.006 - abs(seeds.mean) * 0.08,
                         seeds.mean + 0.006 + abs(seeds.mean) * 0.08)
    gaps = tuple(GapPoint(share, _gap(a, b, share)) for share in SHARES) if a.trainable and b.trainable else ()
    signs = {gap.difference.mean > 0 for gap in gaps}
    return Difference(a.name, b.name, seeds, documents, variance, 0.003**2, p, corrected,
                      tied=corrected is None or corrected > 0.05, gaps=gaps, crosses=len(signs) > 1)


def _gap(a: Entry, b: Entry, share: float) -> Interval:
    place = [max(0, round(share * len(entry.runs[0].curve)) - 1) for entry in (a, b)]
    return t_test([one.curve[place[0]].bits_per_byte - two.curve[place[1]].bits_per_byte
                   for one, two in zip(a.runs, b.runs, strict=True)], 0.95).interval


def _budget() -> Budget:
    return Budget("parameters", 1_600_000, "1.6 million parameters, within 1 %, and 12.3 million tokens for every "
                  "model.", (
        Matched("parameters", True, 0.0018), Matched("parameters without embeddings", False, 0.0024),
                      Matched("training tokens", True, 0.0),
        Matched("training FLOPs", False, 0.32), Matched("training seconds", False, 3.1),
                      Matched("state bytes", False, 2047.0)))


def _corpus() -> CorpusFacts:
    return CorpusFacts("Python's standard library", _hash("corpus"), 9_812_331, 512_004, 61, (8_393,) * 61, 0,
                       3_104_772, 160_931, "byte-level BPE", _hash("tokenizer"), 2048)


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


def _lost(entry: Entry) -> Entry:
    runs = tuple(dataclasses.replace(run, status="diverged", bits_per_byte=None, loss=None,
                                     note=f"the loss was not finite at step {300 + run.index}",
                                     curve=run.curve[:12], by_position=(), by_length=()) for run in entry.runs)
    return dataclasses.replace(entry, runs=runs, sample=None)


def bare(result: StudyResult) -> StudyResult:
    """The same study without anything that may be missing, and with infinities where a number may be one."""
    entries = []
    for entry in result.entries:
        point = CurvePoint(0, 0, 0.0, 0.0, math.inf, math.nan)
        runs = tuple(dataclasses.replace(run, loss=math.nan, flops=math.nan, seconds=math.inf,
                                         tokens_per_second=math.nan, trials=(), lr=None,
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
        seed_variance=None,
        document_variance=math.nan, p_value=None, p_holm=None, tied=True,
        gaps=(GapPoint(0.5, Interval(math.inf, -math.inf, math.inf)), GapPoint(1.0, Interval(math.nan, None, None))))
        for each in result.differences)
    return dataclasses.replace(result, entries=tuple(entries), differences=differences, tied_sets=(),
                               detectable=tuple(Detectable(each.runs, None) for each in result.detectable),
                               detectable_basis="", protocol=(), notes=(), finished="")


def hostile(result: StudyResult) -> StudyResult:
    """The same study with markup, control characters and half a surrogate in every text that data may bring."""
    names = {entry.name: f"{index}{HOSTILE}" for index, entry in enumerate(result.entries)}
    entries = tuple(dataclasses.replace(
        entry, name=names[entry.name], kind=HOSTILE, config=HOSTILE, config_sha256=HOSTILE, repeat=HOSTILE,
        solved=(HOSTILE,),
        sample=Sample(HOSTILE, HOSTILE, HOSTILE),
        runs=tuple(_hostile(run) for run in entry.runs))
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


def _hostile(run: RunResult) -> RunResult:
    trials = tuple(dataclasses.replace(trial, status="failed", bits_per_byte=None, note=HOSTILE)
                   for trial in run.trials)
    lost = dataclasses.replace(run, trials=trials)
    return dataclasses.replace(lost, folder=HOSTILE, note=HOSTILE, status="failed") if run.index else lost


def identical(result: StudyResult) -> StudyResult:
    """Every model is the first one, under its own name."""
    first = result.entries[0]
    entries = tuple(dataclasses.replace(first, name=entry.name) for entry in result.entries)
    zero = Interval(0.0, 0.0, 0.0)
    differences = tuple(Difference(a.name, b.name, zero, zero, 0.0, 0.0, 1.0, 1.0, True,
                                   tuple(GapPoint(share, zero) for share in SHARES), False)
                        for a, b in itertools.combinations(entries, 2))
    return dataclasses.replace(result, entries=entries, differences=differences,
                               tied_sets=(tuple(entry.name for entry in entries),))


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
