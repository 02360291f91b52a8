"""Every registered part and mask has every piece of its page, and each piece is true."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from part_page import PartPage, part_page, state_bytes

from taken_back import taken_back
from weft.analysis.known_parts import catalogue
from weft.api.configs import read_run
from weft.core.base_model import MODELS, built_empty, parse_model
from weft.core.errors import InputError
from weft.core.layer import Layer
from weft.core.registry import REGISTRY, load_plugin
from weft.core.span import WHOLE
from weft.laws.discovery import subject_of
from weft.masks import known_masks

PLUGIN = '''
from dataclasses import replace
from typing import ClassVar

from weft.core.registry import register
from weft.mixers.elman import ElmanConfig

@register
class SprocketConfig(ElmanConfig):
    """Turns."""

    kind: ClassVar[str] = "sprocket"
    about = replace(ElmanConfig.about, source="nobody 2020")
    teeth: int = 3
'''
ADDED = '''
    about = replace(ElmanConfig.about, source="nobody 2020", equation=r"h_t = h_{t-1}",
                    differs=(("elman", "has teeth."),))
'''


@pytest.fixture(scope="module")
def pages() -> dict[tuple[str, str], PartPage]:
    """Every page; a part that lacks a piece is an error that names it."""
    return {(entry.group, entry.kind): part_page(entry) for entry in catalogue()}


@pytest.fixture
def sprocket(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """A plugin's part, taken back after the test."""
    file = tmp_path / "sprocket_page.py"
    file.write_text(PLUGIN + request.param)
    with taken_back():
        load_plugin(file)
        yield


def test_every_part_has_every_piece(pages: dict[tuple[str, str], PartPage]) -> None:
    assert set(pages) == {(part.group, part.kind) for part in REGISTRY.parts()} | {
        ("mask", mask.kind) for mask in known_masks()}


def test_every_difference_is_from_another_part(pages: dict[tuple[str, str], PartPage]) -> None:
    kinds = {kind for _, kind in pages}
    for (_, kind), page in pages.items():
        others = [each.kind for each in page.about.differs]
        assert set(others) <= kinds - {kind} and len(set(others)) == len(others), kind


def test_every_equation_can_be_set(pages: dict[tuple[str, str], PartPage]) -> None:
    latex2mathml = pytest.importorskip("docutils.utils.math.latex2mathml")
    for (_, kind), page in pages.items():
        assert "<math" in latex2mathml.tex2mathml(page.about.equation, as_block=True), kind


def test_every_configuration_works(pages: dict[tuple[str, str], PartPage]) -> None:
    for (group, kind), page in pages.items():
        assert page.used is not None
        data = dict(page.used.data)
        if group == "benchmark":
            assert REGISTRY.get((group,), kind).model_validate({key: data[key] for key in data if key != "kind"})
        elif "model" in data:
            data.pop("data", None)  # its path stands for the user's own
            assert "vocab_size" not in data["model"], "a run fills it in"
            reads = data["model"]["kind"] in ("decoder", "encoder", "encoder_decoder")
            run = read_run({**data, "model": {**data["model"], **({"vocab_size": 300} if reads else {})}})
            assert built_empty(run.model) is not None, kind
        else:
            assert built_empty(parse_model(data)) is not None and data["kind"] in {
                part.kind for name in MODELS for part in REGISTRY.parts(name)}


def test_states_are_as_large_as_those_that_have_read_as_many_tokens(pages: dict[tuple[str, str], PartPage]) -> None:
    for (group, kind), page in pages.items():
        if group != "mixer" or page.state is None:
            continue
        config: Any = next(each for each in REGISTRY.get((group,), kind).examples() if each == page.state.config)
        subject = subject_of(config, kind, dtype=torch.float32)
        assert subject is not None
        generator = torch.Generator().manual_seed(0)
        reads = isinstance(subject.module, Layer) and subject.module.declares().source_width is not None
        state = subject.start(1, subject.memory(1, generator) if reads else None, None, None)
        with torch.no_grad():
            after = subject.call(subject.inputs(1, 16, generator), state, WHOLE).state
        assert after is not None and after.nbytes() == dict(page.state.sizes)[16] == state_bytes(subject, 16), kind




def test_states_grow_where_keys_are_kept_and_nowhere_else(pages: dict[tuple[str, str], PartPage]) -> None:
    def growth(kind: str) -> int:
        state = pages["mixer", kind].state
        assert state is not None
        return state.sizes[-1][1] - state.sizes[-2][1]

    assert growth("attention") > 0 and growth("latent_attention") > 0
    assert [growth(kind) for kind in ("lstm", "mamba", "rwkv7", "s4d", "delta_net", "cross_attention")] == [0] * 6


@pytest.mark.parametrize("sprocket", [""], indirect=True)
def test_a_part_that_lacks_pieces_is_named_with_all_of_them(sprocket: None) -> None:
    with pytest.raises(InputError, match=r"the mixer 'sprocket' lacks `equation`, `differs`, the meaning of `teeth`\. "
                                         r"Declare them in its class"):
        part_page(catalogue("sprocket")[0])


@pytest.mark.parametrize("sprocket", [ADDED.replace('(("elman"', '(("gru"')], indirect=True)
def test_a_plugin_s_part_gets_a_page_like_any_other(sprocket: None) -> None:
    REGISTRY.get(("mixer",), "sprocket").__doc__ = "Turns.\n\nAttributes:\n    teeth: how many."
    page = part_page(catalogue("sprocket")[0])
    assert page.about.equation == "h_t = h_{t-1}" and page.used is not None and page.figures
    assert page.state is not None and page.used.data["blocks"][0]["layers"][0] == "sprocket"
    assert {field.name: field.meaning for field in page.about.fields}["teeth"] == "how many."
