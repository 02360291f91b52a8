"""The colours of the models, on light and on dark backgrounds; the style sheet uses them, and tests measure them.

Eight hues found by a search for the largest smallest distance in OKLab, as people with normal sight, deuteranopia and
protanopia see them (Machado, Oliveira and Fernandes 2009), under a contrast of 3 to 1 with the paper. Hue n is the same
name in both: blue, orange, teal, purple, yellow, crimson, green, slate.
"""

from __future__ import annotations

from collections.abc import Mapping

LIGHT: Mapping[str, str] = {
    "paper": "#fdfcfa", "raised": "#f5f3ee", "ink": "#1c1b19", "quiet": "#5f5c56", "hairline": "#e3dfd7",
    "firm": "#98938a",
    "accent": "#2c4f9e", "flag": "#a3240f", "matched": "#1b6445"}
DARK: Mapping[str, str] = {
    "paper": "#16171a", "raised": "#1f2125", "ink": "#e9e7e2", "quiet": "#a8a59e", "hairline": "#303238",
    "firm": "#71737a",
    "accent": "#9db4f2", "flag": "#ff9a85", "matched": "#7fd0a8"}
MODELS_LIGHT = ("#3653b9", "#b0560f", "#319f91", "#a46ad2", "#8f9a2a", "#a40049", "#005100", "#606e8c")
MODELS_DARK = ("#8d96e8", "#dd8619", "#73b499", "#9a52d4", "#d7cd6c", "#ca3d7e", "#4e7002", "#cac7eb")


def variables(names: Mapping[str, str], models: tuple[str, ...]) -> str:
    """Custom properties of CSS."""
    found = {**names, **{f"m{index}": colour for index, colour in enumerate(models)}}
    return "".join(f"--{name}:{colour};" for name, colour in found.items())


def themes() -> str:
    """Light by default; dark where the system or the reader selects it, never in print."""
    light, dark = variables(LIGHT, MODELS_LIGHT), variables(DARK, MODELS_DARK)
    classes = "".join(f".m{index}{{--c:var(--m{index})}}" for index in range(len(MODELS_LIGHT)))
    return (f":root{{color-scheme:light;{light}}}"
            f"@media screen and "
            f"(prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
            f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}{classes}")
