"""Training, comparing and extending models, and the check of parts from outside Weft before either."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.api.configs import Config, one_or_more, read_config, read_run, run_file
from weft.api.models import Model, load_language_model, require_device, save
from weft.api.using import evaluation_text
from weft.comparison.contestants import Contestant
from weft.comparison.folder import rerender
from weft.comparison.jobs import Options
from weft.comparison.ladder import run_ladder
from weft.comparison.ladder_findings import LadderResult
from weft.comparison.progress import StudyListener
from weft.comparison.rungs import at_budget, parse_rungs
from weft.comparison.study import Named, StudyConfig, read_study
from weft.comparison.study_result import StudyResult
from weft.comparison.study_runner import run_study
from weft.core.errors import InputError, LawError
from weft.core.model import ModelConfig
from weft.core.process_settings import require_threads
from weft.extending import Extended
from weft.extending import extend as extend_loaded
from weft.extending.extend import Measuring
from weft.laws.check import check
from weft.laws.equal_forms import outside_forms
from weft.masks.expression import parts_and_masks
from weft.tasks.token_streams import HeldOut
from weft.training.events import Event, Notice
from weft.training.files import read_plain
from weft.training.folder import START_FOLDER
from weft.training.parallel import World
from weft.training.run_training import TrainResult
from weft.training.run_training import train as train_run


def train(config: Config, overrides: str | Iterable[str] = (), *, start: Model | None = None,
          out: str | Path | None = None, resume: bool = False, allow_inexact: bool = False, unchecked: bool = False,
          device: str = "cpu",
          on_event: Callable[[Event], None] | None = None) -> TrainResult:
    """Train a run; see `weft.training.run_training`.

    The folder of a run is a configuration too: that run goes on there unless ``out`` names another folder, to a larger
    budget if one is given.

    With ``start`` the run begins with the model and the tokenizer of a checkpoint's folder, or of a model in memory,
    which is then saved as ``out``/start; of the configuration's own model only its head stays.

    A model with parts from outside Weft (from a plugin) is first checked against the laws on a small twin, which takes
    some seconds. A model that breaks a law is refused unless ``unchecked`` is set. A resumed run is not checked again.

    Under `torchrun` all processes train the model together, see `weft.training.parallel`.
    """
    require_device(device)
    with World.here(device) as world:
        place, resume = _place(config, out, resume)
        folder = None if start is None else world.lead(lambda: str(_start_folder(start, place)))
        run = read_run(config, one_or_more(overrides), start=folder)
        require_device(str(world.device))
        if not (unchecked or resume):
            world.lead(lambda: require_lawful(run.model, None if on_event is None else (
                lambda line: on_event(Notice(0, line)))))
        return train_run(run, place, resume=resume, allow_inexact=allow_inexact, on_event=on_event, world=world)


def _place(config: object, out: str | Path | None, resume: bool) -> tuple[Path, bool]:
    """Return the run's folder, and whether the run in it goes on."""
    own = run_file(config)
    if own is not None and (out is None or Path(out).resolve() == own.parent.resolve()):
        return own.parent, True
    return Path("runs/latest") if out is None else Path(out), resume


def _start_folder(start: Model, out: Path) -> Path:
    """Return the folder of a run's start; a model in memory is saved in the run's own, unless it is there already.

    Raises:
        InputError: it is a module that is no model of Weft.
    """
    if isinstance(start, str | Path):
        return Path(start)
    folder = out / START_FOLDER
    if not folder.exists():
        save(start, folder)
    return folder


def compare(models: str | Sequence[str | Path] | Mapping[str, Config] = (), overrides: str | Iterable[str] = (), *,
            study: str | Path | Mapping[str, Any] | StudyConfig | None = None, given: Mapping[str, Any] | None = None,
            out: str | Path = "runs/compare", device: str = "cpu", threads: int | None = None,
            plugins: Sequence[str] = (), unchecked: bool = False, command: str = "",
            on_progress: StudyListener | None = None) -> StudyResult:
    """Train models under one budget and compare how well they predict; the results are written to ``out`` and returned.

    Finished runs in ``out`` are read back, so that the same call continues an interrupted study. Each run has its own
    process. Failures of a model or of the machine are recorded in the result; a study may end without a finished run.

    Models with parts from outside Weft (from a plugin) are first checked against the laws, each on a small twin: one
    that reads tokens which it is to predict would win every comparison. Models that a study has already are not checked
    again when it goes on.

    Args:
        models: presets or paths, each named after itself; or configurations of any kind, by name.
        overrides: ``key.path=value`` changes to the study.
        study: the file of a study, or what such a file holds, to whose models ``models`` are added; or a study object.
        given: keys of the study, such as ``{"budget": {"kind": "parameters", "amount": 2e6}}``.
        out: the study's folder.
        device: the device to compute on.
        threads: number of CPU threads; None: PyTorch's default.
        plugins: files that add parts, loaded by every process.
        unchecked: compare models that break a law too.
        command: the command line that repeats the study, for the report.
        on_progress: called with every line of progress.

    Raises:
        InputError: ``study`` is an object, and there are models, overrides or keys beside it.
        LawError: a model breaks a law; nothing has been written.
    """
    overrides, named = one_or_more(overrides), _named(models)
    if isinstance(study, StudyConfig):
        if named or given or list(overrides):
            raise InputError("models, overrides or keys cannot be given beside a study object.", where="study",
                             remedy="Make them part of the object.")
        config = study
    else:
        config = read_study(named, overrides, study=study, given=given)
    if threads is not None:
        require_threads(threads, "threads")
    options = Options(str(require_device(device)), threads, tuple(plugins), command=command)
    return run_study(config, out, read_config, options, on_progress,
                     require=None if unchecked else _require_lawful_contestant)


