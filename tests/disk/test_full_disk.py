"""What is said where a disk is full, by whatever library notices it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from safetensors import SafetensorError

from weft.core.errors import CheckpointError, FailedError
from weft.disk.atomic import new_file, not_written

MORE_THAN_THERE_IS = 1 << 62
SHORT = "262144 requests and 0 written"
"""What NumPy's ``tofile`` says, without a number of the operating system's."""


@pytest.mark.parametrize(("error", "needed"), [
    (OSError(errno.ENOSPC, "No space left on device"), 1), (OSError(errno.EDQUOT, "Disk quota exceeded"), 1),
    (SafetensorError("I/O error: No space left on device (os error 28)"), 1), (OSError(SHORT), MORE_THAN_THERE_IS)])
def test_a_full_disk_is_named_with_the_free_space(tmp_path: Path, error: OSError, needed: int) -> None:
    found = not_written(error, tmp_path / "new", needed)
    assert isinstance(found, FailedError)
    assert f"there is no space for the checkpoint, which takes {needed:,} bytes" in str(found)
    assert "Free space or choose another folder; earlier checkpoints are unchanged." in str(found)


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "Permission denied"), OSError(SHORT),
                                   SafetensorError("header too large")])
def test_another_reason_is_not_called_a_full_disk(tmp_path: Path, error: OSError) -> None:
    found = not_written(error, tmp_path / "new", 1)
    assert isinstance(found, CheckpointError) and "the checkpoint cannot be written" in str(found)


def test_an_error_that_is_none_of_the_system_keeps_its_text(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=f"^{SHORT}$"), new_file(tmp_path / "model.gguf"):
        raise OSError(SHORT)
    with pytest.raises(OSError, match=r"No space left on device: '.*model\.gguf'"), new_file(tmp_path / "model.gguf"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []
