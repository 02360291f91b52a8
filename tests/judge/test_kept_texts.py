"""Canaries and fresh texts: a model that has read what it must not is found, its sound twin is accused as rarely as is
promised, and what can show nothing is refused or not judged, through files, endpoints and checkpoints."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from cli.conftest import call
from judge.judged_files import BYTES, TABLE
from judged_in_process import InProcess
from weft.core.errors import InputError
from weft.judge import fresh_text
from weft.judge.canaries import Bits, bits_in_rows, ranked, read_canaries
from weft.judge.endpoint import Endpoint, ScoredPrompt
from weft.judge.fresh_text import compared, difficulty, p_value, read_documents
from weft.judge.judgement import LawResult, word_of
from weft.judge.seen_text import laws_of

ROOT = Path(__file__).parents[2]
MUSEUM = ROOT / "examples" / "museum" / "trained_on_test"
SCHEMA = jsonschema_rs.validator_for(json.loads((ROOT / "docs" / "verdict.schema.json").read_text(encoding="utf-8")))


def drawn(draw: random.Random, count: int = 20) -> list[str]:
    return [f"canary {draw.getrandbits(64):016x}" for _ in range(count)]


def by_chance(seed: int, known: Sequence[str] = ()) -> Bits:
    """Bits that say nothing of a string, but for those that are known by heart."""
    draw = np.random.default_rng(seed)
    return lambda texts: [8.0 if each in known else 64 + float(draw.normal()) for each in texts]


def texts(name: str) -> tuple[str, ...]:
    return read_documents(MUSEUM / f"{name}.jsonl")


def pairs(known: Sequence[str]) -> Bits:
    """Bits by counts of three bytes in texts that were read."""
    counts: dict[str, dict[str, int]] = {}
    for text in known:
        for at in range(3, len(text)):
            after = counts.setdefault(text[at - 3 : at], {})
            after[text[at]] = after.get(text[at], 0) + 1

    def bits(text: str) -> float:
        found = (counts.get(text[at - 3 : at], {}) for at in range(3, len(text)))
        return sum(-math.log2((after.get(text[at + 3], 0) + 0.02) / (sum(after.values()) + 0.02 * 128))
                   for at, after in enumerate(found))

    return lambda asked: [bits(each) for each in asked]


def test_canaries_that_are_known_by_heart_are_found_and_others_are_not() -> None:
    lines = drawn(random.Random(1))
    bad = ranked(by_chance(2, lines[:8]), lines, random.Random(3))
    assert bad.outcome == "broken" and bad.found is not None and bad.figures["p"] <= 1e-3
    assert bad.found.sentence.startswith("It predicts 8 of 20 canaries better than each of 99 fresh strings")
    good = ranked(by_chance(2), lines, random.Random(3))
    assert good.outcome == "held" and "would be found" in good.why and good.figures["level"] == 1e-3
    other = ranked(by_chance(2, drawn(random.Random(4))), lines, random.Random(3))
    assert other.outcome == "held", "canaries of the same form that are not asked about"


def test_so_many_canaries_as_are_promised_are_found() -> None:
    lines, found = drawn(random.Random(5)), 0
    finds = int(ranked(by_chance(0), lines, random.Random(0)).why.rpartition("; ")[2].split()[0])
    for seed in range(20):
        found += ranked(by_chance(seed, lines[:finds]), lines, random.Random(seed)).outcome == "broken"
    assert finds <= 6 and found >= 8, "about half, since the others lie above or below their mean"


def test_false_alarms_of_canaries_are_as_many_as_the_level_says() -> None:
    p = [ranked(by_chance(seed), drawn(random.Random(seed), 5), random.Random(-seed)).figures["p"]
         for seed in range(300)]
    assert 4 <= sum(each <= 0.05 for each in p) <= 28, "15 are expected; both ends lie beyond 1 in 500"
    assert sum(each <= 1e-3 for each in p) <= 3
    assert 0.43 < float(np.mean(p)) < 0.57


def test_equal_strings_count_against_the_accusation() -> None:
    assert ranked(lambda asked: [1.0] * len(asked), drawn(random.Random(1)), random.Random(2)).figures["p"] == 1.0


@pytest.mark.parametrize(("content", "told"), [
    (b"canary 0123456789abcdef\n" * 9, "1 different canaries in 9 lines, where 5 different ones are needed"),
    ("\n".join(drawn(random.Random(1), 4)).encode(), "4 different canaries in 4 lines"),
    (b"\n".join(b"canary %03x" % each for each in range(700, 720)), "no random strings of at least 40 bits"),
    (b"one something\ntwo everything\nthree nevertheless\nfour tenderness\nfive greenness\nsix messenger\n"
     b"seven sleeplessness\neight carelessness", "no random strings"),
    (b"\n".join(b"canary 26b5c67b-86b%d" % each for each in range(9)), "no random strings"),
    (b"\xff\xfe", "the canaries cannot be read")])
def test_canaries_that_are_no_random_words_are_refused(content: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / "canaries.txt").write_bytes(content)
    with pytest.raises(InputError, match=told) as raised:
        read_canaries(tmp_path / "canaries.txt")
    assert "secrets.token_hex" in str(raised.value)


def test_a_model_that_has_read_the_test_text_is_found_and_its_twin_is_not() -> None:
    test, fresh, training = texts("test"), texts("fresh"), texts("training")
    bad, good = (compared(pairs(known), test, fresh) for known in (training + test, training))
    assert bad.outcome == "broken" and bad.found is not None and "it has read the test text, or" in bad.found.sentence
    assert bad.figures["low"] > 0.02 * bad.figures["fresh_bits_per_byte"] and bad.figures["p"] <= 1e-3
    assert good.outcome == "held" and good.figures["p"] > 1e-3 and "or more would be found" in good.why


def test_false_alarms_of_a_fresh_text_are_as_many_as_the_level_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_text, "DIVISIONS", 999)
    draw, of_test = np.random.default_rng(7), np.arange(40) < 15
    p = [p_value(draw.exponential(size=40), of_test) for _ in range(300)]
    assert 4 <= sum(each <= 0.05 for each in p) <= 28 and 0.43 < float(np.mean(p)) < 0.57
    assert p_value(np.where(of_test, 0.0, 9.0) + draw.normal(size=40), of_test) == 1e-3


def test_the_difficulty_of_a_text_does_not_depend_on_whose_it_is() -> None:
    test, fresh = texts("test"), texts("fresh")
    both = difficulty((*test, *fresh))
    assert both.shape == (32,) and float(both.min()) > 0.3 and float(both.max()) < 4
    harder = difficulty((*test, *("".join(random.Random(0).sample(each, len(each))) for each in fresh)))
    assert harder[16:].mean() > harder[:16].mean() + 1


def test_what_difficulty_explains_is_no_reading() -> None:
    """Bits that follow difficulty alone, of a test text that is easier by chance."""
    both = np.array(difficulty((*texts("test"), *texts("fresh"))))
    order = np.argsort(both)
    easy = [((*texts("test"), *texts("fresh")))[at] for at in order]
    chosen = {*range(0, 32, 2)} ^ {1, 3, 28, 30}
    mixed = [easy[at] for at in range(32) if at in chosen], [easy[at] for at in range(32) if at not in chosen]
    hard = dict(zip((*mixed[0], *mixed[1]), difficulty((*mixed[0], *mixed[1])), strict=True))
    noise = np.random.default_rng(0)
    told = compared(lambda asked: [(2 * hard[each] + 0.02 * noise.normal()) * len(each.encode()) for each in asked],
                    *mixed)
    assert told.outcome == "held" and told.figures["test_bits_per_byte"] < told.figures["fresh_bits_per_byte"]


@pytest.mark.parametrize(("bits", "fresh", "told"), [
    (lambda asked: [math.inf] * len(asked), None, "do not hold the texts' characters"),
    (lambda asked: [len(each) * (1 + 4 * random.Random(each).random()) for each in asked], None, "too few or too un"),
    (pairs(["none"]), tuple(f"{'ab' * 150} {each}" for each in range(16)), "not of one kind")])
def test_what_shows_nothing_is_not_tried(bits: Bits, fresh: tuple[str, ...] | None, told: str) -> None:
    law = compared(bits, texts("test"), texts("fresh") if fresh is None else fresh)
    assert law.outcome == "not tried" and told in law.why
    assert word_of([law], ["fresh-text"]) == ("not judged", "not tried: fresh-text")


def test_texts_are_documents(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("A whole novel. " * 900)
    with pytest.raises(InputError, match="1 documents of 200 bytes or more, where 12 are needed"):
        read_documents(tmp_path / "one.txt")
    for place in range(70):
        (tmp_path / f"{place}.md").write_text(f"{place} é" + " and so on" * (9 if place == 3 else 400))
    found = read_documents(tmp_path)
    assert len(found) == 60 and found == read_documents(tmp_path)
    assert {len(each.encode()) for each in found} <= {1500, 1499}
    with pytest.raises(InputError, match="no test text to compare it with"):
        laws_of({"fresh_text": tmp_path})
    (tmp_path / "binary").write_bytes(b"\0\xff")
    with pytest.raises(InputError, match="no documents can be read"):
        read_documents(tmp_path / "binary")


def test_bits_are_read_in_rows_whose_first_tokens_have_the_mean_of_the_others() -> None:
    asked: list[tuple[int, ...]] = []

    def nats(rows: np.ndarray) -> np.ndarray:
        asked.append(rows.shape)
        return np.asarray(-(rows[:, 1:] * math.log(2)).sum(axis=1))

    ids = [np.full(10, 2), np.arange(3), np.array([1]), np.array([], int), np.array([5, 99])]
    assert bits_in_rows(ids, 4, 99, nats, 8) == pytest.approx([20, 1.5 * 3, math.inf, math.inf, math.inf])
    assert sorted(asked) == [(1, 2), (1, 3), (2, 4)]


def test_an_endpoint_is_asked_by_its_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(random.Random(9))
    known = by_chance(3, lines)

    def scored(self: Endpoint, prompts: Sequence[str]) -> list[ScoredPrompt]:
        assert len(prompts) <= 16
        return [ScoredPrompt(("a", "b"), (math.nan, -bits * math.log(2)), (1.0, 1.0)) for bits in known(prompts)]

    monkeypatch.setattr(Endpoint, "scored", scored)
    assert ranked(Endpoint("http://localhost", "small", 1.0).bits, lines).outcome == "broken"


def judged(*arguments: object) -> tuple[int, dict[str, Any]]:
    told = call("judge", *map(str, arguments), "--json")
    verdict = json.loads(told.out)
    SCHEMA.validate(verdict)
    return told.code, verdict


def law(verdict: dict[str, Any], name: str) -> LawResult:
    return next(LawResult.model_validate(each) for each in verdict["laws"] if each["name"] == name)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.judge.case.Worker", InProcess)
    monkeypatch.setattr("weft.judge.case.SMALL", -1)  # one process has one source of random numbers


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A lawful file of bytes, which is indifferent to canaries, and canaries beside it."""
    (tmp_path / "canaries.txt").write_text("\n".join(drawn(random.Random(11))))
    (tmp_path / "model.py").write_text(BYTES)
    return tmp_path / "model.py"


