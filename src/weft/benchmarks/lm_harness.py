"""Tasks of lm-eval (the Language Model Evaluation Harness, Gao et al. 2021), run on a `TextModel`; of the extra
``lm-eval``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from weft.benchmarks.base import Conditions, tokenizer_line
from weft.benchmarks.harness_model import HarnessModel
from weft.benchmarks.result import BenchmarkProtocol, BenchmarkResult, Score
from weft.benchmarks.text_model import TextModel
from weft.core.errors import FailedError, InputError, MissingExtra, WeftError, nearest

PREFIX = "lm-eval:"
"""What precedes the name of a task of lm-eval."""
RESAMPLES = 1000
"""Bootstrap samples for the standard errors that lm-eval has no formula for."""


def harness_model(model: TextModel) -> Any:
    """The model as an ``lm_eval.api.model.LM``, for ``lm_eval.simple_evaluate``.

    Raises:
        MissingExtra: lm-eval is not installed.
        InputError: no token begins a document.
        UnsupportedError: the model predicts no next token.
    """
    model.language_model("tasks of lm-eval")
    answering = HarnessModel(model)
    with _installed():
        from lm_eval.api.model import LM

    class WeftLM(LM):  # type: ignore[misc]  # the package has no types where it is not installed
        """A model of Weft."""

        @property
        def tokenizer_name(self) -> str:
            return model.tokenizer.name

        def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
            return answering.likelihoods([(str(each.args[0]), str(each.args[1])) for each in requests])

        def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
            return answering.rolling([str(each.args[0]) for each in requests])

        def generate_until(self, requests: Sequence[Any]) -> list[str]:
            return answering.written([(str(each.args[0]), each.args[1]) for each in requests])

    return WeftLM()


def run_harness(model: TextModel, name: str, folder: Path | None, conditions: Conditions) -> BenchmarkResult:
    """Run a task of lm-eval.

    Args:
        name: of the task, or several names with commas between them.
        folder: of tasks in lm-eval's YAML, the only ones then; None: lm-eval's own, whose data are on the Hub.
        conditions: what is allowed. Programs run as lm-eval runs them, without the limits of
            `weft.benchmarks.programs`, and so does code of the folder.

    Raises:
        MissingExtra: lm-eval is not installed.
        InputError: there is no such task, or the folder has code that was not allowed.
        FailedError: lm-eval could not run it.
    """
    if folder is not None and not folder.is_dir():
        raise InputError("no such folder.", where=str(folder), remedy="Give a folder of tasks in lm-eval's YAML.")
    if folder is not None:
        require_allowed(folder, conditions.run_code)
    asked, wanted = harness_model(model), [each.strip() for each in name.split(",")]
    with _installed():
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager
    with _told(name):
        manager = TaskManager(include_path=None if folder is None else str(folder), include_defaults=folder is None)
    for each in wanted:
        if each not in manager.all_tasks:
            raise InputError(f"lm-eval has no task {each!r}{' there' if folder else ''}.", where=f"{PREFIX}{each}",
                             remedy=nearest(each, manager.all_tasks) if len(manager.all_tasks) < 200 else
                             nearest(each, manager.all_tasks).partition("Known names")[0]
                             or "lm-eval ls tasks lists them.")
    with _told(name):
        found = simple_evaluate(asked, tasks=wanted, limit=conditions.limit, bootstrap_iters=RESAMPLES,
                                log_samples=True, confirm_run_unsafe_code=conditions.run_programs,
                                task_manager=manager)
    return _result(model, name, found, folder, conditions)


def require_allowed(folder: Path, allowed: Sequence[Path]) -> None:
    """Refuse a folder of tasks that names code (``!function``) in files that the user has not allowed.

    Args:
        folder: of lm-eval's YAML; files that these include are read too, wherever they lie.
        allowed: files of Python, or folders of them.

    Raises:
        InputError: a file of code that is not allowed, or YAML that cannot be read.
    """
    named = {file.resolve(): place for file, place in code_of(folder)}
    permitted = [each.resolve() for each in allowed]
    unseen = [file for file in sorted(named) if not any(file.is_relative_to(each) for each in permitted)]
    if unseen:
        more = f", and {len(unseen) - 1} further files" if len(unseen) > 1 else ""
        raise InputError(f"the task runs code of {unseen[0]}{more}, on this machine and without confinement.",
                         where=str(named[unseen[0]]), remedy="If you allow that, give --run-code with each of these "
                         f"files or their folder (run_code): --run-code {unseen[0]}")


def code_of(folder: Path) -> Iterator[tuple[Path, Path]]:
    """The files of code that tasks under a folder name, each with the YAML file that names it."""
    todo = sorted(each for each in folder.rglob("*") if each.suffix in (".yaml", ".yml"))
    seen = set[Path]()
    while todo:
        place = todo.pop(0)
        if place.resolve() in seen or not place.is_file():
            continue
        seen.add(place.resolve())
        try:
            events = list(yaml.parse(place.read_text("utf-8"), Loader=yaml.SafeLoader))
        except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
            raise InputError(f"not YAML, so the code that it names is not known: {' '.join(str(error).split())[:200]}.",
                             where=str(place), remedy="Correct or remove that file.") from None
        scalars = [event for event in events if isinstance(event, yaml.ScalarEvent)]
        yield from ((place.parent / f"{event.value.rpartition('.')[0]}.py", place) for event in scalars
                    if event.tag == "!function")
        if any(event.value == "include" for event in scalars):  # whatever text there names a file may be included
            for path in (place.parent / event.value for event in scalars):
                with suppress(OSError, ValueError):  # a text that is no path
                    todo += [path] if path.is_file() and path.suffix != ".py" else []


@contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise MissingExtra("lm_eval", "lm-eval", "a task of lm-eval") from None


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Turn what lm-eval raises into an error with its own words."""
    try:
        yield
    except WeftError:
        raise
    except Exception as error:  # of any kind: its tasks are data that run code of many packages
        said = " ".join(str(error).split())[:400] or "no message"
        raise FailedError(f"lm-eval could not run the task ({type(error).__name__}: {said}).", where=f"{PREFIX}{name}",
                          remedy="Check the task's YAML and its data; a task whose programs are run needs "
                          "--run-programs.") from error


