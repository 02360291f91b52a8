"""The law of starting: at its defaults, a model with any part leaves the unigram plateau within `STEPS` steps.

A model that knows no more than how often tokens occur has the loss of a unigram model, its plateau. Whoever writes a
configuration of her own leaves to defaults what she does not know, and compares what comes out. So a model of two or
three blocks with the part, every field that has a default at its default, must be `MARGIN` below the plateau of the
embedded corpus after `STEPS` steps of the default optimiser. Parts are found in the registry, so a new one is tested
without being named. `make test` runs a sample, `make test-starting` all of them.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from weft.api.configs import own_presets, read_config
from weft.core.part_config import Dims, PartConfig
from weft.core.registry import REGISTRY
from weft.data import embedded_corpus
from weft.training import parse_run, train

STEPS = 60
"""Of 8 windows of 32 bytes, or for a preset of its own batches."""
MARGIN = 0.1
"""Nats a token below the unigram model. With embeddings that begin at a deviation of 0.02 a model of attention is 0.02
below it, and 0.32 above it behind a norm; with 1/8, the default at this width, 0.36 and 0.28 below it."""
WIDTH, CONTEXT, BYTES = 64, 32, 400_000
DOCUMENT = 2_000
"""Bytes of a document, so that the held-out ones are of many files."""
ROTARY: dict[str, Any] = {"kind": "attention", "position": "rope"}
MIXERS = ("attention", "gru")
"""Layers of other kinds, for hybrids and for parts that need layers."""
FITTED: dict[str, dict[str, Any]] = {"global_attention": {"mask": "causal"},
                                     "zero_memory_attention": {"mask": "causal & window(8)"},
                                     "adaptive": {"cutoffs": [128]}}
"""Masks of parts whose own is for an encoder, or wider than the law's rows, and refused in its decoders; a cluster of
rare bytes where the part has none of its own."""

Plain = dict[str, Any]


class Start(NamedTuple):
    """A run at defaults.

    Attributes:
        name: of the part, and ``hybrid`` beside layers of other kinds.
        run: its configuration, without data and budget.
    """

    name: str
    run: Plain


def starts() -> Iterator[Start]:
    """Of every registered part that is trained, and of every preset of Weft's own."""
    for part in REGISTRY.parts():
        for name, model in models_with(part).items():
            yield Start(f"{part.group} {part.kind}{name}", {"model": model})
        if part.group in ("optimizer", "schedule"):
            yield Start(f"{part.group} {part.kind}", {"model": decoder(block(ROTARY, "mlp"), block(ROTARY, "mlp")),
                                                      "training": {part.group: at_defaults(part)}})
    for name in own_presets():
        if name != "ngram":  # it is counted, and takes no steps
            yield Start(f"preset {name}", read_config(name))


