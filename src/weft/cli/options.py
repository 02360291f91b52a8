"""The options that commands share, and the handling of errors and plugins around every command.

``weft config show`` and ``weft config schema``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, final, get_args, get_type_hints

import typer

from weft.cli.closing import Given, say_next, word
from weft.cli.ctrl_c import INTERRUPTED as INTERRUPTED
from weft.cli.ctrl_c import WORD, begin_work
from weft.cli.failures import close_output, explained, leave_for_torchrun
from weft.core.errors import InputError, WeftError, from_ctrl_c
from weft.core.strict_json import dumps

if TYPE_CHECKING:
    from weft.checkpoints import Loaded

R = TypeVar("R")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Plugin = Annotated[list[Path] | None, typer.Option("--plugin", help="A Python file that adds parts. May be repeated.")]
Unchecked = Annotated[bool, typer.Option("--unchecked", help="Take the parts of a plugin without running the laws on "
                                                             "them first, which takes some seconds.")]
Device = Annotated[str, typer.Option("--device", help="Where to compute: cpu, cuda, cuda:1, ...")]
Dtype = Annotated[str | None, typer.Option("--dtype", help="Compute in float32, float64 or bfloat16.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Seed of random numbers.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads; default one per core.")]
Kernels = Annotated[list[str] | None, typer.Option("--kernels", metavar="OPERATION=FORM", help="Compute an operation "
                                                   "by this form; weft doctor lists them. May be repeated.")]
BATCH_SIZE = typer.Option("--batch-size", min=1, help="Rows computed at once.")
BatchSize = Annotated[int, BATCH_SIZE]
OwnBatchSize = Annotated[int | None, BATCH_SIZE]
"""None: the run's own."""
CONTEXT = typer.Option("--context", min=1, help="Tokens of a window, the most that a model reads at once.")
Context = Annotated[int | None, CONTEXT]
TrainingTokens = Annotated[float | None, typer.Option("--tokens", min=1, help="Tokens of training, such as 2e6.")]
Revision = Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit of a model on the Hub.")]
Offline = Annotated[bool, typer.Option("--offline", help="Take models of the Hub from the local cache only.")]
AllowPickles = Annotated[bool, typer.Option("--allow-pickles", help="Download pickled weights if there are no others.")]

MOST_WHOLE = 2**63 - 1

_command: ContextVar[ExitStack] = ContextVar("what ends with the command")