def compare_ladder(models: str | Sequence[str | Path] | Mapping[str, Config] = (), overrides: str | Iterable[str] = (),
                   *, ladder: str | Mapping[str, Any], study: str | Path | Mapping[str, Any] | None = None,
                   given: Mapping[str, Any] | None = None, out: str | Path = "runs/compare", device: str = "cpu",
                   threads: int | None = None, plugins: Sequence[str] = (), unchecked: bool = False, command: str = "",
                   on_progress: StudyListener | None = None) -> LadderResult:
    """Compare models at several budgets, by the same study at each, and say where their order turns; see
    `weft.comparison.ladder`.

    Args:
        ladder: the budgets: ``tokens=1e5:1e7:5`` (five, equal ratios apart), ``tokens=1e5,1e6`` or
            ``{"tokens": [1e5, 1e6]}``; or flops, seconds or parameters.
        study: the file of a study, or what such a file holds, without the budget that the ladder varies.
        out: the ladder's folder, in which every study has one of its own.

    The other arguments, and further errors, are those of `compare`.

    Raises:
        InputError: budgets that do not rise, or that ``given`` states too.
    """
    rungs, named, chosen = parse_rungs(ladder), _named(models), dict(given or {})
    stated = {} if study is None else study if isinstance(study, Mapping) else read_plain(study)
    if threads is not None:
        require_threads(threads, "threads")
    options = Options(str(require_device(device)), threads, tuple(plugins), command=command)
    return run_ladder(
        rungs, lambda amount: read_study(named, one_or_more(overrides), study=study, given=at_budget(
            rungs.axis, amount, stated, chosen)), out, read_config, options, on_progress,
        require=None if unchecked else _require_lawful_contestant)


def _require_lawful_contestant(contestant: Contestant, report: Callable[[str], None]) -> None:
    require_lawful(contestant.run.model, report, where=f"models.{contestant.name}")


def _named(models: str | Sequence[str | Path] | Mapping[str, Config]) -> Named:
    """Return the models of a study, those in memory as plain data."""
    if not isinstance(models, Mapping):
        return one_or_more(models)
    return {name: str(each) if isinstance(each, str | Path) else read_config(each) for name, each in models.items()}


def compare_report(folder: str | Path) -> Path:
    """Write a study's report again from its stored result, and return the report's path."""
    return rerender(folder)


OWN = "weft."


def outside_parts(config: ModelConfig) -> list[str]:
    """Return the kinds of the parts and masks that come from a plugin's file or another installed package."""
    return sorted({each.kind for each in parts_and_masks(config) if not type(each).__module__.startswith(OWN)})


def require_lawful(config: ModelConfig, report: Callable[[str], None] | None = None, *, where: str = "model") -> None:
    """Run the laws on a small twin of a model that has parts or masks from outside Weft, or where operations have
    forms from outside. In training, a model that breaks a law computes something other than in decoding, or has wrong
    gradients.

    Args:
        config: the model's configuration.
        report: called with lines of progress.
        where: the configuration stands, for the message.

    Raises:
        LawError: the model breaks a law; the message gives the worst finding.
    """
    forms = [f"the form {form.name} of {operation.name}" for operation, form in outside_forms()]
    names = ", ".join([*outside_parts(config), *forms])
    if not names:
        return
    report = report or (lambda line: None)
    report(f"checking the laws on a small twin of the model, which has parts from outside Weft ({names})")
    result = check(config)
    if not result.holds:
        worst, *others = next(each for each in result.reports() if not each.holds).broken()
        more = f" and {len(others)} further findings" if others else ""
        raise LawError(f"the model breaks a law: {worst.law}: {worst.case}: {worst.difference:.2e} > {worst.bound:.0e}"
                       f"{more}. A model that breaks a law may compute something else in decoding than in training, "
                       "or have wrong gradients.",
                       where=f"{where} ({names})",
                       remedy="Run weft check for all findings and correct the part, or take it nevertheless with "
                              "--unchecked (unchecked=True).")
    report(f"every law holds ({result.seconds:.1f} s)")


def extend(model: Model, out: str | Path, *, context: int, method: str = "yarn", data: str | Path | None = None,
           part: HeldOut = "validation", measuring: Measuring | None = None, steps: int | None = None,
           overrides: str | Iterable[str] = (), on_event: Callable[[Event], None] | None = None) -> Extended:
    """Rescale a model's rotary positions for a longer context and measure its perplexity against length; see
    `weft.extending.extend`.

    Args:
        model: the checkpoint.
        out: a new folder, or one in which this extension was begun.
        context: length of the new context, in tokens.
        method: linear, ntk, yarn or longrope.
        data: a text to measure on; by default the text that the model's run held out.
        part: which of the run's held-out texts to use, without ``data``.
        measuring: how perplexity is measured.
        steps: number of training steps after the rescaling; None: none.
        overrides: ``key.path=value`` changes to that training.
        on_event: called with notices of progress and with the events of training.

    Raises:
        InputError: there are overrides and no training steps; and as for `weft.extending.extend`.
    """
    changes = one_or_more(overrides)
    if changes and steps is None:
        raise InputError("there are changes to the training, and no training was requested.", where="overrides",
                         remedy="Give a number of steps too.")
    loaded, _ = load_language_model(model, "perplexity")
    tuning = None if steps is None else (f"training.steps={steps}", *changes)
    return extend_loaded(loaded, evaluation_text(loaded, data, part), out, context=context, method=method,
                         measuring=measuring, tuning=tuning, on_event=on_event)
