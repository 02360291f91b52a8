"""The study's text: tokens that all runs read, and the held-out text in two, one to tune on, the other to report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weft.checkpoints.atomic import replacing
from weft.comparison.contestants import Contestant
from weft.data import Corpus, read_text
from weft.data.corpus import FEWEST_TO_SPLIT
from weft.data.manifest import read_manifest
from weft.data.settings import DataSettings
from weft.training.material import prepare_folder, read_texts

TOKENS, TUNING, TEST = "tokens", "tuning", "test"


@dataclass(frozen=True)
class StudyTexts:
    """What the study reads.

    Attributes:
        tokens: the prepared folder of each model; one for all that share a tokenizer.
        tuning: folder of text files, one for each document: learning rates are chosen on it.
        test: the same: every figure of the study is measured on it.
        how: the held-out text was parted, in a sentence.
        name: of the corpus.
        sha256: of the corpus.
        train_bytes: of the training text.
        test_bytes: and ``test_documents``: of the text of the figures.
    """

    tokens: Mapping[str, Path]
    tuning: Path
    test: Path
    how: str
    name: str
    sha256: str
    train_bytes: int
    test_bytes: int
    test_documents: int


def prepare_texts(contestants: list[Contestant], folder: Path) -> StudyTexts:
    """Tokenise the text once and part what is held out; what stands in ``folder`` already is kept.

    Args:
        contestants: the models; all read the same text.
        folder: takes the tokens and the two held-out texts.

    Raises:
        DataError: the text cannot be read, has changed, or is too small to be parted twice.
        TokenizerError: a tokenizer cannot be made, or cannot express the text.
    """
    settings = source_settings(contestants[0].run.data)
    read = read_texts(settings)
    tuning, test, how = _halves(read.parts, settings)
    for name, corpus in ((TUNING, tuning), (TEST, test)):
        if not (folder / name).exists():
            _write(folder / name, corpus)
    return StudyTexts(_tokens(contestants, settings, folder), folder / TUNING, folder / TEST, how,
                      _name(settings, read.corpus), read.corpus_sha256, read.parts["train"].size_bytes,
                      test.size_bytes, len(test.documents))


def _name(settings: DataSettings, described: str) -> str:
    """The corpus in a word; a file with its folder, as many corpora have a ``train.txt``."""
    path = None if settings.path is None else Path(settings.path).absolute()
    if path is None or not path.is_file():
        return described.partition(":")[0]
    return (Path(path.parent.name) / path.name).as_posix()


def source_settings(data: DataSettings) -> DataSettings:
    """The settings of the text itself, where ``data`` names a folder that was prepared from it."""
    if data.prepared is None:
        return data
    recipe = read_manifest(data.prepared).recipe
    return DataSettings.model_validate({**recipe.data, "path": recipe.path})


def few_documents(folder: Path, max_bytes: int) -> Corpus:
    """At most so much of a held-out text, the same documents for every model."""
    return read_text(folder).limited(max_bytes)


def _tokens(contestants: list[Contestant], settings: DataSettings, folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    made: dict[str, Path] = {}
    for each in contestants:
        config = each.run.tokenizer
        key = config.model_dump_json()
        if each.run.data.prepared is not None:
            made[key] = each.run.data.prepared
        elif key not in made:
            made[key] = folder / (f"{TOKENS}-{each.name}" if made else TOKENS)
            prepare_folder(settings, config, made[key])
        found[each.name] = made[key]
    return found


def _halves(parts: Mapping[str, Corpus], settings: DataSettings) -> tuple[Corpus, Corpus, str]:
    if "test" in parts:
        return parts["validation"], parts["test"], ("Learning rates are chosen on the validation text; every figure is "
                                                    "measured on the test text, which nothing else reads.")
    validation = parts["validation"]
    tuning, test = validation.split(0.5, seed=settings.split_seed)
    by = "by document" if len(validation.documents) >= FEWEST_TO_SPLIT else "within each document, at a line"
    return tuning, test, (f"The text held out of training is parted in two {by}: learning rates are chosen on one "
                          "half, every figure is measured on the other.")


def _write(folder: Path, corpus: Corpus) -> None:
    digits = len(str(len(corpus.documents)))
    with replacing(folder) as draft:
        for index, document in enumerate(each for each in corpus.documents if each.text):
            (draft / f"{index:0{digits}d}.txt").write_bytes(document.text.encode("utf-8"))
