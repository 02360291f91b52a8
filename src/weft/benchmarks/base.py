"""`BenchmarkConfig`: the base of benchmarks, the group ``benchmark`` of the registry. A plugin adds one as it adds any
part: a class with the decorator `register`, whose `measure` asks a `TextModel` and returns a `BenchmarkResult`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from weft.benchmarks.result import BenchmarkProtocol, BenchmarkResult, Score
from weft.benchmarks.text_model import Question, TextModel, tokenizer_name
from weft.core.errors import DataError, InputError
from weft.core.part_config import PartConfig
from weft.data.text import read_document
from weft.evaluation.completions import Likelihood


@dataclass(frozen=True)
class Conditions:
    """The permissions and limits that a user sets for a benchmark.

    Attributes:
        limit: use only so many requests of each part; None: all.
        run_programs: whether programs that the model writes may be run.
        run_code: files of Python, or folders of them, that tasks of lm-eval may run.
    """

    limit: int | None = None
    run_programs: bool = False
    run_code: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise InputError(f"{self.limit} requests.", where="limit", remedy="Give 1 or more.")


class BenchmarkConfig(PartConfig):
    """Base of benchmarks.

    Class attributes:
        runs_programs: whether it runs programs that the model writes.
    """

    group: ClassVar[str] = "benchmark"
    runs_programs: ClassVar[bool] = False

    def measure(self, model: TextModel, data: Path, conditions: Conditions) -> BenchmarkResult:
        """Ask the model everything, and mark its answers.

        Args:
            data: file or folder in the benchmark's own format.

        Raises:
            DataError: the data cannot be read; ``where`` has the file and the line.
            UnsupportedError: the model cannot answer.
            InputError: consent is missing, or a request does not fit into the context.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how it measures")


@dataclass(frozen=True)
class BenchmarkFiles:
    """The bytes that a benchmark has read, for the protocol.

    Attributes:
        name: of the file or folder.
        sha256: over the names and contents of its files, in the order of reading.
    """

    name: str
    sha256: str

    def describe(self) -> str:
        """Name and the beginning of the hash."""
        return f"{self.name}, sha256 {self.sha256[:12]}"


class FileReader:
    """Reads text files, and remembers what was read.

    Args:
        root: the file or folder that the user named.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._hash = root, hashlib.sha256()
        if not root.exists():
            raise DataError("no such file or folder.", where=str(root), remedy="Give the benchmark's data with --data.")

    def text(self, path: Path) -> str:
        """The text of a file, whose line ends become ``\\n``.

        Raises:
            DataError: it is missing, binary or not UTF-8.
        """
        if not path.is_file():
            raise DataError("no such file.", where=str(path), remedy="Give the benchmark's data with --data.")
        content = bytes(read_document(path))
        self._hash.update(f"{path.name}\0{len(content)}\0".encode() + content)
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")

    @property
    def material(self) -> BenchmarkFiles:
        """The data that have been read."""
        return BenchmarkFiles(self._root.resolve().name, self._hash.hexdigest())


ENCODING = ("prompt and completion are encoded as one text and divided after as many tokens as the prompt has alone, a "
            "space before the completion being part of it")
"""How `weft.benchmarks.text_model.encoded_pair` divides them."""


def tokenizer_line(model: TextModel, encoding: str = ENCODING) -> str:
    """The tokenizer and its use, for a protocol."""
    opens = "no token before a prompt" if model.opening is None else "the token that begins a document before a prompt"
    return f"{tokenizer_name(model.tokenizer)}: {opens}; {encoding}"


def context_line(model: TextModel, room: int = 0) -> str:
    """The context and what is cut, for a protocol."""
    kept = f", of which {room:,} for new tokens" if room else ""
    return f"rows of at most {model.context:,} tokens{kept}, longer prompts cut on the left"


def found(config: BenchmarkConfig, model: TextModel, scores: Sequence[Score], protocol: BenchmarkProtocol, example: str,
          requests: Sequence[Mapping[str, Any]]) -> BenchmarkResult:
    """The result of a benchmark of a model."""
    return BenchmarkResult(config.kind, config.dump(), tuple(scores), protocol, model.name, model.fingerprint, example,
                           tuple(requests))


def digest_of(prompt: str) -> str:
    """The beginning of a prompt's SHA-256, by which requests are told apart in results."""
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def marked(question: Question, answer: Sequence[Likelihood], scores: Sequence[float], right: int) -> dict[str, Any]:
    """The record of a question with choices, of which the highest score is the model's; of equal ones the first."""
    choice = max(range(len(scores)), key=scores.__getitem__)
    return {"prompt_sha256": digest_of(question.prompt), "log_probs": [each.log_prob for each in answer],
            "scores": list(scores), "choice": choice, "right": right, "correct": choice == right,
            "cut": max(each.cut for each in answer)}
