"""The checkpoints that come with the package: whole, described, and able to do what their cards say."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import refusion
from refusion.checkpoint import read_recommended, read_training
from refusion.cli import main
from refusion.decoding.config import ARConfig, DecodeConfig, MDMConfig
from refusion.evaluation.answers import decode_items
from refusion.evaluation.checkers import make_checker
from refusion.evaluation.items import read_items
from refusion.tokenizer import Tokenizer

BUNDLED = Path(refusion.__file__).parent / "checkpoints"
NAMES = sorted(path.parent.name for path in BUNDLED.glob("*/config.json"))


@pytest.mark.parametrize("name", NAMES)
def test_loads_and_is_described(name: str) -> None:
    model, tokenizer = refusion.load(BUNDLED / name), Tokenizer.load(BUNDLED / name)
    assert tokenizer.vocab_size <= model.config.vocab_size
    assert model.config.mask_token_id not in tokenizer.encode("Write add(x, y): return their sum.\n")
    DecodeConfig(**read_recommended(BUNDLED / name))
    card = (BUNDLED / name / "README.md").read_text(encoding="utf-8")
    assert card.startswith(f"# {name}\n")
    for row in ("architecture", "objective", "data", "licence", "limits"):
        assert f"| {row} |" in card
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    assert f"{millions:.2f} million parameters" in card


@pytest.mark.parametrize("objective", ["refusion", "ar", "mdm"])
def test_the_card_tells_the_training(objective: str) -> None:
    facts = read_training(BUNDLED / f"code-{objective}")
    assert facts["objective"] == objective
    assert f"{facts['steps']:,} steps" in (BUNDLED / f"code-{objective}" / "README.md").read_text(encoding="utf-8")


def test_the_code_models_share_tokens_and_template() -> None:
    for file in ("tokenizer.json", "chat_template.jinja"):
        assert (
            len({(BUNDLED / f"code-{objective}" / file).read_bytes() for objective in ("refusion", "ar", "mdm")}) == 1
        )
    assert Tokenizer.load(BUNDLED / "code-refusion").chat([{"role": "user", "content": " Sort it. "}]) == "Sort it.\n"


@pytest.mark.parametrize("objective", ["refusion", "ar", "mdm"])
def test_solves_held_out_problems(objective: str) -> None:
    directory = BUNDLED / f"code-{objective}"
    model, tokenizer = refusion.load(directory), Tokenizer.load(directory)
    items = read_items(BUNDLED / "code-refusion" / "held-out.jsonl", 20)
    settings = read_recommended(directory)
    config = {
        "refusion": DecodeConfig(**settings),
        "ar": ARConfig(max_new_tokens=128),
        "mdm": MDMConfig(max_new_tokens=128, threshold=0.97),
    }[objective]
    answers = decode_items(model, tokenizer, items, config)
    with make_checker("code", tokenizer) as right:
        solved = sum(right(item, answer.text) for item, answer in zip(items, answers, strict=True))
    assert solved >= (15 if objective == "mdm" else 17)
    forwards, tokens = sum(a.forwards for a in answers), sum(a.tokens for a in answers)
    assert (tokens > 8 * forwards) == (objective != "ar")


def test_the_dictionary_knows_its_words() -> None:
    directory = BUNDLED / "dictionary"
    model, tokenizer = refusion.load(directory), Tokenizer.load(directory)
    items = read_items(directory / "words.jsonl")[::100]
    answers = decode_items(model, tokenizer, items, DecodeConfig(**read_recommended(directory)))
    with make_checker("exact", tokenizer) as right:
        known = sum(right(item, answer.text) for item, answer in zip(items, answers, strict=True))
    assert len(items) == 50
    assert known >= 40
    assert sum(a.tokens for a in answers) > 2 * sum(a.forwards for a in answers)


README = Path(__file__).parents[2] / "README.md"
CALLS = {  # of the last function of an example: argument and result
    "clean": ("ABCDEFGB", "aacdefgah"),
    "convert": ({"a": 2, "b": 3, "c": 4}, 12),
    "fold": ([1, 2, 3], 77),
}


def _answer(capsys: pytest.CaptureFixture[str], command: list[str]) -> str:
    assert main([*command[1:], "--json"]) == 0
    text: str = json.loads(capsys.readouterr().out)["text"]
    return text


def test_the_code_examples_of_the_readme_are_answered_rightly(capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"refusion generate --model code-refusion .*$", README.read_text(), re.MULTILINE)
    assert len(examples) >= len(CALLS)
    for example in examples:
        scope: dict[str, Any] = {}
        exec(_answer(capsys, shlex.split(example)), scope)
        name = list(scope)[-1]
        argument, result = CALLS[name]
        assert scope[name](argument) == result


def test_the_words_of_the_readme_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"refusion generate [a-z]+$", README.read_text(), re.MULTILINE)
    assert len(examples) >= 2
    entries = {item.query: item.response for item in read_items(BUNDLED / "dictionary" / "words.jsonl")}
    for example in examples:
        assert _answer(capsys, example.split()).strip() == entries[example.split()[-1]]
