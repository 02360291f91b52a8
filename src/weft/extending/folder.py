"""The folder of an extension, to which one process at a time writes.

    extension.json   what was asked for, and every measurement as it is made
    rescaled/        the checkpoint whose positions are rescaled
    tuned/           the run of the training, if there is one
    result.json      the result

What stands there is read back, so the same call goes on where it was stopped, to the same files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from weft.core.errors import CheckpointError, ConfigError
from weft.core.strict_json import dumps, plain
from weft.disk.atomic import made, tidy, write_file
from weft.disk.documents import Unreadable, read_json
from weft.disk.lock import WorkFolder, held
from weft.training.folder import differences

EXTENSION, RESCALED, TUNED, RESULT = "extension.json", "rescaled", "tuned", "result.json"
LAYOUT = WorkFolder("extension", EXTENSION, (RESCALED, TUNED, RESULT))

Once: TypeAlias = Callable[[str, Callable[[], Any]], Any]
"""Returns the JSON data that a function gives, which is called only if no earlier process has kept its result under
that name."""


@contextmanager
def extension_folder(folder: Path, asked: Mapping[str, Any]) -> Iterator[Once]:
    """Hold the folder of an extension, and keep what is measured within the block.

    Args:
        folder: made if need be.
        asked: everything that decides the result, as plain data.

    Raises:
        ConfigError: the folder holds something else, or another extension, or another process is at work in it.
        CheckpointError: ``extension.json`` is damaged.
    """
    LAYOUT.require_room(folder)
    with made(folder), held(folder, "extending a model"):
        tidy(folder)
        LAYOUT.require_room(folder)  # once more, for what another process did before the lock was this one's
        path, now = folder / EXTENSION, plain(asked)
        if not path.exists():
            write_file(path, dumps({"asked": now, "measured": {}}, indent=1) + "\n")
        found = _read(path)
        if changed := differences(found["asked"], now):
            raise ConfigError([*(f"{name}: {new!r}, and the extension in {folder} began with {old!r}."
                                 for name, old, new in changed),
                               "Go on with the same model, text and settings, or choose another folder."])

        def once(name: str, compute: Callable[[], Any]) -> Any:
            if name not in found["measured"]:
                found["measured"][name] = plain(compute())
                write_file(path, dumps(found, indent=1) + "\n")
            return found["measured"][name]

        yield once


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except (OSError, Unreadable) as error:
        raise _damaged(path, str(error)) from None
    if not (isinstance(content, dict) and sorted(content) == ["asked", "measured"]
            and all(isinstance(each, dict) for each in content.values())):
        raise _damaged(path, "it has not the two objects asked and measured")
    return content


def _damaged(path: Path, how: str) -> CheckpointError:
    return CheckpointError(f"the record of the extension cannot be read ({how}).", where=str(path),
                           remedy="Put it back, or choose another folder.")
