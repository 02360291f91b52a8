"""The ``data`` section of a run's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from weft.core.config import rule
from weft.core.part_config import Settings
from weft.data.division import Division
from weft.data.prepared_manifest import is_prepared, read_prepared_manifest
from weft.data.records import TEXT_FIELD
from weft.data.source_settings import DocumentsSetting, TextSource, division_of, with_weights
from weft.data.stream import WhenCapped

NO_RECIPE = ("path", "order_seed", "packing", "sources", "mixture", "when_capped")
"""Settings that do not change the content of a prepared folder."""


class DataSettings(Settings):
    """The data of a run.

    ``path`` may be a folder that ``weft data prepare`` wrote: then all settings but ``order_seed`` and ``packing`` are
    the folder's, and those that are given must agree with it.

    Attributes:
        path: a file or folder of text, JSONL or Parquet, a pattern such as ``books/*.txt``, or a list of them; or a
            prepared folder; None: the Python standard library's source.
        sources: in place of ``path``, several texts by name, each with its weight: a mixture. The other settings hold
            for each of them that does not give its own.
        mixture: a published mixture (``weft data mixture``), whose weights the sources of its parts' names have.
        when_capped: what happens once a source has been read ``max_epochs`` times: its weight passes to the others, in
            proportion to theirs (``share``), or a run in which that would happen is refused (``error``).
        validation_path: a separate text to hold out, instead of a share.
        test_path: a text for a final evaluation, which training never reads.
        max_bytes: limit of the text in ``path``, in bytes.
        validation: share held out, by document where there are enough; 0.1 unless there is a ``validation_path``.
        order_seed: of the random order of the training windows, and nothing else.
        split_seed: of the random choice of documents under a limit and of those that are held out.
        split_by: whether the ``name`` of a document decides on which side it is, where whole documents are held out; or
            its ``content``, so that documents with the same text are on the same side; or ``copies``, so that documents
            that share much are, and of none that is held out 40 % or more stands in the training text.
        text_field: the field that holds the text of a JSONL or Parquet record.
        prompt_field: the field that holds a text that precedes it, which is read and counts neither in the loss nor in
            an evaluation. Every record is then a document that is never cut in two to hold out a share.
        documents: what is a document in a text file: the ``file``, each ``line``, each ``paragraph``, or the text under
            each heading: ``{heading: '= [^=]+ =$'}``.
        packing: how documents fill training windows: ``stream``, one after another, cut wherever a window ends; or
            ``documents``, whole, by best fit, and only those longer than a window are cut. Documents in one window
            do not attend to one another either way. It affects neither evaluation nor models that are counted.
    """

    path: str | tuple[str, ...] | None = None
    sources: dict[str, TextSource] | None = Field(default=None, min_length=1)
    mixture: str | None = None
    when_capped: WhenCapped = "share"
    validation_path: str | None = None
    test_path: str | None = None
    max_bytes: int | None = Field(default=None, gt=0)
    validation: float | None = Field(default=0.1, gt=0, lt=1)
    order_seed: int = 0
    split_seed: int = 0
    split_by: Literal["name", "content", "copies"] = "name"
    text_field: str = TEXT_FIELD
    prompt_field: str | None = None
    documents: DocumentsSetting = "file"
    packing: Literal["stream", "documents"] = "stream"

    @property
    def division(self) -> Division:
        """``documents``, for `read_text`."""
        return division_of(self.documents)

    @property
    def mixed(self) -> dict[str, TextSource]:
        """The sources, each with its weight; empty for one text."""
        return {} if self.sources is None else with_weights(self.sources, self.mixture)

    @property
    def prepared(self) -> Path | None:
        """``path``, if a prepared folder stands there."""
        return Path(self.path) if isinstance(self.path, str) and is_prepared(Path(self.path)) else None

    @property
    def remedy(self) -> str:
        """The change that keeps the training text free of what is held out, in words."""
        if self.validation_path is not None:
            return "take what is in both out of one of the two texts"
        if self.split_by == "copies":
            return "what is left is text that many documents share, such as a licence"
        return "data.split_by=copies holds out no document of which the training text has so much"

    def recipe(self) -> dict[str, Any]:
        """The settings that decide the text and its split, without the path."""
        return self.model_dump(mode="json", exclude=set(NO_RECIPE))

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        """Fill in the settings of a prepared folder; leave out the default share where a held-out text is given."""
        if not isinstance(value, Mapping):
            return value
        filled, path = dict(value), value.get("path")
        if isinstance(path, str) and is_prepared(Path(path)):
            filled = {**read_prepared_manifest(Path(path)).recipe.data, **filled}
        if filled.get("validation_path") is not None:
            filled.setdefault("validation", None)
        return filled

    @model_validator(mode="after")
    def _one_text_or_sources(self) -> Self:
        if self.path == ():
            raise rule("path", "an empty list.", "Name a file.")
        if self.sources is None:
            given = {"mixture": self.mixture is not None, "when_capped": self.when_capped != "share"}
            if name := next((name for name, is_given in given.items() if is_given), None):
                raise rule(name, f"{getattr(self, name)!r}, and there are no sources.", "Leave it out, or name some.")
            return self
        if self.path is not None:
            raise rule("sources", "beside a path.", "Leave out the path, or make it one of the sources.")
        if self.validation_path is not None:
            raise rule("validation_path", f"{self.validation_path!r} beside sources, which are measured each by "
                       "itself.", "Give each source a validation_path of its own, or a share.")
        if wrong := next((name for name in self.sources if not name or "/" in name or "." in name), None):
            raise rule("sources", f"{wrong!r} is no name of a source.", "Give one without dots and slashes.")
        with_weights(self.sources, self.mixture)
        return self

    @model_validator(mode="after")
    def _one_way_to_hold_out(self) -> Self:
        if self.validation_path is not None and self.validation is not None:
            raise rule("validation", f"a share of {self.validation:g} beside the held-out text {self.validation_path}.",
                       "Give one of them.")
        if self.validation_path is None and self.validation is None:
            raise rule("validation", "null, and no validation_path.", "Give a share such as 0.1, or a text.")
        for name in ("validation_path", "test_path"):
            if self.path is not None and getattr(self, name) == self.path:
                raise rule(name, f"{self.path} is the training text.", "Hold out a text that is not trained on.")
        given = {"text_field": None if self.text_field == TEXT_FIELD else self.text_field,
                 "prompt_field": self.prompt_field}
        for name, field in given.items():
            if self.path is None and self.sources is None and field is not None:
                raise rule(name, f"{field!r}, while the Python standard library's source has no records.",
                           "Leave it out, or give a path.")
        if self.prompt_field == self.text_field:
            raise rule("prompt_field", f"{self.text_field!r} is the field that holds the text.",
                       "Name the field that precedes it.")
        return self