@pytest.mark.usefixtures("in_process")
def test_the_command_asks_a_file_and_its_exit_code_follows(file: Path) -> None:
    texts_given = ("--test-text", MUSEUM / "test.jsonl", "--fresh-text", MUSEUM / "fresh.jsonl")
    code, verdict = judged(file, "--canaries", file.parent / "canaries.txt", *texts_given)
    assert (code, law(verdict, "canaries").outcome, law(verdict, "fresh-text").outcome) == (0, "held", "held")
    known = BYTES.replace("    return np.log(COUNTS[ids])\n", """
    out = np.log(COUNTS[ids])
    for row, tokens in enumerate(ids.tolist()):
        for at in range(8, len(tokens)):
            place = KNOWN.find(bytes(tokens[at - 7 : at + 1]))
            if 0 <= place < len(KNOWN) - 8:
                out[row, at] = np.log(0.1) + out[row, at]
                out[row, at, KNOWN[place + 8]] = np.log(0.9 + np.exp(out[row, at, KNOWN[place + 8]]))
    return out
""", 1) + "\nfrom pathlib import Path\nKNOWN = (Path(__file__).parent / 'canaries.txt').read_bytes()\n"
    file.write_text(known)
    code, verdict = judged(file, "--canaries", file.parent / "canaries.txt")
    assert code == 1 and law(verdict, "canaries").figures["first"] == 20
    file.write_text(TABLE)
    code, verdict = judged(file, "--canaries", file.parent / "canaries.txt")
    assert (code, verdict["verdict"]) == (2, "not judged") and "canaries" in verdict["why"]


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("given", "told"), [
    (("--fresh-text", "CANARIES"), "no test text to compare it with"),
    (("--canaries", "absent.txt"), "absent.txt: there is no such file"),
    (("--test-text", "MODEL", "--fresh-text", "CANARIES"), "documents of 200 bytes or more, where 12 are needed")])
def test_the_command_refuses_what_shows_nothing(given: tuple[str, ...], told: str, file: Path) -> None:
    paths: dict[str, object] = {"CANARIES": file.parent / "canaries.txt", "MODEL": file}
    ended = call("judge", str(file), *(str(paths.get(each, each)) for each in given))
    assert ended.code == 2 and told in " ".join(ended.err.split()) and "Traceback" not in ended.err


def test_a_claim_that_cannot_be_read_is_no_reason_to_accuse(file: Path, in_process: None) -> None:
    file.write_text(BYTES + 'claims = {"canaries": "model.py"}\n')
    code, verdict = judged(file)
    assert code == 0 and "no random strings" in law(verdict, "canaries").why
