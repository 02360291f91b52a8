"""Verdicts on anything that claims to be a language model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from weft.api.examining import check, resolved_target
from weft.core.base_model import built_empty
from weft.core.declarations import Trait
from weft.core.errors import CheckpointError, ConfigError, InputError, MissingExtra, TokenizerError
from weft.core.model import ModelConfig
from weft.core.part import traits_of
from weft.families.family import family_of
from weft.interop.huggingface import judged
from weft.interop.huggingface.folder import is_foreign, read_raw
from weft.judge.endpoint import judge_endpoint
from weft.judge.judgement import Thing, Verdict
from weft.judge.questions import FileLimits, Judged
from weft.judge.referee import judge_file
from weft.judge.weft_laws import verdict_of


def verdict(thing: str | Path, overrides: Iterable[str] = (), *, gives: str | None = None,
            limits: FileLimits | None = None, test_text: str | Path | None = None, model: str | None = None,
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
        test_text: a file with the text that a file's model is scored on elsewhere; None: what it claims.
        model: the name of an endpoint's model; None: the first that it lists.
        on_law: called for progress with the name of the law that begins.

    Raises:
        InputError: there is no such thing, or a text that cannot be read.
        UnsupportedError: this machine cannot confine a file.
        MissingExtra: a folder of a family that Weft does not read, and `transformers` is not installed.
    """
    limits, name = limits or FileLimits(), str(thing)
    if test_text is not None and not Path(test_text).is_file():
        raise InputError("there is no such file.", where=str(test_text), remedy="Give a file with the test text.")
    if name.startswith(("http://", "https://")):
        return judge_endpoint(name, model=model, seconds=limits.answer, on_law=on_law)
    test = None if test_text is None else Path(test_text).resolve()
    path, _, call = name.rpartition(":") if ".py:" in name else (name, "", "model")
    if path.endswith(".py"):
        return judge_file(Judged(Path(path), call), gives=gives, limits=limits, test_text=test, on_law=on_law)
    if _of_another_family(Path(name)):
        if find_spec("transformers") is None:
            raise MissingExtra("transformers", "interop", f"{name}, of a family that Weft does not read,")
        folder = str(Path(name).resolve())
        source = Judged(Path(judged.__file__), readable=(folder,), environment=((judged.FOLDER, folder),))
        found = judge_file(source, limits=limits, test_text=test, on_law=on_law)
        return found.model_copy(update={"thing": found.thing.model_copy(update={"kind": "folder", "path": name,
                                                                                "sha256": None, "call": None})})
    return _by_weft(name, overrides, on_law)


def _of_another_family(folder: Path) -> bool:
    """Whether a folder is one of `transformers`, of a family that Weft does not read."""
    if not is_foreign(folder):
        return False
    try:
        family_of(read_raw(folder), str(folder))
    except CheckpointError:
        return True
    return False


def _by_weft(name: str, overrides: Iterable[str], on_law: Callable[[str], None] | None) -> Verdict:
    """The verdict of Weft's own laws; a configuration or a checkpoint that is none is not judged."""
    folder = Path(name)
    thing = Thing(kind="folder" if is_foreign(folder) else "run" if folder.is_dir() else "configuration", path=name)
    try:
        found = resolved_target(name, overrides)
        checked = check(found, on_law=None if on_law is None else lambda _, law: on_law(law))
    except (ConfigError, CheckpointError, TokenizerError) as error:
        return Verdict(thing=thing, verdict="not judged", why=f"{error}")
    model = built_empty(found) if isinstance(found, ModelConfig) else found.model
    return verdict_of(thing, checked, by_length=Trait.DECLARED_LENGTH in traits_of(model))
