"""Forms and masks from outside Weft are held to the laws: by `weft check`, and before a model is trained with them."""

from __future__ import annotations

from pathlib import Path

import fresh
from laws import outside_forms as work


def test_a_form_with_a_wrong_gradient_breaks_a_law_that_no_other_law_sees(tmp_path: Path) -> None:
    done = fresh.fresh(work.a_wrong_gradient_breaks_the_law, folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_model_with_a_wrong_form_or_mask_from_outside_is_not_trained(tmp_path: Path) -> None:
    for refused in (work.a_model_with_a_wrong_form_is_refused, work.a_model_with_a_wrong_mask_is_refused):
        done = fresh.fresh(work.with_near_checks, refused, folder=tmp_path)
        assert done.returncode == 0, done.stderr
