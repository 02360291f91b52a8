"""Writes the gallery, the command-line page, the study of positions, the list of the museum and the README's tables
from the code, and the pages of the studies from their recipes: ``python docs/generate.py``; ``python docs/generate.py
KIND`` writes the page of one part or family, and the README's tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gallery import write_gallery
from typer import Context
from typer.core import TyperCommand, TyperGroup

from weft.analysis.known_parts import MASK, catalogue
from weft.cli.main import WeftGroup
from weft.comparison.folder import read_result
from weft.comparison.results import StudyModel
from weft.comparison.study_result import StudyResult
from weft.comparison.verdict import letters, mean_interval
from weft.core.errors import nearest
from weft.families.family import families
from weft.judge.judgement import Verdict

POSITIONS = Path(__file__).parents[1] / "recipes" / "positions_pictured"
"""The recipe whose modules make the page of the study of positions."""
BENCHMARKS = Path(__file__).parents[1] / "benchmarks" / "results"
RECORDED = Path(__file__).parents[1] / "recipes" / "six_ages"
EDGE = (" Edge: the best learning rate of some run was the lowest or highest of those that it tried, so a better one "
        "may lie beyond.")
HELP_WIDTH = 78
PICTURES = "pictures"
"""The folder of pictures beside the pages."""
ROWS = {"models": ("model", "encoder"), "mixers": ("mixer",), "masks": (MASK,), "positions": ("position",),
        "position tables": ("position_table",),
        "rotary scalings": ("rope_scaling",), "feed-forwards": ("feedforward",), "blocks": ("block",),
        "norms": ("norm",), "readouts": ("readout",), "heads": ("head",), "rewrites": ("rewrite",), "tasks": ("task",),
        "tokenizers": ("tokenizer",), "optimizers": ("optimizer",), "schedules": ("schedule",),
        "benchmarks": ("benchmark",)}
"""Rows of the README's table of parts, with the groups of each."""


def commands() -> list[tuple[str, TyperCommand | TyperGroup]]:
    """Every command as it is typed behind ``weft``, those of groups in full, and itself."""
    found: list[tuple[str, TyperCommand | TyperGroup]] = []
    for name, command in _tree():
        inner = _inner(command)
        found += [(f"{name} {each}", inner[each]) for each in inner] if inner else [(name, command)]
    return found


def _tree() -> list[tuple[str, TyperCommand | TyperGroup]]:
    """Every command and group by name."""
    return [(name, command.load(name)) for name, command in WeftGroup.lazy.items()]


def _inner(command: TyperCommand | TyperGroup) -> dict[str, TyperCommand | TyperGroup]:
    """The commands of a group by name, none of a command."""
    found: dict[str, TyperCommand | TyperGroup] = {}
    for name, each in (command.commands if isinstance(command, TyperGroup) else {}).items():
        assert isinstance(each, TyperCommand | TyperGroup), "typer builds its own commands"
        found[name] = each
    return found


def parts_table() -> str:
    """The README's table of parts: what there is, by kind."""
    kinds: dict[str, list[str]] = {}
    for entry in catalogue():
        kinds.setdefault(entry.group, []).append(entry.kind)
    rows = {name: [kind for group in groups for kind in kinds.pop(group, [])] for name, groups in ROWS.items()}
    assert not kinds, f"groups without a row: {sorted(kinds)}"
    rows["families"] = sorted(families())
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {', '.join(f'`{kind}`' for kind in found)} |"
                                                  for name, found in rows.items())])


def commands_table() -> str:
    """The README's table of commands: what each does, in its own words."""
    lines = ["| | |", "| --- | --- |"]
    for name, command in _tree():
        inner = _inner(command)
        typed = " ".join([name, *([r"\|".join(inner)] if inner else [])])
        summary = (command.help or "").strip().split("\n\n")[0].replace("\n", " ")
        lines.append(f"| `weft {typed}` | {summary} |")
    return "\n".join(lines)


def study_table() -> str:
    """The README's table of the recorded study: what `make run` found."""
    result = read_result(RECORDED)
    best_first = sorted(result.entries, key=lambda entry: entry.bits_per_byte or 0.0)
    lines = ["| | what it is | bits per byte | not told apart | learning rate | parameters | tokens |",
             "| --- | --- | --- | --- | --- | --- | --- |", *(study_row(entry, result) for entry in best_first), ""]
    machine = result.machine
    return "\n".join([*lines, f"{result.seeds} runs of each, mean ± {result.level:.0%} interval over seeds; "
                      f"recorded on {result.finished[:10]} with torch {machine.torch} and Python {machine.python}, on "
                      f"{machine.cores} cores." + (EDGE if any(entry.edge for entry in result.entries) else "")])