def models_with(part: type[PartConfig]) -> dict[str, Plain]:
    """Models with the part: alone, and where that is another thing in a hybrid."""
    own = at_defaults(part)
    match part.group:
        case "mixer" | "feedforward":
            giver = part.model_validate({key: own[key] for key in own if key != "kind"}).giver()
            layers = ["attention", own] if part.group == "feedforward" else [own, "mlp"]
            mine = block(*([] if giver is None else [giver.dump()]), *layers)
            reads = part.kind == "cross_attention"
            return {"": translator(mine) if reads else decoder(mine, mine), " hybrid": translator(
                block(*MIXERS), mine) if reads else decoder(mine, block(ROTARY, "glu"), mine)}
        case "position":
            scheme: Any = part().build_for_heads(Dims(WIDTH, 256, CONTEXT), 4, WIDTH // 4)  # type: ignore[attr-defined]
            if "embeddings" in scheme.acts_on:
                # Where positions are concatenated, embeddings are narrower than what a tied readout reads.
                whole = {"position": own, "readout": {"kind": "linear", "tied": scheme.width == 0}}
                return {"": decoder(block("attention", "mlp"), block("attention", "mlp"), **whole),
                        " hybrid": decoder(block("attention", "mlp"), block("gru", "mlp"), **whole)}
            mine = block({"kind": "attention", "position": own}, "mlp")
            return {"": decoder(mine, mine), " hybrid": decoder(mine, block("gru", "mlp"))}
        case "norm":
            mine = block(ROTARY, "mlp", norm=own)
            # Batch statistics as the last norm take the mean from every feature, and with it what a tied readout says
            # of how often tokens occur.
            last = {} if part.kind == "batchnorm" else {"norm": own}
            return {"": decoder(mine, mine, **last), " hybrid": decoder(mine, block("gru", "mlp"), **last)}
        case "block":
            mine = block(ROTARY, "mlp", kind=part.kind)
            return {"": decoder(mine, mine), " hybrid": decoder(mine, block("gru", "mlp"))}
        case "readout":
            tables = {"embedding": {"adaptive": {"cutoffs": own["cutoffs"]}}} if "cutoffs" in own else {}
            return {"": decoder(block(ROTARY, "mlp"), block(ROTARY, "mlp"), readout=own, **tables)}
        case "model" if part.kind == "feedforward":
            return {"": {"kind": part.kind, "context": CONTEXT}}
    return {}


def at_defaults(part: type[PartConfig]) -> Plain:
    """The part in plain data: its first example's values where it has no defaults, and layers of two kinds."""
    needed = {name for name, field in part.model_fields.items() if field.is_required()}
    known: Plain = {"layers": list(MIXERS)} if "layers" in needed else {}
    example = part.examples()[0].dump() if needed - known.keys() else {}
    return {"kind": part.kind, **{name: known.get(name, example.get(name)) for name in needed},
            **FITTED.get(part.kind, {})}


def block(*layers: Any, **fields: Any) -> Plain:
    return {"kind": "pre", "layers": list(layers), **fields}


def decoder(*blocks: Plain, **fields: Any) -> Plain:
    return {"kind": "decoder", "d_model": WIDTH, "context": CONTEXT, "blocks": list(blocks), **fields}


def translator(*blocks: Plain) -> Plain:
    """A decoder whose blocks read a source."""
    both_ways = {"kind": "attention", "mask": "bidirectional"}
    return {**decoder(*blocks), "kind": "encoder_decoder", "tied_source": True,
            "encoder": {**decoder(block(both_ways, "mlp")), "kind": "encoder"}}


def write_texts(folder: Path) -> None:
    """The embedded corpus in documents of one size, as text and as pairs of pieces of one size, of which a target has
    as many tokens as a window, its end among them."""
    text = "".join(document.text for document in embedded_corpus(max_bytes=BYTES).documents)
    pieces = [text[at:at + DOCUMENT] for at in range(0, len(text), DOCUMENT)]
    lines = [json.dumps({"text": piece}) for piece in pieces]
    (folder / "text.jsonl").write_text("\n".join(lines), encoding="utf-8")
    halves = [text[at:at + CONTEXT - 1] for at in range(0, len(text), CONTEXT - 1)]
    pairs = [{"source": source, "target": target} for source, target in zip(halves[::2], halves[1::2], strict=False)
             if source.strip() and target.strip()]
    (folder / "pairs.jsonl").write_text("\n".join(json.dumps(each) for each in pairs), encoding="utf-8")


def loss_of(run: Mapping[str, Any], texts: Path, out: Path) -> float:
    """Nats a token on held-out text after the run."""
    pairs = run["model"]["kind"] == "encoder_decoder"
    task = run.get("task", {"kind": "sequence_to_sequence", "cut": True} if pairs else "next_token")
    training = {"batch_size": 8, **run.get("training", {}), "steps": STEPS, "compute": {"matmul": "default"}}
    data = {"path": str(texts / ("pairs.jsonl" if pairs else "text.jsonl")), "validation": 0.05}
    whole = parse_run({**run, "task": task, "data": data, "training": {**training, "seconds": None},
                       "report": {"eval_every": STEPS, "eval_batches": 20, "log_every": STEPS}})
    return train(whole, out).validation.loss


NEVER = ("position integer", "position integer hybrid")
"""A code that grows without bound outweighs the tokens, which is what it is there to show."""
SAMPLE = ("mixer s4d hybrid", "position t5", "norm layernorm", "optimizer sgd")
"""Some six seconds of one core."""
STARTS = {start.name: start for start in starts()}
WHOLE = "WEFT_STARTING" in os.environ


class Plateaus:
    """The unigram losses of the texts in a folder, each computed once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_texts(folder)
        self._found: dict[str, float] = {}

    def below(self, run: Plain, out: Path) -> float:
        """By how many nats a token the run ends below its plateau."""
        pairs, tokenizer = run["model"]["kind"] == "encoder_decoder", run.get("tokenizer", "bytes")
        name = "targets" if pairs else str(tokenizer)
        if name not in self._found:
            unigram = {"kind": "ngram", "order": 1, "context": CONTEXT}
            self._found[name] = self._of_targets() if pairs else loss_of({"model": unigram, "tokenizer": tokenizer},
                                                                         self.folder, out / "1")
        return self._found[name] - loss_of(run, self.folder, out / "run")

    def _of_targets(self) -> float:
        """Entropy of the targets' bytes and ends, in nats: no n-gram is trained on pairs."""
        lines = (self.folder / "pairs.jsonl").read_text(encoding="utf-8").splitlines()
        targets = [json.loads(line)["target"].encode() for line in lines]
        counts = [*Counter(b"".join(targets)).values(), len(targets)]
        return sum(count / sum(counts) * math.log(sum(counts) / count) for count in counts)


@pytest.fixture(scope="module")
def plateaus(tmp_path_factory: pytest.TempPathFactory) -> Plateaus:
    return Plateaus(tmp_path_factory.mktemp("texts"))


@pytest.mark.parametrize("name", list(STARTS) if WHOLE else SAMPLE)
def test_at_its_defaults_a_model_leaves_the_unigram_plateau(name: str, plateaus: Plateaus, tmp_path: Path) -> None:
    assert (plateaus.below(STARTS[name].run, tmp_path) > MARGIN) is (name not in NEVER)
