"""Mixtures that were published, with the numbers of their tables."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from weft.data.mixture import Mixture, Source

BILLION = 1e9

GPT3 = Mixture(
    "gpt3", "tokens", "Brown et al. 2020, \"Language Models are Few-Shot Learners\", table 2.2", 300 * BILLION, (
        Source("Common Crawl (filtered)", 410 * BILLION, 0.60, 0.44),
        Source("WebText2", 19 * BILLION, 0.22, 2.9),
        Source("Books1", 12 * BILLION, 0.08, 1.9),
        Source("Books2", 55 * BILLION, 0.08, 0.43),
        Source("Wikipedia", 3 * BILLION, 0.03, 3.4)))

PILE = Mixture(
    "pile", "GiB", "Gao et al. 2020, \"The Pile: An 800GB Dataset of Diverse Text for Language Modeling\", table 1",
    1254.20, (
        Source("Pile-CC", 227.12, 0.1811, 1.0), Source("PubMed Central", 90.27, 0.1440, 2.0),
        Source("Books3", 100.96, 0.1207, 1.5), Source("OpenWebText2", 62.77, 0.1001, 2.0),
        Source("ArXiv", 56.21, 0.0896, 2.0), Source("Github", 95.16, 0.0759, 1.0),
        Source("FreeLaw", 51.15, 0.0612, 1.5), Source("Stack Exchange", 32.20, 0.0513, 2.0),
        Source("USPTO Backgrounds", 22.90, 0.0365, 2.0), Source("PubMed Abstracts", 19.26, 0.0307, 2.0),
        Source("Gutenberg (PG-19)", 10.88, 0.0217, 2.5), Source("OpenSubtitles", 12.98, 0.0155, 1.5),
        Source("Wikipedia (en)", 6.38, 0.0153, 3.0), Source("DM Mathematics", 7.75, 0.0124, 2.0),
        Source("Ubuntu IRC", 5.52, 0.0088, 2.0), Source("BookCorpus2", 6.30, 0.0075, 1.5),
        Source("EuroParl", 4.59, 0.0073, 2.0), Source("HackerNews", 3.90, 0.0062, 2.0),
        Source("YoutubeSubtitles", 3.73, 0.0060, 2.0), Source("PhilPapers", 2.38, 0.0038, 2.0),
        Source("NIH ExPorter", 1.89, 0.0030, 2.0), Source("Enron Emails", 0.88, 0.0014, 2.0)))

DOLMA = Mixture(
    "dolma", "tokens", "Soldaini et al. 2024, \"Dolma: an Open Corpus of Three Trillion Tokens for Language Model "
    "Pretraining Research\", table 1 (tokens of Llama's tokenizer; no weights are given there)", 3059 * BILLION, (
        Source("Common Crawl", 2479 * BILLION), Source("GitHub", 411 * BILLION), Source("Reddit", 89 * BILLION),
        Source("Semantic Scholar", 70 * BILLION), Source("Project Gutenberg", 6.0 * BILLION),
        Source("Wikipedia, Wikibooks", 4.3 * BILLION)))

PUBLISHED: Mapping[str, Mixture] = MappingProxyType({each.name: each for each in (GPT3, PILE, DOLMA)})
"""By name. Targets are what the tables' epochs refer to; for Dolma, the size of the whole as printed."""