def study_row(entry: StudyModel, result: StudyResult) -> str:
    """A model's row, with every rate that its runs chose, and the flag of a best at the edge of those tried."""
    interval = mean_interval([run.bits_per_byte for run in entry.finished if run.bits_per_byte is not None],
                             result.level)
    tied = "".join(letters(entry.name, result.tied_sets))
    rates = ", ".join(f"{rate:.2g}" for rate in entry.rates) + (" (edge)" if entry.edge else "")
    margin = "" if interval.high is None else f" ± {interval.high - interval.mean:.3f}"
    size = f"{entry.parameters:,}" + ("" if entry.trainable else " counted")
    tokens = {run.tokens for run in entry.finished}
    return (f"| {entry.name} | {entry.kind} | {interval.mean:.3f}{margin} | {tied} | {rates} | {size} | "
            f"{', '.join(f'{each:,}' for each in sorted(tokens))} |")


def speed_table() -> str:
    """The README's table of speeds beside other libraries, of the figures in ``benchmarks/results``."""
    from speeds import PROCESSORS, speeds

    rows: dict[tuple[str, str], dict[str, str]] = {}
    for each in speeds(BENCHMARKS):
        rows.setdefault((each.what, each.peer), {})[each.processor] = (
            f"[{' and '.join(f'{ratio:.2f}' for ratio in each.ratios)}](benchmarks/results/{each.file})")
    lines = [f"| | beside | {' | '.join(PROCESSORS)} |", f"| --- | --- |{' ---: |' * len(PROCESSORS)}"]
    return "\n".join([*lines, *(f"| {what} | `{peer}` | {' | '.join(cells.get(name, '') for name in PROCESSORS)} |"
                                for (what, peer), cells in rows.items())])


TABLES = {"speed": speed_table, "study": study_table, "parts": parts_table, "commands": commands_table}


def with_tables(readme: str) -> str:
    """The README with its tables as the code has them, between ``<!-- NAME -->`` and ``<!-- end -->``."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        assert readme.count(begin) == 1, f"the README has {readme.count(begin)} tables named {name}"
        before, rest = readme.split(begin)
        readme = before + begin + table() + "\n" + rest[rest.index(end):]
    return readme


def write_pages(folder: Path, only: Sequence[str] = ()) -> None:
    """Write the pages and the pictures of parts into ``folder``; ``only``: the gallery of these kinds and families."""
    pictures = folder / PICTURES
    pictures.mkdir(parents=True, exist_ok=True)
    write_gallery(folder, only)
    (folder / "cli.md").write_text(cli_page(), encoding="utf-8")
    sys.path.append(str(POSITIONS))
    from position_page import page, study_figures
    from position_study import study

    found = study()
    (folder / "positions_pictured.md").write_text(page(found, PICTURES), encoding="utf-8")
    for figure in study_figures(found):
        (pictures / f"{figure.name}.svg").write_text(figure.alone(), encoding="utf-8")


def cli_page() -> str:
    """The help of every command."""
    lines = ["# Command line", "", "Exit codes: 0 done, 1 failed, 2 the request was at fault, 130 interrupted.", ""]
    for name, command in commands():
        shown = command.get_help(Context(command, info_name=f"weft {name}", terminal_width=HELP_WIDTH))
        lines += [f"## weft {name}", "", "```text", shown.rstrip(), "```", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    from museum import with_exhibits
    from results import write_results
    from serve_fields import with_fields
    from studies import write_studies

    root, generated, only = Path(__file__).parents[1], Path(__file__).parent / "_generated", sys.argv[1:]
    known = {entry.kind for entry in catalogue()} | set(families())
    if unknown := sorted(set(only) - known):
        sys.exit(f"No part and no family is called {unknown[0]!r}. {nearest(unknown[0], known)}")
    if only:
        (generated / PICTURES).mkdir(parents=True, exist_ok=True)
        write_gallery(generated, only)
    else:
        write_pages(generated)
        write_studies(root, generated)
        write_results(root, generated)
    museum = Path(__file__).parent / "museum.md"
    museum.write_text(with_exhibits(museum.read_text(encoding="utf-8"), root), encoding="utf-8")
    served = Path(__file__).parent / "serve.md"
    served.write_text(with_fields(served.read_text(encoding="utf-8")), encoding="utf-8")
    schema = root / "docs" / "verdict.schema.json"
    schema.write_text(json.dumps(Verdict.model_json_schema(), indent=2) + "\n", encoding="utf-8")
    readme = root / "README.md"
    readme.write_text(with_tables(readme.read_text(encoding="utf-8")), encoding="utf-8")
