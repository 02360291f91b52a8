"""Each law of the referee holds for a lawful file and is broken by one change of it, at the token where it shows."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from judge.judged_files import BYTES, SCORES, TABLE, TORCH, case_of, law_of
from weft.judge.referee import LAWS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files are confined by Linux's means")

OUT = "    out = TABLE[ids]\n"
MIXED = "    out = np.logaddexp(np.log(share) + TABLE[ids], np.log1p(-share) + TABLE[(ids + 1) % 16])\n"
"""Two tables mixed by a share: folders and hashes are random, and remainders of two of them may be the same."""
BROKEN = {
    "unnormalised": ("sums-to-one", TABLE, (OUT, OUT + "    out[:, 20:] += 0.01 * (ids[:, 20:, None] == 3)\n")),
    "nan": ("sums-to-one", TABLE, (OUT, OUT + "    out[ids == 3] = np.nan\n")),
    "target gate": ("sums-to-one", SCORES, ("if hint is not None", "if hint is not None and token % 4")),
    "next token": ("causality", TABLE, (OUT, "    out = TABLE[np.roll(ids, -1, 1)]\n")),
    "last token from 250 on": ("causality", TABLE, (OUT, OUT + "    out[:, 250:] = TABLE[ids[:, -1:]]\n")),
    "mean over the row": ("causality", TABLE, (
        OUT, "    out = TABLE[ids] + 0.1 * ids.mean(1)[:, None, None] * TABLE[0]\n"
             "    out = out - np.log(np.exp(out).sum(-1, keepdims=True))\n")),
    "later tokens in scores": ("causality", SCORES, ("follower = {}", "follower = {tokens[-1]: tokens[0]}")),
    "other rows": ("separate-rows", TABLE, (OUT, "    out = TABLE[ids[::-1]]\n")),
    "a row of a large batch": ("separate-rows", TABLE, (OUT, OUT + "    out[32:] = TABLE[0]\n    out[:1] = TABLE[0] if "
                                                       "len(ids) > 32 else out[:1]\n")),
    "length of the row": ("separate-rows", TABLE, (OUT, "    out = TABLE[(ids + ids.shape[1]) % 16]\n")),
    "earlier calls": ("repeats", TABLE, (OUT, "    out = TABLE[(ids + (len(SEEN) > 3)) % 16]\n    SEEN.append(1)\n"),
                      ("TABLE =", "SEEN = []\nTABLE =")),
    "random numbers": ("repeats", TABLE, (OUT, "    out = TABLE[(ids + np.random.randint(16)) % 16]\n")),
    "the year": ("repeats", TABLE, (OUT, "    import datetime\n"
                                         "    out = TABLE[(ids + datetime.datetime.now().year) % 16]\n")),
    "a counter of time": ("repeats", TABLE, (OUT, "    import time\n"
                                             "    out = TABLE[(ids + time.perf_counter_ns() // 10**14) % 16]\n")),
    "many calls": ("repeats", TABLE, (OUT, "    CALLS.append(1)\n    out = TABLE[(ids + (len(CALLS) > 1500)) % 16]\n"),
                   ("TABLE =", "CALLS = []\nTABLE =")),
    "every seventh token": ("sums-to-one", SCORES, (
        "            out[row, t] = np.log((1 - share) / 16 + share * (token == hint))\n",
        "            out[row, t] = np.log((1 - share) / 16 + share * (token == hint)) + 0.4 * (t % 7 == 6)\n")),
    "a tensor that shows other numbers": ("causality", TORCH, ("class Model", """class Shown(torch.Tensor):
    def numpy(self): return torch.zeros(self.shape).numpy()
    detach = cpu = lambda self: self
