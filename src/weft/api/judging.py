"""Verdicts on anything that claims to be a language model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import numpy as np

from weft.api.configs import read_config, read_run, run_file
from weft.api.examining import check, resolved_target
from weft.api.generating import require_tokenizer
from weft.api.training import compare
from weft.checkpoints import Loaded
from weft.comparison.progress import StudyListener
from weft.core.base_model import built_empty
from weft.core.declarations import Trait
from weft.core.errors import CheckpointError, ConfigError, InputError, MissingExtra, TokenizerError
from weft.core.model import LanguageModel, ModelConfig
from weft.core.part import traits_of
from weft.evaluation import score as score_rows
from weft.families.family import family_of
from weft.interop.huggingface import judged
from weft.interop.huggingface.folder import is_foreign, read_raw
from weft.judge.canaries import bits_in_rows
from weft.judge.endpoint import judge_endpoint
from weft.judge.judgement import LawResult, StudyAnswer, Thing, Verdict
from weft.judge.matched_study import PROTOCOL, RUNS, STUDY, answer, protocol, sealed
from weft.judge.questions import FileLimits, Judged
from weft.judge.referee import judge_file
from weft.judge.seen_text import laws_of
from weft.judge.weft_laws import verdict_of


def verdict(thing: str | Path, overrides: Iterable[str] = (), *, gives: str | None = None,
            limits: FileLimits | None = None, test_text: str | Path | None = None,
            fresh_text: str | Path | None = None, canaries: str | Path | None = None, model: str | None = None,
            on_law: Callable[[str], None] | None = None) -> Verdict:
    """Return a verdict on whether something is a language model: its laws, what was tried and what was found.

    Args:
        thing: a Python file, ``FILE.py`` or ``FILE.py:NAME`` (the name is ``model`` if none is given); a configuration,
            preset, run or checkpoint of Weft's; a folder of `transformers`; or an endpoint with OpenAI's completions
            (``http://localhost:8000/v1``).
        overrides: ``key.path=value`` changes to a configuration.
        gives: how the output of a file is read, ``logits``, ``log-probabilities``, ``next`` or ``scores``; None: worked
            out.
        limits: of a file's process, and of an endpoint's answer; None: the usual ones.
        test_text: a text that the model is scored on elsewhere, a file or a folder; None: what a file claims.
        fresh_text: documents of the same kind that nobody can have read, beside the documents of ``test_text``: is
            the test text predicted better than their difficulty explains?
        canaries: a file with lines that end in random words and stand in a text that must not be trained on: is one
            predicted better than fresh ones?
        model: the name of an endpoint's model; None: the first that it lists.
        on_law: called for progress with the name of the law that begins.

    Raises:
        InputError: there is no such thing, or a text that cannot be read.
        UnsupportedError: this machine cannot confine a file.
        MissingExtra: a folder of a family that Weft does not read, and `transformers` is not installed.
    """
    limits, name = limits or FileLimits(), str(thing)
    given = {"test_text": test_text, "fresh_text": fresh_text, "canaries": canaries}
    texts = {key: file for key, value in given.items() if (file := _file_of(value, key.replace("_", " "))) is not None}
    laws_of(texts)  # a file that shows nothing is refused before anything is asked
    if name.startswith(("http://", "https://")):
        return judge_endpoint(name, model=model, seconds=limits.answer, on_law=on_law, texts=texts)
    path, _, call = name.rpartition(":") if ".py:" in name else (name, "", "model")
    if path.endswith(".py"):
        return judge_file(Judged(Path(path), call), gives=gives, limits=limits, texts=texts, on_law=on_law)
    if _of_another_family(Path(name)):
        return _by_transformers(name, limits, on_law, texts)
    return _by_weft(name, overrides, on_law, texts)


def verdict_against(thing: str | Path, baseline: str | Path, overrides: Iterable[str] = (), *,
                    test_text: str | Path | None = None, tokens: float | None = None, runs: int = RUNS,
                    out: str | Path = "runs/judge", threads: int | None = None, plugins: Sequence[str] = (),
                    tell: Callable[[str], None] | None = None, on_progress: StudyListener | None = None) -> Verdict:
    """Return a verdict on a run or a configuration, and whether it is better than a baseline, by a matched study.

    Both models are trained alike from new seeds, the baseline with as many parameters (`weft.compare`). The differences
    that the study can show are told first, the protocol is sealed by a hash in ``out``, and only then is trained what
    is lawful. The same call goes on with a study that was interrupted.

    Args:
        thing: a run's folder, a configuration or a preset; its data, tokenizer and batches are those of both models.
        baseline: a configuration or a preset.
        overrides: ``key.path=value`` changes to the thing's configuration.
        test_text: a file, best with a text that nobody has seen; None: a share of the thing's own that a new seed
            chooses.
        tokens: of training; None: the length that the thing's configuration states.
        runs: of each model.
        out: the folder of protocol and study.
        threads: number of CPU threads; None: PyTorch's default.
        plugins: files that add parts, loaded by every process.
        tell: called with the power and the protocol's hash before the first run.
        on_progress: called with every line of the study's progress.

    Raises:
        InputError: the thing cannot be trained by Weft, there is no such text, or another protocol is in ``out``.
        ConfigError: the study cannot be run; every problem is listed.
    """
    name, folder, held_out = str(thing), Path(out), _file_of(test_text, "test text")
    _require_configuration(name)
    run, plain = read_run(name, overrides), read_config(baseline)
    study, content = sealed(folder, f"Is {name} better than {baseline}?", runs, held_out, plugins,
                            lambda draws: protocol(run, plain, held_out, tokens, draws))
    if tell is not None:
        tell(f"Detectable difference: {content['power']}\nThe protocol is sealed in {folder / PROTOCOL}: SHA-256 "
             f"{content['sha256']}.")
    found = _by_weft(name, overrides, None)
    if found.verdict != "lawful":
        return found.model_copy(update={"study": StudyAnswer(
            outcome="not done", baseline=str(baseline), power=content["power"], protocol=str(folder / PROTOCOL),
            protocol_sha256=content["sha256"], sentence=f"Nothing was trained, since the verdict is {found.verdict}.")})
    result = compare(study=study, out=folder / STUDY, threads=threads, plugins=plugins, unchecked=True,
                     on_progress=on_progress)
    return found.model_copy(update={"study": answer(result, name, str(baseline), content, folder)})


def _by_transformers(name: str, limits: FileLimits, on_law: Callable[[str], None] | None,
                     texts: Mapping[str, Path]) -> Verdict:
    """The verdict on a folder of a family that Weft does not read, through `transformers` in a process of its own."""
    if find_spec("transformers") is None:
        raise MissingExtra("transformers", "interop", f"{name}, of a family that Weft does not read,")
    folder = str(Path(name).resolve())
    source = Judged(Path(judged.__file__), readable=(folder,), environment=((judged.FOLDER, folder),))
    found = judge_file(source, limits=limits, texts=texts, on_law=on_law)
    return found.model_copy(update={"thing": found.thing.model_copy(update={"kind": "folder", "path": name,
                                                                            "sha256": None, "call": None})})


def _require_configuration(name: str) -> None:
    """Raise `InputError` for what Weft has no training of."""
    if ".py" in name or name.startswith(("http://", "https://")) or (Path(name).is_dir() and run_file(name) is None):
        raise InputError("a study trains the thing and its baseline alike, and this is no configuration and no run "
                         "that Weft could train.", where=name, remedy="Write the model as a part "
                         "(docs/add_a_part.md) and judge a configuration of it with --plugin; or leave out the study, "
                         "and compare the figures of both finished models on a text that nobody has seen.")


def _file_of(given: str | Path | None, name: str) -> Path | None:
    """The file or folder of a text."""
    if given is not None and not Path(given).exists():
        raise InputError("there is no such file.", where=str(given), remedy=f"Give a file with the {name}.")
    return None if given is None else Path(given).resolve()


def _of_another_family(folder: Path) -> bool:
    """Whether a folder is one of `transformers`, of a family that Weft does not read."""
    if not is_foreign(folder):
        return False
    try:
        family_of(read_raw(folder), str(folder))
    except CheckpointError:
        return True
    return False


def _by_weft(name: str, overrides: Iterable[str], on_law: Callable[[str], None] | None,
             texts: Mapping[str, Path] = MappingProxyType({})) -> Verdict:
    """The verdict of Weft's own laws; a configuration or a checkpoint that is none is not judged."""
    folder = Path(name)
    thing = Thing(kind="folder" if is_foreign(folder) else "run" if folder.is_dir() else "configuration", path=name)
    try:
        found = resolved_target(name, overrides)
        checked = check(found, on_law=None if on_law is None else lambda _, law: on_law(law))
    except (ConfigError, CheckpointError, TokenizerError) as error:
        return Verdict(thing=thing, verdict="not judged", why=f"{error}")
    model = built_empty(found) if isinstance(found, ModelConfig) else found.model
    bits = None if isinstance(found, ModelConfig) else partial(_bits, found)
    beside = {law: LawResult(name=law, outcome="not tried", why="a configuration has no weights that have read a text")
              if bits is None else asked(bits) for law, asked in laws_of(texts).items()}
    return verdict_of(thing, checked, by_length=Trait.DECLARED_LENGTH in traits_of(model), beside=beside)


def _bits(loaded: Loaded, texts: Sequence[str]) -> list[float]:
    """The bits of texts by a checkpoint."""
    model = loaded.model
    if not isinstance(model, LanguageModel):
        raise InputError("a model that predicts no next token has no bits of a text.", where=str(loaded.path),
                         remedy="Judge a language model, or leave out the texts.")
    return bits_in_rows([np.array(require_tokenizer(loaded).encode(each), np.int64) for each in texts],
                        min(model.limit() or 512, 512), model.vocab_size,
                        lambda rows: np.array([row.total for row in score_rows(model, rows.tolist()).rows]), 8 * 512)
