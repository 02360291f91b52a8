"""The pages of the studies: what stands in the README of every recipe, with its pictures. Nothing is copied by hand:
a README is itself made of the recipe's recorded result, and a page is the README with its links led elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, final

PICTURES = "pictures"
ORDER: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "Positions and lengths": ("positions_pictured", "lengths", "key_value_bytes",
                              "grouped_queries"),
    "Rotary positions at work": ("multi30k", "encoder_positions", "performer"),
    "Inside a block": ("norms_and_residuals",),
    "State spaces and recurrences": ("hippo", "scan_costs", "selective", "recall", "pathfinder", "million_tokens"),
    "Language models of several ages": ("penn_treebank", "wikitext2", "mixers", "six_ages", "nanogpt_cpu"),
    "Pre-training": ("digits", "mixture", "width_transfer", "optimizers"),
    "Fine-tuning": ("pretraining", "chat_model"),
    "Windows and masks": ("windows", "cheating"),
    "What can be relied on": ("error_rates", "ladder_error_rates", "tuning", "presets", "repeatability", "overnight",
                             "seen_text", "resume")})
"""The recipes by topic, in the order in which a course treats the topics."""

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
COMMAND = re.compile(r"^\s*((?:python recipes/|weft |make ).+?)(?:\s{2,}#.*)?$", re.MULTILINE)
NO_RESULT = "No result is recorded yet. The command makes one."


@final
class Study(NamedTuple):
    """A recipe's page.

    Attributes:
        name: of its folder.
        title: the README's.
        question: its first paragraph.
        command: the first that the README gives, or else the script.
        recorded: whether a result is committed.
        page: Markdown.
        pictures: from the name on the page to the file in the recipe.
    """

    name: str
    title: str
    question: str
    command: str
    recorded: bool
    page: str
    pictures: Mapping[str, Path]


def recipes_in(root: Path) -> list[str]:
    """The recipes that there are, each a folder with a README."""
    return sorted(readme.parent.name for readme in (root / "recipes").glob("*/README.md"))


def study_of(root: Path, name: str) -> Study:
    """The page of a recipe.

    Raises:
        ValueError: its README has no title, question or command, or names a picture that is not there.
    """
    folder = root / "recipes" / name
    text = (folder / "README.md").read_text(encoding="utf-8")
    title = re.match(r"# (.+)\n+", text)
    script = folder / "run.py"
    command = COMMAND.search(text) or (COMMAND.search(script.read_text("utf-8")) if script.exists() else None)
    if title is None or command is None:
        raise ValueError(f"recipes/{name}/README.md: it has no {'title' if title is None else 'command'}. Begin it "
                         "with `# Title`, and give the command that repeats the study.")
    question = next(each for each in text[title.end():].split("\n\n") if each.strip()).replace("\n", " ")
    pictures: dict[str, Path] = {}

    def led(match: re.Match[str]) -> str:
        shown, words, target = match.groups()
        if re.match(r"\w+:|#", target):
            return match[0]
        file = (folder / target).resolve()
        if not file.exists():
            raise ValueError(f"recipes/{name}/README.md: there is no {target}. Run the recipe, or correct the name.")
        if shown:
            pictures[f"study-{name}-{file.name}"] = file
            return f"![{words}](../{PICTURES}/study-{name}-{file.name})"
        place = file.relative_to(root.resolve()).as_posix()
        return f"`{place}`" if words.strip("`") == target else f"{words} (`{place}`)"

    recorded = next(folder.rglob("result.json"), None) is not None
    page = LINK.sub(led, text).rstrip() + "\n"
    rest = f"The recipe is in `recipes/{name}`." + ("" if recorded else f" {NO_RESULT}")
    rest += "" if command[1].strip() in text else f" `{command[1].strip()}` repeats it."
    return Study(name, title[1], LINK.sub(led, question), command[1].strip(), recorded, f"{page}\n{rest}\n", pictures)


def write_studies(root: Path, folder: Path) -> None:
    """Write the page of every recipe, the list of them and their pictures into ``folder``.

    Raises:
        ValueError: a recipe has no place in `ORDER`, or one that has is gone.
    """
    listed = [name for names in ORDER.values() for name in names]
    if sorted(listed) != recipes_in(root):
        raise ValueError(f"docs/studies.py: ORDER and the folder of recipes differ in "
                         f"{sorted(set(listed) ^ set(recipes_in(root)))}. Give each recipe a place.")
    studies = {name: study_of(root, name) for name in listed}
    for place in (folder / "studies", folder / PICTURES):
        place.mkdir(parents=True, exist_ok=True)
    for study in studies.values():
        (folder / "studies" / f"{study.name}.md").write_text(study.page, encoding="utf-8")
        for name, file in study.pictures.items():
            (folder / PICTURES / name).write_bytes(file.read_bytes())
    (folder / "studies.md").write_text(index(studies), encoding="utf-8")


def index(studies: Mapping[str, Study]) -> str:
    """The list of the studies: questions and commands by topic."""
    lines = ["# Studies", "", "Each study is a recipe: a command that repeats it, the numbers that it recorded, and "
             "its pictures. A test fails where a configuration has changed since a result was recorded.", ""]
    for topic, names in ORDER.items():
        lines += [f"## {topic}", ""]
        for study in (studies[name] for name in names):
            lines += [f"**[{study.title}](studies/{study.name}.md)**", f": {study.question}", "",
                      f"  `{study.command}`" + ("" if study.recorded else f" {NO_RESULT}"), ""]
    return "\n".join([*lines, "```{toctree}", ":hidden:", "", *(f"studies/{name}" for name in studies), "```", ""])
