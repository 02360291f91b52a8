"""The n-gram engine over real text: time and memory to count and estimate, speed of scoring, and whether it is right.

    python benchmarks/ngram.py PATH... [--order 5] [--vocabulary 4096] [--held-out 0.02] [--lmplz FILE]

The texts are read, split by document, encoded with a byte-level BPE that a part of the training text teaches, and one
modified Kneser-Ney model is estimated from all of the training text. Probabilities are summed over the vocabulary
behind contexts drawn from the text held out. With ``--lmplz``, the program of that name (KenLM) estimates from the same
tokens, and both are asked for the text held out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.data import Corpus, Document, TokenStream, encode_corpus, read_text
from weft.evaluation import evaluate
from weft.models.ngram import NgramConfig, NgramModel
from weft.tasks import TaskSettings
from weft.tasks.next_token import NextTokenConfig
from weft.tokenizers import BPETokenizer

TEACHING_BYTES = 5_000_000
CONTEXTS = 500
LINES, WORDS = 20, 2000


def main() -> None:
    """Print the figures as one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--held-out", type=float, default=0.02)
    parser.add_argument("--lmplz", type=Path)
    print(json.dumps(measure(parser.parse_args()), indent=1))


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    corpus = Corpus("all", tuple(Document(f"{path}/{each.name}", each.text) for path in given.paths
                                 for each in read_text(path).documents))
    train, held_out = corpus.split(given.held_out)
    seconds: dict[str, float] = {}
    clock = time.perf_counter()
    tokenizer = BPETokenizer.train(train.limited(TEACHING_BYTES).texts(), given.vocabulary)
    seconds["teach the tokenizer"], clock = time.perf_counter() - clock, time.perf_counter()
    stream, test = encode_corpus(train, tokenizer), encode_corpus(held_out, tokenizer)
    seconds["encode"], clock = time.perf_counter() - clock, time.perf_counter()
    before = peak_bytes()
    model = NgramConfig(vocab_size=tokenizer.vocab_size, order=given.order, end=tokenizer.eos_id).build()
    NextTokenConfig().create(TaskSettings(1, 512)).fit(model, stream)
    seconds["count and estimate"], clock = time.perf_counter() - clock, time.perf_counter()
    found = evaluate(model, test, context=512, batch_size=16)
    seconds["score"] = time.perf_counter() - clock
    report: dict[str, Any] = {
        "tokens": len(stream), "documents": len(train.documents), "order": given.order,
        "vocabulary": tokenizer.vocab_size, "corpus_sha256": corpus.sha256, "seconds": seconds,
        "peak_bytes_before_counting": before, "peak_bytes": peak_bytes(),
        "scored_tokens_per_second": found.tokens / seconds["score"], "bits_per_byte": found.bits_per_byte,
        "perplexity": found.perplexity, "largest_error_of_a_sum": largest_error(model, test),
        "torch": torch.__version__, "cores": os.cpu_count(), "processor": platform.processor() or platform.machine(),
        "load": os.getloadavg()}
    if given.lmplz is not None:
        report["lmplz"] = against_lmplz(given.lmplz, stream, test, given.order)
    return report


def largest_error(model: NgramModel, stream: TokenStream) -> float:
    """How far from one the probabilities of all tokens add up to, behind contexts drawn from a text."""
    starts = np.random.default_rng(0).integers(0, len(stream) - 16, CONTEXTS)
    rows = torch.from_numpy(stream.tokens[starts[:, None] + np.arange(16)].astype(np.int64))
    with torch.inference_mode():
        sums = model.readout.logits(model.hidden(rows).y[:, -1:]).double().logsumexp(-1).exp()
    return float((sums - 1).abs().max())


def against_lmplz(program: Path, stream: TokenStream, test: TokenStream, order: int) -> dict[str, float]:
    """The largest difference of log10-probabilities, over tokens of the text held out.

    lmplz knows the words that it has read and one for all others; a second model is counted over the same vocabulary.
    Its file is read by a look-up of this script's own, so that Weft's reader cannot hide a difference.
    """
    known = np.unique(stream.tokens[:][~stream.begins[:]])
    end, unknown = len(known), len(known) + 1
    model = NgramConfig(vocab_size=unknown + 1, order=order, end=end).build()
    lines, asked = (sentences(each, known, unknown) for each in (stream, test))
    ids = np.concatenate([np.array([end, *line]) for line in lines] + [np.array([end])])
    model.fit(torch.from_numpy(ids), torch.from_numpy(ids == end))
    with tempfile.TemporaryDirectory() as folder:
        arpa, clock = Path(folder) / "model.arpa", time.perf_counter()
        run(program, ["-o", str(order), "-S", "2G", "--discount_fallback", "-T", folder, "--arpa", str(arpa)], lines)
        seconds, table = time.perf_counter() - clock, arpa_entries(arpa)
    asked = [line[:WORDS] for line in asked[:LINES]]
    theirs = [look_up(table, words[max(0, place - order + 1):place + 1]) for line in asked
              for words in [["<s>", *(str(each) if each < end else "<unk>" for each in line)]]
              for place in range(1, len(words))]
    mine = [value for line in asked for value in log10_probs(model, [end, *line])]
    return {"seconds": seconds, "tokens": len(mine),
            "largest_difference_log10": float(np.abs(np.array(mine) - np.array(theirs)).max())}


def arpa_entries(path: Path) -> dict[tuple[str, ...], tuple[float, float]]:
    """log10 of the probability and of the back-off weight of every n-gram in a file."""
    entries: dict[tuple[str, ...], tuple[float, float]] = {}
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            prob, *rest = line.rstrip("\n").split("\t")
            if rest:
                entries[tuple(rest[0].split(" "))] = (float(prob), float(rest[1]) if len(rest) > 1 else 0.0)
    return entries


def look_up(table: dict[tuple[str, ...], tuple[float, float]], words: list[str]) -> float:
    """log10 p(last word | the others), backing off (Katz 1987, equation 20)."""
    if tuple(words) in table:
        return table[tuple(words)][0]
    return table.get(tuple(words[:-1]), (0.0, 0.0))[1] + look_up(table, words[1:])


def run(program: Path, options: list[str], lines: list[list[int]]) -> str:
    """What a program of KenLM's prints, given lines of words."""
    text = "".join(" ".join(map(str, line)) + "\n" for line in lines)
    return subprocess.run([str(program), *options], input=text, text=True, check=True, capture_output=True).stdout


def sentences(stream: TokenStream, known: np.ndarray, unknown: int) -> list[list[int]]:
    """A line per document, each token as its place among those known; what opens and closes it is left out."""
    edges = np.flatnonzero(stream.begins)
    places = np.searchsorted(known, stream.tokens)
    inside = np.isin(stream.tokens, known)
    ids = np.where(inside, places, unknown)
    return [ids[first + 1:last].tolist() for first, last in itertools.pairwise(edges)]


def log10_probs(model: NgramModel, ids: list[int]) -> list[float]:
    """Of every token but the first."""
    row = torch.tensor([ids])
    with torch.inference_mode():
        found = model.readout.log_prob(model.hidden(row[:, :-1]).y, row[:, 1:])[0].double() / np.log(10)
    values: list[float] = found.tolist()
    return values


def peak_bytes() -> int:
    """Largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
