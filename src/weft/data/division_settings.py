"""How text files are divided into documents, in a run's configuration."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import field_validator

from weft.core.config import rule
from weft.core.errors import DataError
from weft.core.part_config import Settings
from weft.data.division import Division, Heading


class HeadingSettings(Settings):
    """Documents begin at the lines that match a heading.

    Attributes:
        heading: a regular expression that is matched at the start of a line.
    """

    heading: str

    @field_validator("heading")
    @classmethod
    def _is_an_expression(cls, value: str) -> str:
        try:
            return Heading(value).pattern
        except DataError as error:
            raise rule("heading", error.what, error.remedy or "") from None


DocumentsSetting: TypeAlias = Literal["file", "line", "paragraph"] | HeadingSettings


def division_of(setting: DocumentsSetting) -> Division:
    """The setting, for `weft.data.read_text`."""
    return setting if isinstance(setting, str) else Heading(setting.heading)
