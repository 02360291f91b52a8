"""The files beside a published vocabulary: special and added tokens, opening and closing tokens, conventions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.core.errors import TokenizerError
from weft.disk.documents import Unreadable, lawful_link, read_json
from weft.tokenizers.specials import MOST_IDS, AddedToken, Conventions, read_vocabulary

TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
CHAT_TEMPLATE = "chat_template.jinja"
MORE_TEMPLATES = "additional_chat_templates"
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
DEFAULT_TEMPLATE = "default"


@dataclass(frozen=True)
class DeclaredFiles:
    """The files beside a vocabulary, read but not yet tied to its ids.

    Attributes:
        config: ``tokenizer_config.json``, with entries that only ``special_tokens_map.json`` has.
        added: tokens with declared ids, by id.
        bos_ids: ids that open a document according to the first of the model's own files that names any.
        eos_ids: ids that end a generation, likewise.
        model_type: the model's type, from which the class of its tokenizer follows.
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
        """The spelling of the token with a role such as ``bos_token``; None where it has none."""
        declared = self.config.get(name)
        text = declared.get("content") if isinstance(declared, dict) else declared
        return str(text) if text else None

    def declares(self, name: str) -> bool:
        """Whether the files have an entry for ``name``, even a null one."""
        return name in self.config

    @property
    def special_names(self) -> tuple[str, ...]:
        """Spellings of the tokens that have a role, each once."""
        named = [self.token(name) for name in NAMED]
        more = [_content(token) for token in self.config.get("additional_special_tokens") or ()]
        return tuple(dict.fromkeys(token for token in [*named, *more] if token))

    def flag(self, name: str) -> bool | None:
        """A boolean of the tokenizer's configuration; None where it is missing or not a boolean."""
        value = self.config.get(name)
        return value if isinstance(value, bool) else None

    def conventions(self, adds_bos: bool | None, adds_eos: bool | None) -> Conventions:
        """How the vocabulary is used; ``adds_bos`` and ``adds_eos`` stand in where the files have no entry."""
        declared_bos, declared_eos = self.flag("add_bos_token"), self.flag("add_eos_token")
        return Conventions(adds_bos=adds_bos if declared_bos is None else declared_bos,
                           adds_eos=adds_eos if declared_eos is None else declared_eos, end_ids=self.eos_ids,
                           chat_templates=self.chat_templates)


def read_declared(folder: Path) -> DeclaredFiles:
    """Read the files beside a vocabulary in ``folder``; all of them are optional. Raises `TokenizerError`: a file that
    is damaged."""
    named, own = (_read(folder / name) for name in (SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG))
    for content, file in ((named, SPECIAL_TOKENS_MAP), (own, TOKENIZER_CONFIG)):
        if problem := _problem(content):
            raise _damaged(folder / file, problem)
    config, listed = {**named, **own}, _read(folder / ADDED_TOKENS)
    if not all(_is_id(place) for place in listed.values()):
        raise _damaged(folder / ADDED_TOKENS, "it is not an object of tokens and ids")
    files = [folder / "generation_config.json", folder / "config.json"]
    model = _read(files[1])
    return DeclaredFiles(config=config, added=tuple(sorted(_added(config, listed), key=lambda token: token.id)),
                         bos_ids=_ids("bos_token_id", files), eos_ids=_ids("eos_token_id", files),
                         model_type=str(model.get("model_type") or ""),
                         chat_templates=_templates(config.get("chat_template"), folder))


def _problem(config: Mapping[str, Any]) -> str:
    """Why a file's entries about tokens and templates cannot be used; empty if they can."""
    more = config.get("additional_special_tokens") or []
    # Of the values that are false, only null stands for no token: an empty list is none, and cannot be looked up.
    wrong = next((name for name in NAMED if config.get(name) is not None and not _is_token(config[name])), None)
    if wrong is not None:
        return f"{wrong} is neither a text nor an object with one under content"
    if not isinstance(more, list) or not all(map(_is_token, more)):
        return "additional_special_tokens is not a list of tokens"
    declared, templates = config.get("added_tokens_decoder") or {}, config.get("chat_template")
    if not isinstance(declared, dict) or not all(
            isinstance(token, dict) and _is_token(token) and place.isdecimal() and _is_id(int(place[:20]))
            for place, token in declared.items()):
        return "added_tokens_decoder is not an object of ids and tokens"
    if isinstance(templates, list) and not all(isinstance(each, dict) and isinstance(each.get("name"), str)
                                               and isinstance(each.get("template"), str) for each in templates):
        return "chat_template is not a list of objects with a name and a template"
    return ""


def _is_token(value: Any) -> bool:
    return isinstance(value.get("content") if isinstance(value, dict) else value, str)


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST_IDS


def _added(config: Mapping[str, Any], listed: Mapping[str, int]) -> Iterator[AddedToken]:
    declared = config.get("added_tokens_decoder") or {}
    for place, token in declared.items():
        yield AddedToken(token["content"], int(place), bool(token.get("special")), bool(token.get("lstrip")),
                         bool(token.get("rstrip")))  # fmt: skip
    known = {token["content"] for token in declared.values()}
    named = {_content(config.get(name)) for name in NAMED}
    named |= {_content(token) for token in config.get("additional_special_tokens") or ()}
    for content, place in listed.items():
        if content not in known:
            yield AddedToken(content, place, special=content in named)


def _content(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _ids(name: str, files: Sequence[Path]) -> tuple[int, ...]:
    for file in files:
        found = _read(file).get(name)
        if found is None:
            continue
        ids = tuple(found) if isinstance(found, list) else (found,)
        if not all(type(each) is int for each in ids):
            raise _damaged(file, f"{name} is neither an id nor a list of ids")
        # Files of models without such a token have -1, which is no id.
        return tuple(each for each in ids if _is_id(each))
    return ()


def _templates(declared: Any, folder: Path) -> dict[str, str]:
    """The chat templates by name; separate files take precedence over those in the configuration."""
    named = {item["name"]: item["template"] for item in declared} if isinstance(declared, list) else {}
    if isinstance(declared, str):
        named = {DEFAULT_TEMPLATE: declared}
    more = sorted((folder / MORE_TEMPLATES).glob("*.jinja"))
    for name, path in [(DEFAULT_TEMPLATE, folder / CHAT_TEMPLATE), *((path.stem, path) for path in more)]:
        if path.is_symlink() and not lawful_link(path):  # what it leads to would go wherever the template goes
            raise _damaged(path, f"a link to {os.readlink(path)}, out of the folder")
        if path.exists():
            named[name] = read_file(path).decode("utf-8", errors="replace")
    return named


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    if not isinstance(content, dict):
        raise _damaged(path, f"a {type(content).__name__}, not an object")
    return content


def read_file(path: Path) -> bytes:
    """A file's content. Raises `TokenizerError`: it is missing or cannot be read."""
    try:
        return read_vocabulary(path)
    except (OSError, Unreadable) as error:
        raise _damaged(path, (error.strerror if isinstance(error, OSError) else None) or str(error)) from None


def _damaged(path: Path, reason: str) -> TokenizerError:
    return TokenizerError(
        f"the file cannot be read ({reason}).", where=str(path), remedy="Copy the tokenizer's folder again, whole.")
