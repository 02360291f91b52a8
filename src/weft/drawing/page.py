"""The shell of an HTML page: one file that asks nothing of any other, in both themes."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

from weft.drawing.markup import Markup, join, tag
from weft.drawing.palette import themes


def base_style() -> str:
    """Colours, text, tables and charts: the style that all pages share."""
    return themes() + style_of("weft.drawing", "page.css")


def style_of(package: str, name: str) -> str:
    """A style sheet of a package without its comments and the breaks of its lines, which no reader of a page sees."""
    sheet = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    return re.sub(r"\s*\n\s*", "", re.sub(r"/\*.*?\*/", "", sheet, flags=re.DOTALL))


def meta(script: str = "") -> Markup:
    """The page's metadata, with a policy that forbids every request and every script but this one."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    scripts = f"script-src 'sha256-{digest}'; " if script else ""
    policy = (f"default-src 'none'; style-src 'unsafe-inline'; {scripts}img-src data:; "
              "base-uri 'none'; form-action 'none'")
    return join(tag("meta", {"charset": "utf-8"}),
                tag("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
                tag("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
                tag("meta", {"name": "color-scheme", "content": "light dark"}),
                tag("link", {"rel": "icon", "href": "data:,"}))


def document(title: str, style: str, *body: Markup) -> str:
    """A page without scripts; ``style`` is added to the style that all pages share."""
    head = tag("head", None, meta(), tag("title", None, title), tag("style", None, Markup(base_style() + style)))
    return f"<!DOCTYPE html>\n{tag('html', {'lang': 'en'}, head, tag('body', None, *body))}\n"