def guarded(closing: Callable[[Given], str]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """A decorator for the function of a command, which turns Weft's errors into a message and an exit code, without a
    traceback: 2 for what the user can correct, 1 for work that failed, 130 after Ctrl-C. A parameter whose type is a
    record, such as `Common`, stands for one option for each of the record's fields, or for those alone whose names
    follow the type in ``Annotated``.

    Args:
        closing: returns what to do next, which is said after a command that has succeeded in a terminal.
    """

    def decorated(command: Callable[..., R]) -> Callable[..., R]:
        parameters, records = _options_of(command)

        @functools.wraps(command)
        def run(**given: Any) -> R:
            inside = ExitStack()
            token = _command.set(inside)
            begin_work()
            try:
                _require_whole_numbers(given)
                inner = {name: {each: given[each] for each in fields} for name, (_, fields) in records.items()}
                own = given.keys() - {each for fields in inner.values() for each in fields}
                with inside:
                    done = command(**{name: given[name] for name in own},
                                   **{name: records[name][0](**fields) for name, fields in inner.items()})
                say_next(closing, given)
                return done
            except (Exception, KeyboardInterrupt) as error:
                code = _told(error)
                if code is None:
                    raise
                raise typer.Exit(code) from None
            finally:
                _command.reset(token)

        run.__annotations__ = {each.name: each.annotation for each in parameters}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # which typer reads
        return run

    return decorated


def _options_of(command: Callable[..., Any]) -> tuple[list[inspect.Parameter], dict[str, tuple[type, list[str]]]]:
    """The parameters of a command with the fields of records in the places of these, and the records: for each its kind
    and the fields that are options."""
    hints, parameters = get_type_hints(command, include_extras=True), list[inspect.Parameter]()
    records: dict[str, tuple[type, list[str]]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        kind, *names = get_args(hints[name]) or (hints[name],)
        if is_dataclass(kind):
            assert isinstance(kind, type), "a hint is no instance"
            fields = get_type_hints(kind, include_extras=True)
            records[name] = kind, names[0].split() if names else list(fields)
            parameters += [parameter.replace(name=each, annotation=fields[each], default=getattr(kind, each))
                           for each in records[name][1]]
        else:
            parameters.append(parameter.replace(annotation=hints[name]))
    return parameters, records


@final
@dataclass(frozen=True)
class Common:
    """The options that commands share, as they were given."""

    device: Device = "cpu"
    dtype: Dtype = None
    threads: Threads = None
    kernels: Kernels = None
    plugin: Plugin = None
    json: Json = False
    revision: Revision = None
    offline: Offline = False
    allow_pickles: AllowPickles = False

    def prepare(self) -> None:
        """Load plugins, set the number of threads, and force the forms of operations until the command ends."""
        prepare(self.plugin, self.threads, self.kernels)

    def folder(self, model: str | Path) -> Path:
        """The folder of a model named by a path or by its id on the Hub."""
        from weft.checkpoints.hub import resolve

        return resolve(model, revision=self.revision, offline=self.offline or None, allow_pickles=self.allow_pickles)

    def load(self, model: str | Path, purpose: str | None = None) -> Loaded:
        """The model, on the device and in the dtype that were asked for; see `weft.load`."""
        from weft import api

        return api.load(self.folder(model), device=self.device, dtype=self.dtype, purpose=purpose)


def _require_whole_numbers(options: Mapping[str, object]) -> None:
    """Refuse whole numbers of more than 64 bits, which tensors and files cannot hold. Raises `InputError`: naming the
    option."""
    for name, value in options.items():
        if isinstance(value, int) and not -MOST_WHOLE - 1 <= value <= MOST_WHOLE:
            raise InputError(f"whole numbers are at most {MOST_WHOLE:,} (64 bits).",
                             where=f"--{name.replace('_', '-')}", remedy="Give a smaller one.")


def _told(error: Exception | KeyboardInterrupt) -> int | None:
    """Print the message of an error; the exit code. None: it is left to `weft.cli.failures.run`, and nothing is
    printed."""
    if isinstance(error, typer.Exit):
        return None
    if isinstance(error, BrokenPipeError):  # the reader of our output has closed the pipe, so no message can be written
        close_output()
        return 0
    if from_ctrl_c(error):
        line, code = WORD, INTERRUPTED
    elif isinstance(error, WeftError):
        line, code = f"error: {error}", error.exit_code
        leave_for_torchrun(line)
    elif isinstance(error, OSError):
        line, code = explained(error)
    else:
        return None
    typer.echo(line, err=True)
    return code


def prepare(plugin: list[Path] | None = None, threads: int | None = None, kernels: Sequence[str] | None = None) -> None:
    """Load plugins, set the number of threads, and force the forms of operations until the command ends."""
    if plugin:
        from weft.core.registry import load_plugin  # it imports torch, without which weft list can do

        for path in plugin:
            load_plugin(path)
    if threads is not None:
        import torch

        from weft.core.process_settings import require_threads

        require_threads(threads, "--threads")
        torch.set_num_threads(threads)
    if kernels:
        from weft.ops.forms import forced

        _command.get().enter_context(forced(pairs_of(kernels)))


def pairs_of(kernels: Sequence[str]) -> dict[str, str]:
    """Parse ``["attention=reference"]`` into ``{"attention": "reference"}``. Raises `InputError`: one is not of that
    shape."""
    pairs = [each.partition("=") for each in kernels]
    wrong = next((each for each, pair in zip(kernels, pairs, strict=True) if not all(pair)), None)
    if wrong is not None:
        raise InputError(f"{wrong!r} does not name a form of an operation.", where="--kernels",
                         remedy="Give OPERATION=FORM, such as attention=reference.")
    return {name: form for name, _, form in pairs}


def print_json(data: Any) -> None:
    """Print one JSON document, see `weft.core.strict_json`."""
    typer.echo(dumps(data, indent=2))


config_app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None,
                         help="Show a resolved configuration, or the JSON Schema.")

Config = Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML or JSON file, or the name of a preset.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="key.path=value", help="Changes to the configuration.")]


@config_app.command("show")
@guarded(lambda given:
         f"weft config show {word(given['config'])} > my.yaml, change it, and weft train my.yaml trains it")
def show(config: Config, overrides: Overrides = None, plugin: Plugin = None, json: Json = False) -> None:
    """Show the resolved configuration, defaults included."""
    prepare(plugin)
    from weft.api import read_run

    tree = read_run(config, overrides or []).dump()
    if json:
        print_json(tree)
        return
    import yaml

    typer.echo(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), nl=False)


@config_app.command("schema")
@guarded(lambda given: "an editor that knows JSON Schema completes and checks configurations by this file")
def schema(config: Annotated[str | None, typer.Argument(metavar="CONFIG", help="A configuration; one that holds only a "
                                                        "model gives the schema of that kind of model.")] = None,
           out: Annotated[Path | None, typer.Option("--out", help="Write here; a new file.")] = None,
           plugin: Plugin = None, json: Json = False) -> None:
    """Show the JSON Schema of configurations, for editors.

    Parts of plugins are included. The output is JSON with or without --json.
    """
    prepare(plugin)
    from weft.api import config_schema

    found = config_schema(config)
    if out is None:
        print_json(found)
        return
    from weft.core.errors import InputError
    from weft.core.strict_json import dumps
    from weft.disk.atomic import new_file

    try:
        with new_file(out) as draft:
            draft.write_text(dumps(found, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"the file cannot be written ({error.strerror}).", where=str(out),
                         remedy="Give a path in a folder that exists and has room.") from None
    typer.echo(f"wrote {out}")