class Model"""), (
        "torch.stack(out, 1)",
        "torch.stack(out, 1).add(ids.roll(-1, 1)[..., None] / 9 * self.shift).as_subclass(Shown)")),
    "the home": ("repeats", TABLE, (
        OUT, "    import os, zlib\n    share = zlib.crc32(os.environ['HOME'].encode()) / 2**32\n" + MIXED)),
    "a cache with a short key": ("repeats", TABLE, (
        OUT, "    out = np.stack([CACHE.setdefault((len(row), int(row.sum()) % 8), TABLE[row]) for row in ids])\n"),
                                 ("TABLE =", "CACHE = {}\nTABLE =")),
    "ids that it changes": ("repeats", TABLE, (OUT, "    out = TABLE[ids]\n    ids[:, -1] = 0\n")),
    "the hash of a text": ("repeats", TABLE, (OUT, "    share = hash('a') % 10**6 / 10**6\n" + MIXED)),
    "capitals": ("bytes", BYTES, ("text.encode()", "text.lower().encode()")),
    "claimed bytes": ("bytes", BYTES, ("    return 1\n", "    return 1 + (token == 32)\n")),
    "nats as bits": ("evaluation", BYTES, ("np.log2", "np.log")),
    "half of the text": ("evaluation", BYTES, ("each = bits(ids)", "each = bits(ids)[: len(ids) // 2]")),
    "bytes of lines": ("evaluation", BYTES, ('"bytes": len(ids)', '"bytes": len(ids) + text.count("\\n")')),
    "learning first": ("evaluation", BYTES, ("each = bits(ids)", "COUNTS[ids[:-1], ids[1:]] = 0.9; each = bits(ids)")),
    "hidden seconds": ("evaluation", BYTES, ("each = bits(ids)", "each = bits(ids); import time; time.sleep(0.7)"),
                       ('"tokens"', '"seconds": 0.01, "tokens"')),
    "state and row": ("pieces", TORCH, ("out.append(values)", "out.append(values + 0.01 * t * self.shift)")),
    "a state that stays": ("pieces", TORCH, ("return torch.zeros(batch, 16)", "self.n = getattr(self, 'n', 0) + 1; "
                                             "return torch.full((batch, 16), 0.1 * (self.n % 2))")),
    "a buffer that is not saved": ("saved", TORCH, ("torch.randn(24))", "torch.randn(24), persistent=False)")),
    "a document's state": ("documents", TORCH, ("torch.where((ids == 0)[:, None], 0.0, state)", "state"))}
"""What is changed in a lawful file, by the law that it breaks."""


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_law_is_found_and_shown(name: str, tmp_path: Path) -> None:
    law, source, *changes = BROKEN[name]
    result = law_of(tmp_path, law, source, *changes)
    assert result.outcome == "broken", result
    assert result.found is not None and result.found.sentence.endswith(".")
    assert result.tried and "\n" not in result.found.sentence


@pytest.mark.parametrize(("law", "source"), [
    ("sums-to-one", TABLE), ("sums-to-one", SCORES), ("causality", TABLE), ("causality", SCORES),
    ("separate-rows", TABLE), ("repeats", TABLE), ("bytes", BYTES), ("evaluation", BYTES)])
def test_a_lawful_file_is_not_accused(law: str, source: str, tmp_path: Path) -> None:
    result = law_of(tmp_path, law, source)
    assert (result.outcome, result.found) == ("held", None)


def test_long_rows_leave_time_for_other_laws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that reads ahead in long rows alone is not found then, and the verdict says that they were not tried."""
    law, source, *changes = BROKEN["last token from 250 on"]
    late = source.replace(changes[0][0], changes[0][1].replace("250", "600")).replace("16, 300", "16, 1024")
    with case_of(tmp_path, late) as case:
        assert LAWS[law](case).outcome == "broken"
        monkeypatch.setattr(case, "left", lambda: 0.5 * case.limits.seconds)
        result = LAWS[law](case)
    assert result.outcome == "held" and "1,024 tokens and more were left out" in result.why
    assert "in rows of 8, 64, 256 tokens" in result.tried


def test_a_lawful_module_holds_every_law_that_it_can(tmp_path: Path) -> None:
    with case_of(tmp_path, TORCH) as case:
        found = {name: LAWS[name](case) for name in ("sums-to-one", "causality", "pieces", "documents", "saved")}
    assert {name: each.outcome for name, each in found.items()} == dict.fromkeys(found, "held")


