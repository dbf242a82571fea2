"""Words and definitions, read from files in WordNet's format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers

from refusion.tasks.glosses import EOS, MASK, PAD, Meaning, build_tokenizer, items, main, read_meanings

LICENCE = "  1 This software and database is being provided under a licence  \n"
NOUNS = (
    LICENCE
    + "00000100 06 n 01 tower 0 000 | a structure taller than its diameter  \n"
    + "00000200 06 n 04 beacon 0 lighthouse 0 beacon_light 0 pharos 0 002 @ 00000100 n 0000 + 02160451 v 0101 "
    + '| a tower with a light; "the beacon was lit"; "it shone"  \n'
    + "00000300 06 n 01 Tower_of_Pharos 0 001 @i 00000200 n 0000 | a great lighthouse at Alexandria  \n"
    + f"00000400 06 n 01 bore 0 000 | {'long ' * 60}  \n"
)
VERBS = LICENCE + "00000500 38 v 01 walk 0 000 01 + 02 00 | use one's feet to advance  \n"


@pytest.fixture
def wordnet(tmp_path: Path) -> Path:
    (tmp_path / "data.noun").write_text(NOUNS, encoding="utf-8")
    (tmp_path / "data.verb").write_text(VERBS, encoding="utf-8")
    return tmp_path


def test_meanings(wordnet: Path) -> None:
    assert list(read_meanings(wordnet)) == [
        Meaning(("tower",), "noun", None, "a structure taller than its diameter"),
        Meaning(("beacon", "lighthouse", "beacon light", "pharos"), "noun", "tower", "a tower with a light"),
        Meaning(("Tower of Pharos",), "noun", "beacon", "a great lighthouse at Alexandria"),
        Meaning(("walk",), "verb", None, "use one's feet to advance"),
    ]


def test_items(wordnet: Path) -> None:
    meanings = list(read_meanings(wordnet))
    train, test = items(meanings, "train"), items(meanings, "test")
    assert len(train) + len(test) == 6  # of four words for one meaning, three
    assert {"query": "lighthouse, a kind of tower: ", "response": "a tower with a light"} in train + test
    assert {"query": "walk: ", "response": "use one's feet to advance"} in train + test
    assert items(meanings, "train", seed=0) == train != items(meanings, "train", seed=1)


def test_a_definition_is_in_one_split_and_few_are_held_out() -> None:
    meanings = [Meaning((f"word {i}", f"other {i}"), "noun", None, f"meaning {i}") for i in range(2000)]
    train, test = ({item["response"] for item in items(meanings, split)} for split in ("train", "test"))
    assert not train & test
    assert len(train | test) == 2000
    assert 20 <= len(test) <= 60  # one in 50


def test_the_tokenizer_takes_any_text() -> None:
    core = build_tokenizer(["a tower with a light"] * 3)
    assert [core.token_to_id(token) for token in (MASK, EOS, PAD)] == [0, 1, 2]
    for text in ("a tower", "Žižek, 塔"):
        assert core.decode(core.encode(text).ids) == text


def test_command(wordnet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, core = wordnet / "train.jsonl", wordnet / "tokenizer.json"
    assert main(["--wordnet", str(wordnet), "--out", str(out), "--tokenizer", str(core)]) == 0
    assert all(set(json.loads(line)) == {"query", "response"} for line in out.read_text().splitlines())
    assert tokenizers.Tokenizer.from_file(str(core)).get_vocab_size() > 256
    with pytest.raises(SystemExit):
        main(["--wordnet", str(wordnet / "nowhere"), "--out", str(out)])
    assert "wordnet-base" in capsys.readouterr().err
