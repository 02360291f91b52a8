"""Whether a path holds prepared data, where the system cannot say."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.api import read_run
from weft.core.errors import DataError
from weft.data.prepared_manifest import is_prepared


def test_a_path_that_is_too_long_is_an_error_of_the_data(tmp_path: Path) -> None:
    assert not is_prepared(tmp_path) and not is_prepared(tmp_path / "absent")
    name = "a" * 5_000
    with pytest.raises(DataError, match=r"^a{100} \.\.\. a{100}: File name too long\. Check the path\.$"):
        is_prepared(Path(name))
    with pytest.raises(DataError, match="File name too long"):
        read_run("transformer", overrides=[f"data.path={name}"])
