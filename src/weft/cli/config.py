"""``weft config show`` and ``weft config schema``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.closing import Given, word
from weft.cli.options import Json, Plugin, guarded, prepare, print_json

config_app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None,
                         help="Show a resolved configuration, or the JSON Schema.")

Config = Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML or JSON file, or the name of a preset.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="key.path=value", help="Changes to the configuration.")]


def _after_show(given: Given) -> str:
    return f"weft config show {word(given['config'])} > my.yaml, change it, and weft train my.yaml trains it"


@config_app.command("show")
@guarded(_after_show)
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
