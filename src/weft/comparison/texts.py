"""The study's text: tokens that all runs read, and the held-out text in two, one to tune on, the other to report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from weft.comparison.cautions import beginnings
from weft.comparison.contestants import Contestant
from weft.core.errors import DataError
from weft.data import Corpus, PackedBatches, Repeated, ShuffledBatches, TokenStream, overlap, read_text
from weft.data.corpus import FEWEST_TO_SPLIT
from weft.data.prepared_manifest import read_prepared_manifest
from weft.data.settings import DataSettings
from weft.disk.atomic import replacing, write_file
from weft.disk.documents import read_json
from weft.tasks.token_streams import read_texts
from weft.training.config import RunConfig
from weft.training.material import prepare_folder

TOKENS, TUNING, TEST, MANIFEST = "tokens", "tuning", "test", "texts.json"
PARTS = ("the corpus", "the tuning text", "the test text")
"""What the manifest has hashes of."""


@dataclass(frozen=True)
class StudyTexts:
    """The texts that the study reads.

    Attributes:
        tokens: the prepared folder of each model; one for all that share a tokenizer.
        tuning: folder of text files, one for each document: learning rates are chosen on it.
        test: the same: every figure of the study is measured on it.
        how: the held-out text was parted, in a sentence.
        hashes: of the whole text, of ``tuning`` and of ``test``.
        test_bytes: and ``test_documents``: of the text of the figures.
        overlaps: of each document of the test text, the part that stands in the training text, too.
        repeated: the same over all of them.
        beginnings: what is known of trained weights with which models begin, in sentences.
    """

    tokens: Mapping[str, Path]
    tuning: Path
    test: Path
    how: str
    name: str
    hashes: tuple[str, str, str]
    train_bytes: int
    test_bytes: int
    test_documents: int
    overlaps: tuple[float, ...]
    repeated: Repeated
    beginnings: tuple[str, ...] = ()


def prepare_texts(contestants: list[Contestant], folder: Path) -> StudyTexts:
    """Tokenise the text once and part what is held out.

    What stands in ``folder`` is kept if it is of this text; where one of the held-out texts there is damaged it is made
    again. A folder of another text is refused: its results are of that text, which may by now be training text.

    Args:
        contestants: the models; all read the same text.
        folder: takes the tokens and the two held-out texts.

    Raises:
        DataError: the text cannot be read, has changed since the study began, or is too small to be parted twice.
        TokenizerError: a tokenizer cannot be made, or cannot express the text.
    """
    settings = source_settings(contestants[0].run.data)
    read = read_texts(settings)
    tuning, test, how = _halves(read.parts, settings)
    hashes = (read.corpus_sha256, tuning.sha256, test.sha256)
    _require_same_text(folder, hashes)
    for name, corpus in ((TUNING, tuning), (TEST, test)):
        if not (folder / name).is_dir() or _files(corpus) != {path.name: path.read_bytes()
                                                              for path in (folder / name).iterdir()}:
            with replacing(folder / name) as draft:
                for file, content in _files(corpus).items():
                    (draft / file).write_bytes(content)
    shares, sizes = overlap(test.documents, read.parts["train"].documents)
    return StudyTexts(_tokens(contestants, settings, folder, read.parts), folder / TUNING, folder / TEST, how,
                      _name(settings, read.corpus), hashes, read.parts["train"].size_bytes, test.size_bytes,
                      len(test.documents), tuple(shares.round(4).tolist()), Repeated.over(shares, sizes),
                      beginnings(contestants, test))


def _require_same_text(folder: Path, hashes: tuple[str, str, str]) -> None:
    """Write down of which text the folder is, or compare. Raises `DataError`: it is of another."""
    manifest = folder / MANIFEST
    if not manifest.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_file(manifest, json.dumps(dict(zip(PARTS, hashes, strict=True)), indent=1) + "\n")
        return
    try:
        before = read_json(manifest)
        changed = [f"{part} (SHA-256 {before[part][:12]}, now {now[:12]})"
                   for part, now in zip(PARTS, hashes, strict=True) if before[part] != now]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"the file is damaged ({error}), so the text of the study is not known.",
                        where=str(manifest), remedy="Choose another folder for the study.") from None
    if changed:
        raise DataError(f"the text has changed since the study in {folder.parent} began: {', '.join(changed)}.",
                        where="data", remedy="Put the text back, or choose another folder: what was found there is of "
                        "the text as it was.")


def _files(corpus: Corpus) -> dict[str, bytes]:
    """A file for each document that has text."""
    digits = len(str(len(corpus.documents)))
    return {f"{index:0{digits}d}.txt": document.text.encode("utf-8")
            for index, document in enumerate(each for each in corpus.documents if each.text)}


def _name(settings: DataSettings, described: str) -> str:
    """The corpus in a word; a file with its folder, as many corpora have a ``train.txt``."""
    path = Path(settings.path).absolute() if isinstance(settings.path, str) else None
    if path is None or not path.is_file():
        return described.partition(":")[0]
    return (Path(path.parent.name) / path.name).as_posix()


def source_settings(data: DataSettings) -> DataSettings:
    """The settings of the text itself, where ``data`` names a folder that was prepared from it."""
    if data.prepared is None:
        return data
    recipe = read_prepared_manifest(data.prepared).recipe
    return DataSettings.model_validate({**recipe.data, "path": recipe.path})


def few_documents(folder: Path, max_bytes: int) -> Corpus:
    """At most so much of a held-out text, the same documents for every model."""
    return read_text(folder).limited(max_bytes)


def _tokens(contestants: list[Contestant], settings: DataSettings, folder: Path,
            parts: Mapping[str, Corpus]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    made: dict[str, Path] = {}
    for each in contestants:
        config = each.run.tokenizer
        key = config.model_dump_json()
        if each.run.data.prepared is not None:
            made[key] = _of_this_text(each.run.data.prepared, parts)
        elif key not in made:
            made[key] = folder / (f"{TOKENS}-{each.name}" if made else TOKENS)
            prepare_folder(settings, config, made[key])
        found[each.name] = made[key]
    return found


def _of_this_text(prepared: Path, parts: Mapping[str, Corpus]) -> Path:
    """A folder whose tokens are of the text that is held out here. Raises `DataError`: the text has changed since it
    was prepared."""
    before = read_prepared_manifest(prepared).parts
    changed = [name for name, corpus in parts.items()
               if name not in before or before[name].corpus_sha256 != corpus.sha256]
    if changed:
        raise DataError(f"the text has changed since it was prepared ({', '.join(changed)}).", where=str(prepared),
                        remedy="Prepare it again, or put the text back.")
    return prepared


def _halves(parts: Mapping[str, Corpus], settings: DataSettings) -> tuple[Corpus, Corpus, str]:
    if "test" in parts:
        return parts["validation"], parts["test"], ("Learning rates are chosen on the validation text; every figure is "
                                                    "measured on the test text, which nothing else reads.")
    validation = parts["validation"]
    tuning, test = validation.split(0.5, seed=settings.split_seed, by=settings.split_by)
    by = "by document" if len(validation.documents) >= FEWEST_TO_SPLIT else "within each document, at a line"
    return tuning, test, (f"The text held out of training is parted in two {by}: learning rates are chosen on one "
                          "half, every figure is measured on the other.")


def tokens_paid_for(stream: TokenStream, run: RunConfig, tokens: int) -> TokenStream:
    """The windows that a model trained by gradients would read first in this order of the data, each once, in the
    order of the text; the whole stream where the tokens pay for all windows.

    Windows that do not touch are parted by a mark, so that nothing is counted across the gap.

    Args:
        run: its batch, context and seed of the order.
        tokens: inputs that may be read.
    """
    # A stream of places: its batches say where the windows lie.
    places = replace(stream, tokens=np.arange(len(stream)))
    kind = PackedBatches if run.data.packing == "documents" else ShuffledBatches
    batches = kind(places, rows=1, length=run.context, seed=run.data.order_seed)
    wanted = max(1, int(tokens // batches.tokens_per_batch))
    if wanted >= batches.windows:
        return stream
    chosen = np.zeros(len(stream), dtype=np.bool_)
    for index in range(wanted):
        window = batches.batch(index)
        for read in (window.inputs, window.targets):
            chosen[read[0] if window.count is None else read[0, :window.count[0]]] = True
    gap = chosen & ~np.concatenate([[False], chosen[:-1]])
    return replace(stream, tokens=stream.tokens[chosen], begins=(stream.begins | gap)[chosen],
                   byte_lengths=stream.byte_lengths[chosen],
                   flags=None if stream.flags is None else stream.flags[chosen],
                   lost=None if stream.lost is None else stream.lost[chosen])
