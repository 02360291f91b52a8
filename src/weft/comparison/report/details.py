"""The details of a report: samples, every run, configurations, protocol, data, machine, notes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from weft.comparison.findings import TEST_NAMES
from weft.comparison.report.view import COLUMNS, View
from weft.comparison.results import RunResult, Sample, StudyModel
from weft.drawing.markup import Child, Markup, annotated, join, shorten, tag
from weft.drawing.numbers import MISSING, confidence, duration, fixed, integer, learning_rate, moment, octets, si
from weft.drawing.tables import Column, facts, folded, table

SHOWN = 700
"""Characters before the fold."""

KEPT = 6000
"""Characters in the page at all."""


def samples(view: View) -> Markup:
    """A card for each model, in the order of the table."""
    if not any(entry.sample for entry in view.result.entries):
        return tag("p", {"class": "none"}, "No model wrote a sample.")
    prompts = {(entry.sample.prompt, entry.sample.how) for entry in view.ranked if entry.sample}
    shared = join([join(tag("p", None, f"All continue the same prompt ({how}):"),
                        tag("pre", {"class": "sample prompt", "dir": "auto", "tabindex": "0"}, annotated(prompt)))
                   for prompt, how in prompts if len(prompts) == 1])
    return join(shared, tag("div", {"class": "cards"}, [_card(view, entry, not shared) for entry in view.ranked]))


def _card(view: View, entry: StudyModel, own: bool) -> Markup:
    style = view.styles[entry.name]
    body = _text(entry.sample, own) if entry.sample else tag("p", {"class": "none"}, "No sample: no run finished.")
    return tag("article", {"class": f"card {style.colour}", "data-model": str(style.index)},
               tag("h3", None, view.key(entry)), body)


def _text(sample: Sample, own: bool) -> Markup:
    prompt = tag("p", {"class": "small"}, sample.how, ": ", tag("bdi", {"class": "quoted"},
                                                                annotated(sample.prompt))) if own else ""
    if not sample.text:
        return join(prompt, tag("p", {"class": "none"}, "An empty continuation."))
    rest = sample.text[SHOWN:KEPT]
    left = len(sample.text) - KEPT
    tail = tag("p", {"class": "small"}, f"{integer(left)} more characters are left out.") if left > 0 else ""
    more = folded(f"{integer(len(rest))} more characters", _block(rest), tail) if rest else ""
    return join(prompt, _block(sample.text[:SHOWN]), more)


def _block(text: str) -> Markup:
    return tag("pre", {"class": "sample", "dir": "auto"}, annotated(text))


def runs(view: View) -> Markup:
    """Those that did not finish in the open, all of them folded."""
    everything = [(entry, run) for entry in view.result.entries for run in entry.runs]
    if not everything:
        return tag("p", {"class": "none"}, "The study has no runs yet.")
    lost = [(entry, run) for entry, run in everything if run.status != "finished"]
    columns = [Column("Model", number=False), Column("Run"), Column("Seed"), Column("Order seed"),
               Column("Outcome", number=False),
               Column("Steps"), Column("Reason", number=False)]
    rows = [[view.key(entry), integer(run.index + 1), str(run.seed), str(run.order_seed),
             tag("span", {"class": "flag"}, run.status),
             integer(run.steps), run.note or ("still to come" if run.status == "pending" else "no reason recorded")]
            for entry, run in lost]
    first = table("Runs that did not finish", columns, rows, name="lost") if lost else tag(
        "p", None, f"All {len(everything)} runs finished.")
    return join(first, folded(f"All {len(everything)} runs", _all_runs(view, everything)))


def _all_runs(view: View, everything: Sequence[tuple[StudyModel, RunResult]]) -> Markup:
    columns = [Column("Model", number=False), Column("Run"), Column("Seeds", "weights, order"),
               Column("Outcome", number=False), Column("Bits per byte"), Column("Learning rate"), Column("Steps"),
               Column("Time"), Column("Tokens/s"), Column("Peak memory")]
    rows = [[view.name(entry), integer(run.index + 1), f"{run.seed}, {run.order_seed}", run.status,
             fixed(run.bits_per_byte, 4), MISSING if run.lr is None else learning_rate(run.lr)
             + (", at the edge" if run.edge else ""), integer(run.steps), duration(run.seconds),
             si(run.tokens_per_second), octets(run.peak_memory_bytes)] for entry, run in everything]
    seeds: dict[int, set[tuple[int, int]]] = {}
    for _, run in everything:
        seeds.setdefault(run.index, set()).add((run.seed, run.order_seed))
    same = len(view.result.entries) > 1 and all(len(each) == 1 for each in seeds.values())
    return table("Run i of every model has the same seeds, of weights and of the order of the data" if same else
                 "Every run with its seeds, of weights and of the order of the data", columns, rows, name="all-runs",
                 attributes={"class": "sortable"})


def repeat_lead(view: View) -> Markup:
    """The sentence that says what each command does."""
    found = view.result.machine
    code = f" of commit {found.commit}" if found.commit else ""
    return join(f"With Weft {found.weft}{code}; ", f"runs repeat {found.determinism}." if found.determinism else
                "how exactly runs repeat was not recorded.")


def repeat(view: View) -> Markup:
    """The command and the exact configuration of every row."""
    data = view.result.corpus
    whole = join(tag("p", None, "The whole study, where the files that the command names lie; the study file below "
                     "says all that it stands for. Its text is ", data.name, " (SHA-256 ",
                     tag("code", None, data.sha256[:12]), "\u2026):"), command(view.result.command),
                 folded(join("Study file ", _hash(view.result.study_sha256)), block(view.result.study_config)))
    shared, own = _apart([entry.config for entry in view.ranked])
    same = folded("What the configurations of all models have in common", block(shared)) if shared else ""
    words = tag("p", None, "The first run of one model, from the study\u2019s folder, which may have been moved:")
    return join(whole, words, same, [_repeat_row(view, entry, config)
                                     for entry, config in zip(view.ranked, own, strict=True)])


def _apart(configs: Sequence[str]) -> tuple[str, list[str]]:
    """The top-level keys that all configurations share with their values, and what each has besides."""
    parts = [re.findall(r"^\S.*\n?(?:[ \n].*\n?)*", config, re.MULTILINE) for config in configs]
    if len(parts) < 2 or any("".join(each) != config for each, config in zip(parts, configs, strict=True)):
        return "", list(configs)
    shared = [part for part in parts[0] if all(part in other for other in parts)]
    return "".join(shared), ["".join(part for part in own if part not in shared) for own in parts]


def _repeat_row(view: View, entry: StudyModel, config: str) -> Markup:
    whole = "" if shorten(entry.name, COLUMNS) == entry.name else tag("p", {"class": "small whole"}, entry.name)
    return tag("section", {"class": "repeat", "data-model": str(view.styles[entry.name].index)},
               tag("h3", None, view.key(entry)), whole,
               command(entry.repeat) if entry.repeat else tag(
                   "p", {"class": "small"}, "Counted on a part of the text, which only the whole study does."),
               folded(join("Its own configuration (whole: ", _hash(entry.config_sha256), ")"), block(config)))


def block(text: Child) -> Markup:
    """Text to copy."""
    return tag("pre", {"class": "copy", "tabindex": "0"}, tag("code", None, text or MISSING))


def command(text: str) -> Markup:
    """A command to copy, whose lines are broken between its words alone: a browser would part an option from its
    dashes."""
    return block([tag("span", {"class": "word"}, part) if "-" in part else part
                  for part in re.split(r"(\s+)", text) if part])


def _hash(value: str) -> Markup:
    return tag("code", {"class": "hash", "title": f"SHA-256 {value}"}, f"sha256 {value[:12]}\u2026" if len(value) > 12
               else value)


def protocol(view: View) -> Markup:
    """How it was counted."""
    result = view.result
    own = [f"Intervals are two-sided, at {confidence(result.level)} each, not corrected for their number. A "
           f"model's own is Student's t over its runs; that of a difference is by {TEST_NAMES[result.test]}, and by a "
           f"bootstrap of the test text in {integer(len(result.corpus.document_bytes))} clusters.",
           "p-values are corrected for all pairs by Holm's method; two models share a letter exactly where the "
           "corrected test does not tell them apart.",
           "The nats of every run in every cluster stand in the result, from which each interval and p-value can be "
           "worked out again.",
           "Time, speed, memory and tokens in the table are medians over the finished runs."]
    sentences = tag("ul", {"class": "sentences"}, [tag("li", None, each) for each in (*result.protocol, *own)])
    return join(sentences, training(view))


def training(view: View) -> Markup:
    """The settings of training: one value where all models share it, and one for each where they differ."""
    rows: list[list[Child]] = []
    for each in view.result.budget.settings:
        if each.equal:
            longest: str = max((value for _, value in each.values), key=len)
            rows.append([each.name, "equal", "all", longest])
        else:
            rows += [[each.name, tag("span", {"class": "flag"}, "different"), name, value]
                     for name, value in each.values]
    columns = [Column(head, number=False) for head in ("Setting", "Over the models", "Model", "Value")]
    return table("How the models that gradients train were trained; learning rates stand under Tuning", columns, rows,
                 name="training-settings") if rows else Markup("")


def data(view: View) -> Markup:
    """Text and tokenizer, with hashes."""
    corpus = view.result.corpus
    again = f"{integer(corpus.duplicated_documents)} of {integer(corpus.validation_documents)} documents"
    share = f"; {corpus.duplicated_share:.1%} of the text" if corpus.duplicated_share else ""
    return facts([("Corpus", corpus.name), ("Training text",
                                            f"{octets(corpus.train_bytes)}, {integer(corpus.train_tokens)} tokens"),
                  ("Test text", f"{octets(corpus.validation_bytes)}, {integer(corpus.validation_tokens)} tokens, "
                   f"{integer(corpus.validation_documents)} documents"),
                  ("Of these also in the training text",
                   tag("span", {"class": "flag"}, again + share) if corpus.duplicated_documents else f"none{share}"),
                  ("Tokenizer", f"{corpus.tokenizer}, {integer(corpus.vocab_size)} types"),
                  ("Corpus SHA-256", tag("code", None, corpus.sha256)),
                  ("Tokenizer SHA-256", tag("code", None, corpus.tokenizer_sha256))])


def machine(view: View) -> Markup:
    """Hardware and versions."""
    found, result = view.result.machine, view.result
    return facts([("Processor", found.processor), ("Cores, threads", f"{found.cores}, {found.threads} used"),
                  ("Memory", octets(found.memory_bytes)), ("Device", found.device), ("System", found.system),
                  ("Python", found.python), ("PyTorch", found.torch), ("Weft", found.weft),
                  ("Commit", tag("code", None, found.commit) if found.commit else "not known"),
                  ("Runs repeat", found.determinism or "not recorded"),
                  ("Started", moment(result.started)), ("Finished", moment(result.finished))])


def additions(view: View) -> Markup:
    """The additions to the study, and the models' figures at a shorter budget."""
    rows = [[moment(each.when), each.what, ", ".join(
        f"{figure.name} {fixed(figure.bits_per_byte, 3)} at {si(figure.tokens)} tokens" for figure in each.figures)]
            for each in view.result.additions]
    columns = [Column("When", number=False, wraps=False), Column("What", number=False),
               Column("Bits per byte before", number=False)]
    return table("Added after the study had begun", columns, rows, name="additions")


def notes(view: View) -> Markup:
    """The notes that a reader needs in order to judge."""
    return tag("ul", {"class": "sentences"}, [tag("li", None, note) for note in view.result.notes])
