"""The scheme that does nothing."""

from __future__ import annotations

import pytest
import torch

from weft.core.clock import Keys
from weft.core.config import parse_part
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.positions.base import NoPosition, NoPositionConfig


def test_it_is_the_identity_at_all_four_points_and_fits_everywhere() -> None:
    x, q = torch.randn(2, 3, 8), torch.randn(2, 3, 2, 4)
    ticks = Span().resolve(None, x).ticks
    for scheme in (NoPositionConfig().build(Dims(8)), NoPositionConfig().build_for_heads(Dims(8), 2, 4)):
        assert scheme.embed(x, ticks) is x
        assert scheme.rotate(q, ticks) is q
        with pytest.raises(NotImplementedError, match="NoPosition acts on scores and does not implement bias"):
            scheme.bias(q, q, ticks, Keys.of(ticks))
        assert scheme.value_terms(torch.ones(2, 2, 3, 3), ticks, Keys.of(ticks)) is None
        assert (scheme.width, scheme.scale(4), scheme.acts_on) == (0, None, frozenset())


def test_it_is_known_by_name() -> None:
    config = parse_part(("position",), "none")
    assert isinstance(config, NoPositionConfig)
    assert isinstance(config.build(Dims(8)), NoPosition)
