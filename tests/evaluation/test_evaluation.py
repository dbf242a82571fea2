"""Scoring a checkpoint: items, checkers, the two commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import refusion
from golden import CHECKPOINT
from refusion.cli import main
from refusion.evaluation import Answered, Item, ItemError, compare, decode_items, make_checker, read_items, summarise
from refusion.evaluation.compare import PROBLEMS, settings
from refusion.evaluation.report import plot, table
from refusion.sandbox import write_tests
from refusion.tasks.code import write_tokenizer
from refusion.tokenizer import Tokenizer

TESTS = write_tests([{"function": "f", "args": [[2, 1]], "expect": [1, 2]}])
RIGHT, WRONG = "def f(x):\n    return sorted(x)\n", "def f(x):\n    return x\n"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(CHECKPOINT)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small models with random weights in the places of the bundled code models."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for variant in ("refusion", "ar", "mdm"):
        directory = folder / f"code-{variant}"
        shape = refusion.ModelConfig(
            vocab_size=1104,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            mask_token_id=0,
            eos_token_ids=(1,),
            tie_word_embeddings=True,
        )
        refusion.save(refusion.Qwen3(shape).initialise(), directory)
        write_tokenizer(directory / "tokenizer.json")
    item = {"query": "Sort.\n", "response": RIGHT, "tests": TESTS}
    (folder / "code-refusion" / PROBLEMS).write_text(json.dumps(item) + "\n" + json.dumps(item) + "\n")
    (folder / "code-mdm" / "training.json").write_text(
        json.dumps(
            {"objective": "mdm", "steps": 7, "tokens": 1_500_000}
            | {"started_from": {"objective": "ar", "steps": 5, "tokens": 1_200_000}}
        )
    )
    (folder / "code-refusion" / "generation_config.json").write_text('{"refusion": {"slot_threshold": 0.8}}')
    return folder


def write(path: Path, *items: object) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def test_items_are_read(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", {"query": "q", "response": "r", "extra": 1}, {"query": "p", "tests": TESTS})
    first, second = read_items(file)
    assert (first.query, first.response, first.tests, first.fields["extra"], first.line) == ("q", "r", None, 1, 1)
    assert second.tests == [{"function": "f", "args": [[2, 1]], "expect": [1, 2]}]
    assert len(read_items(file, 1)) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no items"),
        ("{\n", "line 1"),
        ("[]\n", "line 1: expected an object"),
        ('{"query": 1}\n', "line 1: expected an object with the text 'query'"),
        ('{"query": "a"}\n{"query": "a", "response": 2}\n', "line 2: 'response' must be a text"),
        ('{"query": "a", "tests": [{"function": "f"}]}\n', "line 1: 'tests' are not calls"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text(text)
    with pytest.raises(ItemError, match=message) as error:
        read_items(file)
    assert str(file) in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ItemError, match="No such file"):
        read_items(tmp_path / "none.jsonl")


def test_exact(tokenizer: Tokenizer) -> None:
    with make_checker("exact", tokenizer) as right:
        assert right(Item("q", "abc"), "abc")
        assert not right(Item("q", "abc"), "abcd")
        with pytest.raises(ItemError, match="line 7: this checker needs 'response'"):
            right(Item("q", line=7), "abc")


def test_code_is_run(tokenizer: Tokenizer) -> None:
    item = Item.from_fields({"query": "q", "tests": TESTS})
    with make_checker("code", tokenizer) as right:
        assert right(item, RIGHT)
        assert not right(item, WRONG)
        assert not right(item, "def f(x):\n    while True: pass\n")


def test_own_function(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mychecks.py").write_text("def ends(item, text):\n    return text.endswith(item['end'])\n")
    monkeypatch.chdir(tmp_path)
    with make_checker("mychecks:ends", tokenizer) as right:
        assert right(Item.from_fields({"query": "q", "end": "!"}), "yes!")
        assert not right(Item.from_fields({"query": "q", "end": "!"}), "no")


@pytest.mark.parametrize("name", ["fuzzy", "no_such_module:f", "json:no_such_function", "json:__name__"])
def test_wrong_checkers_are_named(name: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="checker"), make_checker(name, tokenizer):
        pass


def test_summary() -> None:
    answers = [Answered("a", 10, 2, 0.5), Answered("b", 20, 4, 1.0)]
    summary = summarise(answers, [True, False])
    assert (summary.items, summary.accuracy, summary.tokens) == (2, 0.5, 30)
    assert summary.error == pytest.approx((0.25 / 2) ** 0.5)
    assert summary.tokens_per_forward == 5
    assert summary.tokens_per_second == pytest.approx(20)


def test_tokens_of_the_text_count(model: refusion.Qwen3, tokenizer: Tokenizer) -> None:
    """EOS and other special tokens do not; a batch gives the same answers."""
    items = [Item("def a(self):"), Item("import os\n")]
    config = refusion.DecodeConfig(max_new_tokens=24)
    alone = decode_items(model, tokenizer, items, config)
    together = decode_items(model, tokenizer, items, config, batch_size=2)
    assert [a.text for a in alone] == [a.text for a in together]
    for item, answer in zip(items, alone, strict=True):
        result = refusion.generate(model, tokenizer.prompt(item.query), config)
        special = {i for i, t in tokenizer.core.get_added_tokens_decoder().items() if t.special}
        assert special
        assert answer.tokens == sum(t not in special for t in result.tokens)


def test_eval_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(tmp_path / "items.jsonl", {"query": "def a(self):", "response": "x"}, {"query": "b", "response": "y"})
    out = tmp_path / "answers.jsonl"
    arguments = ["eval", "--data", str(data), "--model", str(CHECKPOINT), "--max-new-tokens", "8"]
    assert main([*arguments, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert found["items"] == 2
    assert found["accuracy"] == sum(a["right"] for a in answers) / 2
    assert found["tokens"] == sum(a["tokens"] for a in answers)
    assert main([*arguments, "--limit", "1"]) == 0
    assert "of 1 items right (exact)" in capsys.readouterr().out
    assert main([*arguments, "--checker", "code"]) == 1
    assert "line 1: this checker needs 'tests'" in capsys.readouterr().err
    assert main([*arguments, "--limit", "0"]) == 1
    assert "--limit must be at least 1" in capsys.readouterr().err


def test_compare(checkpoints: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    comparison = compare(checkpoints, 2, progress=lambda done, all_of_them: seen.append((done, all_of_them)))
    assert seen == [(1, 2), (2, 2)]
    rows = comparison.rows
    assert [row.variant for row in rows][:2] == ["ar", "mdm"]
    assert len(rows) == len(settings({"slot_threshold": 0.8}))
    assert "ReFusion 0.8/0.9 (recommended)" in [row.name for row in rows]
    assert [row.summary.items for row in rows[:4]] == [2, 1, 2, 2]  # a token a forward: one problem in five
    assert comparison.masked is rows[1]
    assert comparison.speedup(rows[0], rows[0]) == 1
    text = table(comparison)
    assert all(row.name in text for row in rows)
    assert "masked diffusion: trained for 7 steps, 1.5 million tokens, after 5 steps, 1.2 million tokens auto" in text
    found = json.loads(comparison.to_json())["rows"]
    assert found[0]["over_ar"] == 1
    assert found[0]["summary"]["items"] == 2
    if plot(comparison, tmp_path / "plot.png"):
        assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_compare_command(checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures, picture = tmp_path / "f.json", tmp_path / "p.png"
    options = ["--json", str(figures), "--plot", str(picture), "--checkpoints", str(checkpoints)]
    assert main(["compare", "--problems", "1", *options]) == 0
    printed = capsys.readouterr()
    assert "| AR, cached |" in printed.out
    assert json.loads(figures.read_text())["rows"]
    assert f"wrote {figures}" in printed.err
    assert main(["compare", "--checkpoints", str(tmp_path)]) == 1
    assert "no such checkpoint directory" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--problems", "--threads"])
def test_compare_command_counts_from_one(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["compare", option, "0"])
    assert stopped.value.code == 2
    assert f"{option}: must be at least 1, got 0" in capsys.readouterr().err
