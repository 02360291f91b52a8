"""Documents that stand in the training text and in what is held out: counted, told, and kept on one side on request."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weft.api.configs import own_presets, read_config
from weft.cli.main import app
from weft.core.errors import DataError
from weft.data import Corpus, Document, Repeated, duplicates, embedded_corpus, overlap, repeated
from weft.data import corpus as corpus_module
from weft.data.corpus import FEWEST_TO_SPLIT
from weft.data.duplicates import FOUND, clusters
from weft.data.prepared_manifest import read_prepared_manifest
from weft.data.settings import DataSettings
from weft.tasks.token_streams import held_out_text, read_texts
from weft.tokenizers import ByteTokenizer
from weft.training.events import Event, Notice
from weft.training.files import parse_run
from weft.training.run_training import train

MODEL = {"kind": "decoder", "d_model": 8, "context": 8,
         "blocks": [{"kind": "pre", "layers": [{"kind": "mlp", "d_ff": 8}]}]}


def corpus(texts: list[str]) -> Corpus:
    return Corpus("drawn", tuple(Document(f"file{i}", text) for i, text in enumerate(texts)))


def folder_of(path: Path, *, copies: int, texts: int = 120) -> Path:
    """A folder of texts, each under so many names."""
    path.mkdir()
    for index in range(texts):
        for copy in range(copies):
            (path / f"{copy}-{index:03d}.txt").write_text(f"text number {index}, and what it says\n")
    return path


def test_repeated_documents_are_counted_by_their_text() -> None:
    train_text, held = corpus(["one", "two", "two", "three "]), corpus(["two", "three", "two", "four", "ONE"])
    assert repeated(held, train_text) == (4, 5, pytest.approx(14 / 18))
    assert repeated(train_text, train_text) == (4, 4, 1.0)
    assert repeated(held, corpus(["other"])).describe() == (
        "0 of 5 documents also stand in the training text, by 40% or more; of all text 0.0% does, in stretches of 50 "
        "bytes")
    assert Repeated(0, 5).describe() == "0 of 5 documents also stand, word for word, in the training text"


def test_blank_documents_are_no_copies_of_one_another() -> None:
    assert repeated(corpus([" \n", "held out"]), corpus([" \n", "trained on"])) == (0, 2, 0.0)
    assert repeated(corpus([" \n"]), corpus(["trained on"])) == (0, 1, 0.0)


def nine_texts() -> list[str]:
    """Stretches of the source of the standard library, of 150 to 6,000 bytes, none of them near another."""
    whole = "".join(document.text for document in embedded_corpus().limited(2_000_000).documents)
    return [whole[150_000 * index:][:size] for index, size in enumerate(
        (150, 200, 300, 500, 800, 1200, 2000, 4000, 6000), start=1)]


COPIES = {
    "as it is": lambda text: text,
    "one character changed": lambda text: f"{text[:len(text) // 3]}\u00e9{text[len(text) // 3 + 1:]}",
    "a space at the end": lambda text: f"{text} ",
    "capitals": str.upper,
    "other white space": lambda text: text.replace("\n", "\r\n\t"),
    "its second half": lambda text: text[len(text) // 2:],
    "half new": lambda text: text[:len(text) // 2] + "".join(
        chr(0x4E00 + 37 * place % 9999) for place in range(len(text.encode()) // 6)),
    "inside another": lambda text: f"Something else was written before. {text} And something after it, too.",
}


@pytest.mark.parametrize("kind", COPIES)
def test_every_kind_of_copy_is_found(kind: str) -> None:
    texts = nine_texts()
    trained = corpus([*texts, "and other text " * 50])
    shares, _ = overlap([Document("held", COPIES[kind](text)) for text in texts], trained.documents)
    assert (shares >= FOUND).all(), shares
    other, _ = overlap([Document("held", text) for text in texts], corpus(["and other text " * 50]).documents)
    assert (other == 0).all()


def test_the_share_of_a_document_is_that_of_its_bytes_in_stretches_of_50() -> None:
    """Against a plain search for every stretch, on texts of many sizes with parts in common."""
    draw = random.Random(3)
    words = [f"w{draw.randrange(400)}é"[:draw.randrange(2, 6)] for _ in range(4000)]
    train_texts = [" ".join(words[first:first + draw.randrange(5, 90)]) for first in range(0, 3600, 90)]
    held_texts = [" ".join(words[first:first + draw.randrange(1, 60)]) + " new words here" * draw.randrange(0, 4)
                  for first in range(0, 3900, 47)]
    shares, sizes = overlap(corpus(held_texts).documents, corpus(train_texts).documents)
    for text, share, size in zip(held_texts, shares.tolist(), sizes.tolist(), strict=True):
        content = text.encode()
        inside = [False] * len(content)
        for first in range(max(1, len(content) - 49)):
            piece = content[first:first + 50]
            ends = len(piece) < 50
            if any(each.encode().endswith(piece) if ends else piece in each.encode() for each in train_texts):
                inside[first:first + 50] = [True] * len(piece)
        assert size == len(content) and share == pytest.approx(sum(inside) / len(inside))
    assert 0.1 < (shares == 0).mean() < 0.9, "some stand there and some do not"


def test_blocks_and_parts_of_a_text_do_not_change_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [document.text for document in embedded_corpus().limited(300_000).documents]
    held = [text[200:] for text in texts[::3]]
    whole = overlap(corpus(held).documents, corpus(texts).documents)[0]
    monkeypatch.setattr(duplicates, "BLOCK", 300)
    duplicates._powers.cache_clear()
    cut = overlap(corpus(held).documents, corpus(texts).documents)[0]
    duplicates._powers.cache_clear()
    assert cut.tolist() == whole.tolist()


def test_boilerplate_is_told_as_a_share_and_finds_no_document() -> None:
    licence = "Permission is hereby granted, free of charge, to any person obtaining a copy of this software. " * 3
    draw = random.Random(1)
    bodies = ["".join(draw.choice("abcdefgh \n") for _ in range(1200)) for _ in range(40)]
    texts = corpus([licence + body for body in bodies])
    train_text, held = texts.split(0.2)
    found = repeated(Corpus("held", held.documents), train_text)
    assert found.found == 0 and found.share == pytest.approx(0.0, abs=0.01)  # each document is cut in two
    found = repeated(corpus([licence + body for body in bodies[:8]]), corpus([licence + body for body in bodies[8:]]))
    assert found.found == 0 and 0.15 < (found.share or 0) < 0.25 and found.told


def test_of_a_long_held_out_text_documents_spread_over_it_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "MOST_SEARCHED", 1000)
    held = corpus([f"the text of number {index:04d}, which is no other" for index in range(100)])
    assert repeated(held, held)[:2] == (20, 20)


def test_a_split_by_content_keeps_the_same_text_on_one_side() -> None:
    texts = corpus([f"text {i % 150}" for i in range(450)])
    by_name, by_content = texts.split(0.2), texts.split(0.2, by="content")
    assert repeated(by_name[1], by_name[0]).found > 0, "the copies of a text have names of their own"
    assert repeated(by_content[1], by_content[0]).found == 0
    assert sorted(d.name for side in by_content for d in side.documents) == sorted(d.name for d in texts.documents)
    held = {document.text for document in by_content[1].documents}
    assert 15 <= len(held) <= 50  # 30 of 150 expected, standard deviation 5
    renamed = Corpus("other", tuple(Document(f"new{i}", d.text) for i, d in enumerate(texts.documents)))
    assert {document.text for document in renamed.split(0.2, by="content")[1].documents} == held


def test_copies_of_one_text_cannot_be_split_by_content() -> None:
    with pytest.raises(DataError, match=r"drawn: all 120 documents have the same text, so none can be held out\. Give"):
        corpus(["same"] * 120).split(0.1, by="content")
    two = corpus(["rare"] + ["same"] * FEWEST_TO_SPLIT).split(0.0001, by="content")
    assert all(side.documents for side in two) and repeated(two[1], two[0]).found == 0


def drawn_text(draw: random.Random, size: int) -> str:
    return "".join(draw.choice("abcdefghij \n") for _ in range(size))


def near_copies(kinds: int = 40) -> Corpus:
    """Families of five documents: one text, and four ways in which it is found again; and as many texts without."""
    draw, found = random.Random(5), list[str]()
    for _ in range(kinds):
        text = drawn_text(draw, draw.randrange(400, 1500))
        found += [text, *(COPIES[kind](text) for kind in ("one character changed", "capitals", "its second half",
                                                          "inside another")), drawn_text(draw, 800)]
    draw.shuffle(found)
    return corpus(found)


@pytest.mark.parametrize(("of", "seeds"), [(near_copies, 3), (lambda: embedded_corpus().limited(3_000_000), 1)],
                         ids=["drawn", "default"])
def test_a_split_by_copies_holds_out_nothing_that_is_trained_on(of: Callable[[], Corpus], seeds: int) -> None:
    """What is told of a split by name, and no longer after what the notice recommends."""
    texts = of()
    for seed in range(seeds):
        train_text, held = texts.split(0.1, seed=seed, by="copies")
        found = repeated(held, train_text)
        assert found.found == 0 and not found.told
        assert sorted(d.name for side in (train_text, held) for d in side.documents) == sorted(
            d.name for d in texts.documents)
        assert 0.02 < len(held.documents) / len(texts.documents) < 0.2
        again = texts.split(0.1, seed=seed, by="copies")[1]
        assert [document.name for document in again.documents] == [document.name for document in held.documents]
    assert any(repeated(*reversed(texts.split(0.1, seed=seed))).told for seed in range(seeds))


def test_no_preset_holds_out_what_it_trains_on_in_the_default_text() -> None:
    """So that the first command does not begin with a notice; all presets take the same text."""
    found = [parse_run(read_config(preset)).data for preset in own_presets() if "data" in read_config(preset)]
    assert found.count(found[0]) == len(found) > 5 and found[0].path is None
    parts = read_texts(found[0]).parts
    assert not repeated(parts["validation"], parts["train"]).told


def test_clusters_are_what_shares_much() -> None:
    """Against the share of each pair, found by `overlap`; boilerplate joins nothing."""
    licence, draw = drawn_text(random.Random(2), 300), random.Random(7)
    texts = [licence + drawn_text(draw, 900) for _ in range(40)]
    copied = [*texts, *(text[:700] + drawn_text(draw, 100) for text in texts[::4]), "short", "Short ", " ", "other"]
    documents = corpus(copied).documents
    numbers = clusters(documents, sum(map(len, copied)))
    for index, number in enumerate(numbers.tolist()):
        others = [place for place in range(len(copied)) if place != index and numbers[place] == number]
        wanted = [place for place in range(len(copied)) if place != index and copied[index].strip() and max(
            overlap([documents[a]], [documents[b]])[0][0] for a, b in ((index, place), (place, index))) >= FOUND]
        assert others == wanted, index
    assert len(set(numbers.tolist())) == 40 + 3


def test_a_piece_of_many_documents_is_not_held_out() -> None:
    """No two documents share much, and one is made of pieces of others: it is moved to the training text."""
    draw = random.Random(4)
    texts = [drawn_text(draw, 1000) for _ in range(120)]
    pieced = ["".join(texts[(7 * index + place) % 120][:120] for place in range(10)) for index in range(17)]
    whole = corpus([*texts, *pieced])
    assert len(set(clusters(whole.documents, whole.size_bytes).tolist())) == 137
    by_name, by_copies = whole.split(0.2), whole.split(0.2, by="copies")
    assert repeated(by_name[1], by_name[0]).found > 0
    assert repeated(by_copies[1], by_copies[0]).found == 0
    assert {d.name for d in by_copies[1].documents} < {d.name for d in by_name[1].documents}


def test_few_documents_are_split_by_copies_as_wholes() -> None:
    draw = random.Random(6)
    texts = [drawn_text(draw, 500) for _ in range(6)]
    train_text, held = corpus([*texts, *texts]).split(0.3, by="copies")
    assert {d.text for d in train_text.documents} | {d.text for d in held.documents} == set(texts)
    assert not {d.text for d in train_text.documents} & {d.text for d in held.documents}
    with pytest.raises(DataError, match=r"drawn: all 2 documents share much of their text, so none can be held out"):
        corpus([texts[0], texts[0].upper()]).split(0.1, by="copies")


def test_the_remedy_is_one_that_helps() -> None:
    settings = DataSettings(path="texts")
    assert "data.split_by=copies" in settings.remedy
    assert settings.model_copy(update={"split_by": "copies"}).remedy.startswith("what is left is text that many")
    held = DataSettings.model_validate({"path": "texts", "validation_path": "held"})
    assert held.remedy == "take what is in both out of one of the two texts"


def test_what_is_read_follows_the_setting(tmp_path: Path) -> None:
    path = folder_of(tmp_path / "texts", copies=3)
    for by, some in (("name", True), ("content", False)):
        settings = DataSettings.model_validate({"path": str(path), "split_by": by})
        parts = read_texts(settings).parts
        assert (repeated(parts["validation"], parts["train"]).found > 0) is some
        stream = held_out_text(settings, ByteTokenizer())
        assert stream.repeated == repeated(parts["validation"], parts["train"])


def test_preparing_and_inspecting_say_how_many(tmp_path: Path) -> None:
    path = folder_of(tmp_path / "texts", copies=3)
    run = CliRunner()
    made = run.invoke(app, ["data", "prepare", str(path), "--out", str(tmp_path / "out")])
    part = read_prepared_manifest(tmp_path / "out").parts["validation"]
    assert part.in_training and part.in_training <= part.documents
    said = f"validation: {part.in_training} of {part.documents} documents also stand in the training text, by 40%"
    assert said in made.output and "data.split_by=copies holds out" in " ".join(made.output.split())
    shown = run.invoke(app, ["data", "inspect", str(tmp_path / "out")])
    assert said in " ".join(shown.output.split())
    facts = {part["name"]: part for part in json.loads(run.invoke(
        app, ["data", "inspect", str(tmp_path / "out"), "--json"]).output)["parts"]}
    assert facts["validation"]["in_training"] == part.in_training and facts["train"]["in_training"] is None
    quiet = run.invoke(app, ["data", "prepare", str(path), "data.split_by=copies", "--out", str(tmp_path / "by")])
    assert quiet.exit_code == 0 and "also stand" not in quiet.output
    assert read_prepared_manifest(tmp_path / "by").parts["validation"].in_training == 0


def test_training_and_evaluation_say_how_many(tmp_path: Path) -> None:
    path = folder_of(tmp_path / "texts", copies=2)
    told: list[Event] = []
    config = parse_run({"model": MODEL, "data": {"path": str(path)}, "training": {"steps": 1, "batch_size": 1}})
    train(config, tmp_path / "run", on_event=told.append)
    notices = [event.line() for event in told if isinstance(event, Notice)]
    assert len(notices) == 1 and "documents also stand in the training text, by 40% or more" in notices[0]
    assert "data.split_by=copies holds out no document of which the training text has so much" in notices[0]
    told.clear()
    config = config.model_copy(update={"data": config.data.model_copy(update={"split_by": "copies"})})
    train(config, tmp_path / "remedied", on_event=told.append)
    assert not [event for event in told if isinstance(event, Notice)], "the remedy that was named"
    shown = CliRunner().invoke(app, ["eval", str(tmp_path / "run")])
    assert shown.exit_code == 0 and "documents also stand in the training text, by 40% or more" in shown.output
    copied = tmp_path / "copied.txt"
    copied.write_text((path / "0-000.txt").read_text().upper())
    other = CliRunner().invoke(app, ["eval", str(tmp_path / "run"), "--data", str(copied), "--json"])
    protocol = json.loads(other.output)[0]["protocol"]
    assert protocol["documents_in_training"] == 1 and protocol["share_in_training"] == 1.0
    shutil.rmtree(path)
    other = CliRunner().invoke(app, ["eval", str(tmp_path / "run"), "--data", str(copied), "--json"])
    assert json.loads(other.output)[0]["protocol"]["documents_in_training"] is None