def _result(model: TextModel, name: str, found: Mapping[str, Any], folder: Path | None,
            conditions: Conditions) -> BenchmarkResult:
    scores = [score for task, measures in found["results"].items()
              for score in _scores(task, measures, found["n-samples"].get(task, {}))]
    requests = [_record(task, sample) for task, samples in found["samples"].items() for sample in samples]
    shots = ", ".join(f"{task}: {count}" for task, count in found["n-shot"].items())
    versions = ", ".join(f"{task} {version}" for task, version in found["versions"].items())
    protocol = BenchmarkProtocol(
        "as the task has it", shots, f"as lm-eval's task has it ({versions})", "as the task has it",
        tokenizer_line(model), f"rows of at most {model.context:,} tokens, longer prompts cut on the left", 0,
        "lm-eval's own" if folder is None else folder.resolve().name,
        f"standard errors are lm-eval's, with {RESAMPLES:,} bootstrap samples where it has no formula",
        conditions.limit)
    first = next((sample for samples in found["samples"].values() for sample in samples), None)
    example = "" if first is None else str(first["arguments"][0][0])
    return BenchmarkResult(f"{PREFIX}{name}", {}, tuple(scores), protocol, model.name, model.fingerprint, example,
                           tuple(requests))


def _scores(task: str, measures: Mapping[str, Any], counts: Mapping[str, int]) -> Iterator[Score]:
    """The scores of a task: lm-eval's keys are ``measure,filter`` and ``measure_stderr,filter``."""
    for key, value in measures.items():
        measure, comma, kind = key.partition(",")
        if not comma or measure.endswith("_stderr") or not isinstance(value, int | float):
            continue
        error = measures.get(f"{measure}_stderr,{kind}")
        yield Score(measure if kind == "none" else f"{measure} ({kind})", float(value),
                    float(error) if isinstance(error, int | float) else None, int(counts.get("effective", 0)), task)


def _record(task: str, sample: Mapping[str, Any]) -> dict[str, Any]:
    """The result of lm-eval for a request, without its document."""
    measured = {name: float(value) for name in sample.get("metrics", ())
                if isinstance(value := sample.get(name), int | float)}
    return {"task": task, "doc_id": sample["doc_id"], "prompt_sha256": str(sample["prompt_hash"])[:16],
            "responses": _plain(sample["filtered_resps"]), "target": str(sample["target"]), **measured}


def _plain(value: Any) -> Any:
    """Responses as plain data."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
