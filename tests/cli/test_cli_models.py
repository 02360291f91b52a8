"""Commands that use a trained model."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import weft as library
from fresh import Fresh
from fresh import weft as command


def test_train_prints_progress_and_where_the_checkpoint_is(weft: Any, workplace: Path, tmp_path: Path) -> None:
    told = weft("train", workplace / "tiny.yaml", "training.steps=1", "--out", tmp_path / "run", "--seed", "3")
    assert told.code == 0
    assert "1 step of 16 tokens" in told.out
    assert f"last checkpoint {tmp_path / 'run'}/checkpoints/00000001" in told.out


def test_train_options_stand_for_keys_of_the_configuration(weft: Any, workplace: Path, tmp_path: Path) -> None:
    text = tmp_path / "other.txt"
    text.write_text("a different text " * 100)
    told = weft("train", workplace / "tiny.yaml", "training.steps=1", "--out", tmp_path / "run", "--data", text,
                "--seed", "5", "--dtype", "float64", "--json")
    found = told.json()
    assert found["steps"] == 1 and found["validation"]["bits_per_byte"] > 0
    loaded = library.load(tmp_path / "run")
    assert loaded.run is not None
    assert (loaded.run["data"]["path"], loaded.run["seed"], loaded.run["training"]["dtype"]) == (
        str(text), 5, "float64")


def test_ctrl_c_saves_and_resume_goes_on_from_there(workplace: Path, tmp_path: Path) -> None:
    arguments = ["train", str(workplace / "tiny.yaml"), "training.steps=500", "report.log_every=1",
                 "report.eval_every=500", "--out", str(tmp_path / "run")]
    process = Fresh(command, *arguments, folder=tmp_path)
    process.wait_for("step 3/500")
    process.send(signal.SIGINT)
    ended = process.end()
    assert ended.returncode == 130, ended.stderr
    assert ended.stderr == "interrupted\n"
    saved, = (tmp_path / "run/checkpoints").iterdir()
    step = int(saved.name)
    assert 3 <= step < 500 and f"saved {saved}" in ended.stdout
    # A process of its own again: this one may have loaded plugins, which would count as changed code.
    resumed = Fresh(command, *arguments, "--resume", folder=tmp_path).end()
    assert resumed.returncode == 0, resumed.stderr
    assert f"from step {step:,}" in resumed.stdout and "after 500 steps" in resumed.stdout


def test_resume_of_a_finished_run_leaves_its_weights(weft: Any, workplace: Path, tmp_path: Path) -> None:
    shutil.copytree(workplace / "run", tmp_path / "run")
    told = weft("train", workplace / "tiny.yaml", "--out", tmp_path / "run", "--resume")
    assert told.code == 0, told
    assert "from step 3" in told.out
    before, after = (library.load(folder / "run").model.state_dict() for folder in (workplace, tmp_path))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_eval_scores_every_token_of_what_was_held_out(weft: Any, run: Path) -> None:
    found = weft("eval", run, "--lengths", "4,8", "--json").json()
    assert [each["protocol"]["window"] for each in found] == [4, 8]
    assert found[0]["tokens"] == found[1]["tokens"]
    # Three steps from random weights: still close to uniform over 257 ids.
    assert all(each["perplexity"] == pytest.approx(257, rel=0.1) for each in found)
    told = weft("eval", run, "--lengths", "4,8")
    assert "context 4: perplexity" in told.out and "context 8: perplexity" in told.out
    assert "protocol: corpus perplexity" in told.out


def test_the_command_prints_and_writes_a_row_for_each_document(weft: Any, run: Path) -> None:
    told = weft("eval", run, "--by-document")
    assert told.code == 0, told.err
    found = weft("eval", run, "--by-document", "--json").json()[0]
    assert len(found["by_document"]) == found["documents"]
    assert sum(each["nats"] for each in found["by_document"]) == pytest.approx(found["nats"], rel=1e-12)
    rows = re.findall(r"^ *(\d+) +([\d,]+) +([\d,]+) +([\d,.]+) +[\d.]+ +[\d,.]+ +[\d.]+ *$", told.out, re.M)
    assert [(int(index), int(tokens.replace(",", ""))) for index, tokens, _, _ in rows] == [
        (each["index"], each["tokens"]) for each in found["by_document"]]
    assert 1e6 < found["word_perplexity"] < math.inf, "an untrained model of bytes"
    assert f"perplexity {found['word_perplexity']:.4e} per word ({found['words']:,} words)" in told.out
    assert f"of the perplexity per token {found['mean_document_perplexity']:,.4f}\n" in told.out
    assert f"{found['bits_per_token']:.4f} bits/token" in told.out
    assert "by_document" not in weft("eval", run, "--json").json()[0]


def test_eval_divides_a_text_into_documents_as_it_is_told(weft: Any, refused: Any, run: Path, tmp_path: Path
                                                          ) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("abcd\nef\n\ngh\n")
    counts = {name: weft("eval", run, "--data", text, "--divide-by", name, "--json").json()[0]["documents"]
              for name in ("file", "line", "paragraph")}
    assert counts == {"file": 1, "line": 3, "paragraph": 2}
    assert weft("eval", run, "--data", text, "--json").json()[0]["documents"] == 1, "as in the model's run"
    assert "documents: no text is divided here" in refused("eval", run, "--divide-by", "line")
    assert "--divide-by: 'lines' is no way to divide a text into documents. Did you mean 'line'?" in refused(
        "eval", run, "--data", text, "--divide-by", "lines")


def test_eval_reads_a_text_of_the_users(weft: Any, run: Path, tmp_path: Path) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("abcd" * 8)
    found = weft("eval", run, "--data", text, "--documents", "--json").json()
    assert found[0]["tokens"] == 33 and found[0]["bytes"] == 32  # and the end of the document


def test_eval_reads_records_by_the_fields_of_the_run(weft: Any, refused: Any, workplace: Path, tmp_path: Path) -> None:
    for name, count in (("train", 60), ("held", 9)):
        records = [{"ask": f"{i} and {i % 5}", "body": f"makes {i + i % 5}"} for i in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records))
    run = tmp_path / "run"
    told = weft("train", workplace / "tiny.yaml", "training.steps=1", "--data", tmp_path / "train.jsonl", "--out", run,
                "data.text_field=body", "data.prompt_field=ask", f"data.validation_path={tmp_path / 'held.jsonl'}")
    assert told.code == 0, told
    own, given = (weft("eval", run, *more, "--json").json()[0] for more in ([], ["--data", tmp_path / "held.jsonl"]))
    assert given["bytes"] == sum(len(f"makes {i + i % 5}") for i in range(9)), "the answers alone count"
    assert [given[name] for name in ("loss", "tokens", "bytes")] == [own[name] for name in ("loss", "tokens", "bytes")]
    (tmp_path / "plain.txt").write_text("makes 12")
    assert weft("eval", run, "--data", tmp_path / "plain.txt", "--json").json()[0]["bytes"] == 8
    (tmp_path / "other.jsonl").write_text('{"text": "makes 12"}\n')
    assert "no field 'ask'; the fields are: 'text'" in refused("eval", run, "--data", tmp_path / "other.jsonl")


def test_eval_takes_the_validation_or_the_test_text_of_the_run(weft: Any, workplace: Path, tmp_path: Path) -> None:
    test = tmp_path / "test.txt"
    test.write_text("abc " * 10)
    weft("train", workplace / "tiny.yaml", "training.steps=1", f"data.test_path={test}", "--out", tmp_path / "run")
    alone, named, last = (weft("eval", tmp_path / "run", *part, "--json").json()[0]
                          for part in ([], ["--part", "validation"], ["--part", "test"]))
    assert alone == named and last["bytes"] == 40 and alone["bytes"] != 40
    assert last["loss"] == weft("eval", tmp_path / "run", "--data", test, "--json").json()[0]["loss"]


def test_generate_continues_ragged_rows_in_the_shape_promised(weft: Any, workplace: Path, run: Path) -> None:
    found = weft("generate", run, "--rows", workplace / "rows.json", "--greedy", "--max-new-tokens", "3",
                 "--ignore-end", "--json").json()
    assert set(found) == {"rows"}
    assert [set(row) for row in found["rows"]] == [{"tokens", "text"}] * 3
    assert [len(row["tokens"]) for row in found["rows"]] == [3, 3, 3]
    alone = library.generate(run, [[4]], max_new_tokens=3, ends=library.Ends(at_end=False)).rows[0]
    assert found["rows"][1]["tokens"] == list(alone.tokens)
    assert found["rows"][1]["text"] == alone.text


def test_generate_searches_with_beams(weft: Any, refused: Any, workplace: Path, run: Path) -> None:
    asked = ("generate", run, "--prompt", "line 1", "--max-new-tokens", "4", "--beams", "3")
    found = library.beam_search(run, ["line 1"], max_new_tokens=4, beams=3).rows[0]
    told = weft(*asked)
    assert told.out == f"line 1{found[0].text}\n"
    rows = weft(*asked, "--length-penalty", "0", "--json").json()["rows"]
    summed = library.beam_search(run, ["line 1"], max_new_tokens=4, beams=3, length_penalty=0.0)
    assert rows == summed.to_json()["rows"] and len(rows[0]["hypotheses"]) == 3
    assert rows[0]["hypotheses"][0]["score"] == rows[0]["hypotheses"][0]["log_prob"]
    told = weft("generate", run, "--rows", workplace / "rows.json", "--max-new-tokens", "2", "--beams", "2")
    assert told.out.count("---\n") == len(json.loads((workplace / "rows.json").read_text()))


@pytest.mark.parametrize("options", [["--temperature", "0.5"], ["--greedy"], ["--stop", "x"], ["--top-k", "2"],
                                     ["--repetition-penalty", "1.5"], ["--compile"]])
def test_a_search_with_options_of_sampling_is_refused(refused: Any, run: Path, options: list[str]) -> None:
    message = refused("generate", run, "--prompt", "a", "--beams", "2", *options)
    assert "--beams: a search takes the most probable tokens. Give --beams, without options of sampling" in message


def test_a_length_penalty_without_a_search_is_refused(refused: Any, run: Path) -> None:
    assert "--length-penalty: a length penalty without --beams. Give --beams" in refused(
        "generate", run, "--prompt", "a", "--length-penalty", "1")
    with pytest.raises(library.api.UserError, match=r"ends\.strings: beam search stops at tokens, not at text\. Leave"):
        library.beam_search(run, ["a"], ends=library.Ends("x"))


def test_generate_streams_a_prompt_as_one_text(weft: Any, run: Path) -> None:
    told = weft("generate", run, "--prompt", "line 1", "--max-new-tokens", "5", "--temperature", "0.5", "--seed", "4")
    assert told.code == 0
    sampling = library.Sampling(temperature=0.5)
    row = library.generate(run, ["line 1"], max_new_tokens=5, sampling=sampling, seed=4).rows[0]
    assert told.out == f"line 1{row.text}\n"


def test_generate_prints_several_prompts_one_after_another(weft: Any, run: Path) -> None:
    told = weft("generate", run, "--prompt", "a", "--prompt", "bc", "--max-new-tokens", "1", "--greedy")
    assert told.out.startswith("a") and "\n---\nbc" in told.out and told.out.endswith("\n---\n")


def test_score_writes_the_logits_of_every_row(weft: Any, workplace: Path, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "logits.safetensors"
    found = weft("score", run, "--rows", workplace / "rows.json", "--logits", file, "--json").json()
    logits = load_file(file)
    assert set(logits) == {"row_0", "row_1", "row_2"}
    assert [tuple(logits[f"row_{i}"].shape) for i in range(3)] == [(3, 257), (1, 257), (2, 257)]
    assert all(each.dtype == torch.float32 for each in logits.values())
    by_hand = logits["row_0"].double().log_softmax(-1)[[0, 1], [2, 3]]
    assert found["rows"][0]["log_probs"][1:] == pytest.approx(by_hand.tolist(), abs=1e-5)
    whole = library.load(run).model(torch.tensor([[1, 2, 3]])).y[0]
    # One row alone against a padded batch, float32 logits near zero.
    assert torch.allclose(logits["row_0"], whole.detach(), atol=1e-5)


def test_score_of_a_text_counts_its_first_token(weft: Any, run: Path) -> None:
    told = weft("score", run, "--text", "ab")
    row = library.score(run, ["ab"]).rows[0]
    assert row.scored == 2 and math.isclose(row.total, sum(value or 0.0 for value in row.log_probs), rel_tol=1e-6)
    assert f"row 0: 2 tokens scored, {row.total:.4f} nats" in told.out
    assert f"'a' {row.log_probs[0]:.4g}" in told.out
    assert "row 0: 1 token scored, " in weft("score", run, "--text", "a").out


def test_dtype_is_the_dtype_of_the_computation(weft: Any, workplace: Path, run: Path) -> None:
    rows = ("--rows", str(workplace / "rows.json"), "--json")
    single, double = (weft("score", run, *rows, "--dtype", each).json() for each in ("float32", "float64"))
    first, second = single["rows"][0]["total"], double["rows"][0]["total"]
    assert first != second and first == pytest.approx(second, abs=1e-4)


@pytest.mark.usefixtures("_near")
def test_check_of_a_checkpoint_runs_the_twin_and_the_model_itself(weft: Any, run: Path) -> None:
    told = weft("check", run)
    assert told.code == 0, told
    assert "the twin" in told.out and "the model itself, in float32" in told.out and "every law holds" in told.out
    assert all(f"\n{law} " in told.out for law in ("split", "causality", "ragged gradients", "readout"))
    assert max(map(len, told.out.splitlines())) <= 80
