"""Sphinx configuration; the gallery and the command-line pages are generated from the code."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

project = "Weft"
author = "The Weft authors"
extensions = ["myst_parser", "mathml", "columns", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_typehints = "description"
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
html_theme = "furo"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["gallery.css"]
html_title = "Weft"
html_show_copyright = False
exclude_patterns = ["_build"]
suppress_warnings = ["myst.header"]


def _generate(app: Sphinx) -> None:
    from generate import write_pages
    from results import write_results
    from studies import write_studies

    write_pages(Path(app.srcdir) / "_generated", app.config.gallery_only.split())
    write_studies(Path(app.srcdir).parent, Path(app.srcdir) / "_generated")
    write_results(Path(app.srcdir).parent, Path(app.srcdir) / "_generated")


def setup(app: Sphinx) -> None:
    """Generate pages before the build reads them."""
    app.add_config_value("gallery_only", "", "env")  # kinds and families that get pages, for a quick build; empty: all
    app.connect("builder-inited", _generate)