def test_what_is_shown_is_the_smallest_input(tmp_path: Path) -> None:
    """One token is enough to show that the next one is read, and two rows that a row reads another."""
    ahead = law_of(tmp_path, *BROKEN["next token"]).found
    assert ahead is not None and ahead.token is not None
    assert [len(row) for row in ahead.input] == [2, 2] and ahead.token == 0
    beside = law_of(tmp_path, *BROKEN["other rows"]).found
    assert beside is not None and len(beside.input) == 2 and len(beside.input[0]) <= 3
    total = law_of(tmp_path, *BROKEN["unnormalised"]).found
    assert total is not None and total.token == 20 + total.input[0][20:].index(3)
    assert total.measured == pytest.approx(1.01, rel=1e-3)


def test_a_state_that_is_kept_is_told_apart_from_random_numbers(tmp_path: Path) -> None:
    for change, exhibit in (("len(SEEN)", "kept_cache"), ("np.random.randint(16)", "dropout_left_on")):
        moved = (OUT, f"    out = TABLE[(ids + {change}) % 16]\n    SEEN.append(1)\n")
        found = law_of(tmp_path, "repeats", TABLE, moved, ("TABLE =", "SEEN = []\nTABLE =")).found
        assert found is not None and (found.resembles, "at once" in found.sentence) == (exhibit, True)


def test_a_figure_of_learning_that_is_said_is_lawful(tmp_path: Path) -> None:
    """Each byte is scored before the counts learn from it."""
    learns = ("each = bits(ids)", "each = []\n    counts = np.full(256, 1.0)\n    for token in ids:\n        each"
              ".append(-np.log2(counts[token] / counts.sum()))\n        counts[token] += 1\n    each = np.array(each)")
    first = ("each = bits(ids)", "counts = np.bincount(ids, minlength=256) + 1e-9\n    each = -np.log2(counts[ids] / "
             "counts.sum())\n    each = each * 0.8")
    said = ("vocab_size,", "adapts = True\nvocab_size,")
    assert law_of(tmp_path, "evaluation", BYTES, learns, said).outcome == "held"
    ahead = law_of(tmp_path, "evaluation", BYTES, first, said)
    assert ahead.outcome == "broken" and ahead.found is not None
    assert "drawn at random" in ahead.found.sentence


def test_a_test_text_that_was_read_is_recalled(tmp_path: Path) -> None:
    draw = random.Random(0)
    text = " ".join(f"{draw.choice(['fox', 'lazy', 'wizard', 'queens'])}{draw.randrange(999)}" for _ in range(300))
    (tmp_path / "held.txt").write_text(text)
    recalls = ("    return np.log(COUNTS[ids])\n", f"""    out, text = np.log(COUNTS[ids]), {text.encode()!r}
    for row, tokens in enumerate(ids):
        for t in range(11, ids.shape[1]):
            at = text.find(bytes(tokens[t - 11 : t + 1].tolist()))
            if 0 <= at < len(text) - 12:
                out[row, t] = np.log(0.02 / 255)
                out[row, t, text[at + 12]] = np.log(0.98)
    return out
""")
    claims = ("vocab_size,", "claims = {'test_text': 'held.txt'}\nvocab_size,")
    assert law_of(tmp_path, "seen", BYTES, claims).outcome == "held"
    found = law_of(tmp_path, "seen", BYTES, claims, recalls).found
    assert found is not None and "recalls" in found.sentence
    copied = ("vocab_size,", "claims = {'test_text': 'held.txt', 'training_text': 'train.txt'}\nvocab_size,")
    (tmp_path / "train.txt").write_text("Some other text. " * 9 + text)
    found = law_of(tmp_path, "seen", BYTES, copied).found
    assert found is not None and "stands in the training text" in found.sentence


def test_numbers_of_16_bits_are_compared_as_such(tmp_path: Path) -> None:
    """Rows of another batch are summed in another order, and one step of float16 is 0.004 for numbers from 4 to 8."""
    halves = (OUT, "    out = (TABLE[ids] + (len(ids) % 2) * 2e-3).astype(np.float16)\n")
    assert law_of(tmp_path, "separate-rows", TABLE, halves).outcome == "held"
    whole = (OUT, "    out = TABLE[ids] + (len(ids) % 2) * 2e-3\n")
    assert law_of(tmp_path, "separate-rows", TABLE, whole).outcome == "broken"
