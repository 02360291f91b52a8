"""What the files beside a published vocabulary declare: special and added tokens, which open and close, and use."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from weft.core.errors import TokenizerError
from weft.tokenizers.conventions import Conventions
from weft.tokenizers.specials import AddedToken

TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
CHAT_TEMPLATE = "chat_template.jinja"
MORE_TEMPLATES = "additional_chat_templates"
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
DEFAULT_TEMPLATE = "default"


@final
@dataclass(frozen=True)
class Declared:
    """The files beside a vocabulary, read but not yet tied to its ids.

    Attributes:
        config: ``tokenizer_config.json``, with what only ``special_tokens_map.json`` says.
        added: tokens with declared ids, by id.
        bos_ids: ids that open a document according to the model's own files, the first that says counts.
        eos_ids: ids that end a generation, likewise.
        model_type: the model's type, which tells what class its tokenizer is.
        chat_templates: Jinja source by name.
    """

    config: Mapping[str, Any]
    added: tuple[AddedToken, ...]
    bos_ids: tuple[int, ...]
    eos_ids: tuple[int, ...]
    model_type: str
    chat_templates: Mapping[str, str]

    @property
    def tokenizer_class(self) -> str:
        """The class that the files name, without ``Fast``; empty when they name none."""
        return str(self.config.get("tokenizer_class") or "").removesuffix("Fast")

    def token(self, name: str) -> str | None:
        """The spelling of ``bos_token`` and the like."""
        declared = self.config.get(name)
        text = declared.get("content") if isinstance(declared, dict) else declared
        return str(text) if text else None

    def says(self, name: str) -> bool:
        """Whether the files say anything about ``name``, be it that there is none."""
        return name in self.config

    @property
    def special_names(self) -> tuple[str, ...]:
        """Spellings of the tokens that have a role, each once."""
        named = [self.token(name) for name in NAMED]
        more = [_content(token) for token in self.config.get("additional_special_tokens") or ()]
        return tuple(dict.fromkeys(token for token in [*named, *more] if token))

    def flag(self, name: str) -> bool | None:
        """A yes or no of the tokenizer's configuration, or None."""
        value = self.config.get(name)
        return value if isinstance(value, bool) else None

    def conventions(self, adds_bos: bool | None, adds_eos: bool | None) -> Conventions:
        """The facts on its use; what the files do not say is ``adds_bos`` and ``adds_eos``."""
        said_bos, said_eos = self.flag("add_bos_token"), self.flag("add_eos_token")
        return Conventions(
            adds_bos=adds_bos if said_bos is None else said_bos,
            adds_eos=adds_eos if said_eos is None else said_eos,
            end_ids=self.eos_ids,
            chat_templates=self.chat_templates,
        )


def read_declared(folder: Path) -> Declared:
    """The files beside a vocabulary in ``folder``; none of them has to be there.

    Raises:
        TokenizerError: a file that is damaged.
    """
    config = {**_read(folder / SPECIAL_TOKENS_MAP), **_read(folder / TOKENIZER_CONFIG)}
    generation, model = _read(folder / "generation_config.json"), _read(folder / "config.json")
    return Declared(
        config=config,
        added=tuple(sorted(_added(config, _read(folder / ADDED_TOKENS)), key=lambda token: token.id)),
        bos_ids=_ids("bos_token_id", generation, model),
        eos_ids=_ids("eos_token_id", generation, model),
        model_type=str(model.get("model_type") or ""),
        chat_templates=_templates(config.get("chat_template"), folder),
    )


def _added(config: Mapping[str, Any], listed: Mapping[str, Any]) -> Iterator[AddedToken]:
    declared = config.get("added_tokens_decoder") or {}
    for place, token in declared.items():
        yield AddedToken(
            token["content"], int(place), bool(token.get("special")), bool(token.get("lstrip")),
            bool(token.get("rstrip")),
        )  # fmt: skip
    known = {token["content"] for token in declared.values()}
    named = {_content(config.get(name)) for name in NAMED}
    named |= {_content(token) for token in config.get("additional_special_tokens") or ()}
    for content, place in listed.items():
        if content not in known:
            yield AddedToken(content, int(place), special=content in named)


def _content(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _ids(name: str, *files: Mapping[str, Any]) -> tuple[int, ...]:
    for file in files:
        found = file.get(name)
        if found is not None:
            return tuple(found) if isinstance(found, list) else (int(found),)
    return ()


def _templates(declared: Any, folder: Path) -> dict[str, str]:
    """Templates in the configuration, one or several with names; files of their own count before it."""
    named = {item["name"]: item["template"] for item in declared} if isinstance(declared, list) else {}
    if isinstance(declared, str):
        named = {DEFAULT_TEMPLATE: declared}
    more = sorted((folder / MORE_TEMPLATES).glob("*.jinja"))
    for name, path in [(DEFAULT_TEMPLATE, folder / CHAT_TEMPLATE), *((path.stem, path) for path in more)]:
        if path.exists():
            named[name] = read_file(path).decode("utf-8", errors="replace")
    return named


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    if not isinstance(content, dict):
        raise _damaged(path, f"a {type(content).__name__}, not an object")
    return content


def read_file(path: Path) -> bytes:
    """A file's content.

    Raises:
        TokenizerError: it is missing or cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from None


def _damaged(path: Path, reason: str) -> TokenizerError:
    return TokenizerError(
        f"the file cannot be read ({reason}).", where=str(path), remedy="Copy the tokenizer's folder again, whole."
    )
