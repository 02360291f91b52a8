"""The page as a whole: one file, offline, whole, accessible, the same every time, whatever the study brings."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable

import pytest

from comparison.report.fixture import HOSTILE, bare, foreign, hostile, identical, study, unfinished
from comparison.report.reading import Node, drawings, read, rows
from weft.comparison.report import render
from weft.comparison.report.view import View
from weft.comparison.study_result import StudyResult
from weft.comparison.study_settings import UNNAMED

STUDIES: dict[str, Callable[[], StudyResult]] = {
    "six": study, "two": lambda: study(2), "twelve": lambda: study(12, 2), "one seed": lambda: study(seeds=1),
    "all failed": lambda: unfinished(study()), "some failed": lambda: unfinished(study(), ("lstm", "s4d")),
    "bare": lambda: bare(study()), "hostile": lambda: hostile(study()), "identical": lambda: identical(study(3)),
    "foreign": lambda: foreign(study()), "one model": lambda: study(1), "none": lambda: study(0)}


@pytest.fixture(params=list(STUDIES), scope="module")
def page(request: pytest.FixtureRequest) -> str:
    return render(STUDIES[request.param]())


@pytest.fixture(scope="module")
def tree(page: str) -> Node:
    return read(page)


def test_a_page_is_whole_and_can_be_encoded(page: str, tree: Node) -> None:
    assert page.startswith("<!DOCTYPE html>\n<html lang=\"en\">")
    assert len(tree.all("main")) == len(tree.all("h1")) == len(tree.all("nav")) == len(tree.all("footer")) == 1
    assert page.encode("utf-8")


def test_nothing_is_asked_of_another_file(tree: Node) -> None:
    for name, attribute in (("script", "src"), ("img", "src"), ("iframe", "src"), ("object", "data"),
                            ("image", "href")):
        assert [each for each in tree.all(name) if attribute in each.attributes] == []
    assert [each.attributes["href"] for each in tree.all("link")] == ["data:,"]
    saved = [each for each in tree.all("a") if "download" in each.attributes]
    assert [each.attributes["download"] for each in saved] == ["models.csv", "runs.csv"]
    assert all(each.attributes["href"].startswith("data:text/csv;charset=utf-8,") for each in saved)
    assert all(each.attributes["href"].startswith("#") for each in tree.all("a") if each not in saved)
    sheet = "".join(each.raw() for each in tree.all("style"))
    assert "url(" not in sheet and "@import" not in sheet
    script = "".join(each.raw() for each in tree.all("script"))
    assert not re.search(r"\bfetch\(|XMLHttpRequest|WebSocket|import\(|sendBeacon|\bImage\(", script)
    policy = [each.attributes["content"] for each in tree.all("meta") if "http-equiv" in each.attributes]
    assert len(policy) == 1 and policy[0].startswith("default-src 'none'; ")


def test_the_only_script_is_the_reports_own(tree: Node) -> None:
    assert len(tree.all("script")) == 1
    assert all(not name.startswith("on") for node in everything(tree) for name in node.attributes)
    assert tree.all("img") == tree.all("iframe") == []


@pytest.mark.parametrize(("name", "models", "said"), [
    ("mine", 2, "mine"), (UNNAMED, 2, "transformer and s4d"), (UNNAMED, 6, "6 models"), (UNNAMED, 0, UNNAMED)])
def test_a_study_without_a_name_is_called_by_what_it_compares(name: str, models: int, said: str) -> None:
    tree = read(render(dataclasses.replace(study(models), name=name)))
    assert tree.all("h1")[0].text() == said and tree.all("title")[0].text() == f"{said} \u2013 Weft"


def test_no_part_of_a_drawing_is_a_stop_of_the_tab_key_but_its_chart(tree: Node) -> None:
    """Browsers stop at every element of a drawing that listens to focus."""
    script = tree.all("script")[0].raw()
    assert script.index("instanceof SVGElement) continue") < script.index('addEventListener("focusin"')
    assert script.count('addEventListener("focusin"') == script.count('addEventListener("focusout"') == 1
    assert not [node for node in everything(tree) if node.name == "g" and "tabindex" in node.attributes]


def test_every_id_is_single_and_every_reference_meets_one(tree: Node) -> None:
    names = [node.attributes["id"] for node in everything(tree) if "id" in node.attributes]
    assert len(names) == len(set(names))
    wanted = {each.attributes["href"][1:] for each in (*tree.all("a"), *tree.all("use"))
              if "download" not in each.attributes}
    wanted |= {name for node in everything(tree) for name in node.attributes.get("aria-labelledby", "").split()}
    assert wanted <= set(names)


def test_headings_go_down_one_level_at_a_time(tree: Node) -> None:
    levels = [int(node.name[1]) for node in everything(tree) if re.fullmatch(r"h[1-6]", node.name)]
    levels = [level for level in levels if level != 4]  # h4 stands over a chart, in a section that has no parts.
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_every_table_has_a_caption_and_headers_with_a_scope(tree: Node) -> None:
    for table in tree.all("table"):
        assert len(table.all("caption")) == 1 and table.all("caption")[0].text()
        assert all(head.attributes.get("scope") in ("row", "col") for head in table.all("th"))
        assert len({len(row) for row in rows(table)}) == 1


def test_every_chart_is_well_formed_and_speaks(page: str) -> None:
    for drawing in drawings(page):
        if drawing.get("role") == "img":
            title, description = drawing[0], drawing[1]
            assert (title.tag, description.tag) == ("title", "desc")
            assert title.text and description.text
            assert drawing.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
        else:
            assert drawing.get("aria-hidden") == "true"


def test_no_drawing_holds_what_is_not_a_number(page: str) -> None:
    for drawing in drawings(page):
        for element in drawing.iter():
            for name, value in element.items():
                if name in ("d", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height", "viewBox",
                            "points"):
                    assert not re.search(r"nan|inf|e[+-]\d|None", value), f"{element.tag} {name}={value}"


def test_lines_and_marks_of_a_strip_lie_in_its_middle_however_high_it_is(tree: Node) -> None:
    """On paper strips are lower than on the screen, so no height in them may be of pixels."""
    for strip in tree.all("svg", "strip"):
        if "chart" not in strip.attributes["class"]:
            heights = {line.attributes[end] for line in strip.all("line") for end in ("y1", "y2")}
            assert heights <= {"0", "100%", "50%", "19%", "81%"}
            assert {each.attributes["y"] for each in strip.all("svg")} <= {"50%"}


def test_drawings_stay_inside_their_frame(page: str) -> None:
    for drawing in drawings(page):
        if "viewBox" not in drawing.attrib:
            continue
        width, height = map(float, drawing.attrib["viewBox"].split()[2:])
        for path in drawing.iter("path"):
            for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path.attrib["d"]):
                assert -1 <= float(x) <= width + 1 and -1 <= float(y) <= height + 1


@pytest.mark.parametrize("name", ["six", "some failed", "hostile"])
def test_equal_studies_give_equal_pages(name: str) -> None:
    assert render(STUDIES[name]()) == render(STUDIES[name]())


def test_a_study_read_from_its_json_gives_the_same_page() -> None:
    result = study(3)
    assert render(StudyResult.from_json(result.to_json())) == render(result)


def test_six_models_of_five_runs_stay_small() -> None:
    assert len(render(study(6, 5, validations=10)).encode("utf-8")) < 227_000


def test_styles_come_without_what_only_their_writers_read() -> None:
    for sheet in read(render(study(2))).all("style"):
        assert "/*" not in sheet.raw() and "\n" not in sheet.raw()
        assert sheet.raw().count("{") == sheet.raw().count("}") > 100


def test_a_name_breaks_behind_underscores() -> None:
    view = View(study(2))
    assert view.name("a_long_name") == '<b>a_<wbr/>long_<wbr/>name</b>'
    assert view.name("<_>") == '<b>&lt;_<wbr/>&gt;</b>'


def test_twelve_models_of_five_seeds_stay_under_a_megabyte() -> None:
    assert len(render(study(12, 5, validations=200)).encode("utf-8")) < 1_000_000


def test_what_data_brings_is_text_and_its_hidden_characters_are_seen() -> None:
    page = render(hostile(study()))
    assert "<script>alert" not in page and "<img" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert not {"\u202e", "\x07", "\ud800"} & set(page)
    assert "\u27e8202E\u27e9" in page and "\u2407" in page and "\u27e8D800\u27e9" in page
    tree = read(page)
    assert HOSTILE.split("\u202e")[0] in tree.all("h1")[0].raw()


def everything(node: Node) -> list[Node]:
    found = []
    for child in node.children:
        if isinstance(child, Node):
            found += [child, *everything(child)]
    return found
