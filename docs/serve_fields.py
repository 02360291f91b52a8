"""The table of the fields that a server honours, accepts without effect and refuses, for its page."""

from __future__ import annotations

from weft.server.fields import (
    INERT,
    REFUSED,
    Body,
    ChatBody,
    ClassifyBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    ResponseBody,
    TokenizeBody,
)

BEGIN, END = "<!-- fields -->\n", "<!-- end -->"
BODIES: dict[str, type[Body]] = {
    "/v1/completions": CompletionBody, "/v1/chat/completions": ChatBody, "/v1/responses": ResponseBody,
    "/v1/embeddings": EmbeddingBody,
    "/classify": ClassifyBody, "/tokenize": TokenizeBody, "/detokenize": DetokenizeBody}


def fields() -> str:
    """The table."""
    told: dict[tuple[str, str], list[str]] = {}
    for path, body in BODIES.items():
        for name, field in body.model_fields.items():
            told.setdefault((field.alias or name, field.description or ""), []).append(path)
    lines = ["| field | of | what it does |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {_paths(paths)} | {text} |" for (name, text), paths in told.items() if text != INERT]
    inert = sorted({name for (name, text) in told if text == INERT})
    lines += ["", f"Accepted, and without effect here: {', '.join(f'`{name}`' for name in inert)}.", "",
              "| refused | instead |", "| --- | --- |", *(f"| `{name}` | {why} |" for name, why in REFUSED.items())]
    return "\n".join(lines)


def _paths(paths: list[str]) -> str:
    return "all" if len(paths) == len(BODIES) else ", ".join(f"`{path}`" for path in paths)


def with_fields(page: str) -> str:
    """The page with the table as the code has it."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + fields() + "\n" + rest[rest.index(END):]
