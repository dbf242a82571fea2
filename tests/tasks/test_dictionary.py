"""The commonest words and their meanings, read from files in WordNet's format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers

from refusion.tasks.bpe import EOS, MASK, PAD, train_bpe
from refusion.tasks.dictionary import Meaning, items, main, read_meanings

LICENCE = "  1 This software and database is being provided under a licence  \n"
NOUNS = (
    LICENCE
    + "00000200 06 n 04 beacon 0 lighthouse 0 beacon_light 0 Pharos 0 002 @ 00000100 n 0000 + 02160451 v 0101 "
    + '| a tower with a light; "ships saw the lights"; "The beacon was lit"  \n'
    + "00000300 06 n 01 walk b 000 | a path set aside for walking; usually paved  \n"
    + "00000400 06 n 01 insult 0 000 | an obscene term for a neighbour  \n"
    + f"00000500 06 n 01 bore 0 000 | {'long ' * 60}  \n"
)
VERBS = LICENCE + "00000500 38 v 01 walk 0 000 01 + 02 00 | use one's feet to advance; \"Walk, don't run!\"  \n"
COUNTS = """walk%2:38:00:: 1 212
bore%1:06:00:: 1 50
insult%1:06:00:: 1 40
beacon_light%1:06:00:: 1 30
walk%1:06:11:: 2 20
beacon%1:06:00:: 1 10
lighthouse%1:06:00:: 1 10
"""


@pytest.fixture
def wordnet(tmp_path: Path) -> Path:
    (tmp_path / "data.noun").write_text(NOUNS, encoding="utf-8")
    (tmp_path / "data.verb").write_text(VERBS, encoding="utf-8")
    (tmp_path / "cntlist.rev").write_text(COUNTS, encoding="utf-8")
    return tmp_path


def test_meanings_are_those_of_single_words_that_were_met(wordnet: Path) -> None:
    tower = ("a tower with a light", ("ships saw the lights", "The beacon was lit"))
    found = list(read_meanings(wordnet))
    assert [m for m in found if m.word != "bore"] == [
        Meaning("beacon", 10, *tower),
        Meaning("lighthouse", 10, *tower),
        Meaning("walk", 20, "a path set aside for walking; usually paved", ()),
        Meaning("walk", 212, "use one's feet to advance", ("Walk, don't run!",)),
    ]


def test_an_entry_has_the_first_example_with_the_word(wordnet: Path) -> None:
    entries = {item["query"]: item["response"] for item in items(read_meanings(wordnet), 10)}
    assert entries == {
        "walk": "use one's feet to advance; \"Walk, don't run!\"",  # the commoner of two meanings
        "beacon": 'a tower with a light; "The beacon was lit"',
        "lighthouse": "a tower with a light",
    }
    assert [item["query"] for item in items(read_meanings(wordnet), 1)] == ["walk"]


def test_the_tokenizer_takes_any_text() -> None:
    core = train_bpe(["a tower with a light"] * 3, 300)
    assert [core.token_to_id(token) for token in (MASK, EOS, PAD)] == [0, 1, 2]
    for text in ("a tower", "Žižek, 塔"):
        assert core.decode(core.encode(text).ids) == text


def test_command(wordnet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, core = wordnet / "train.jsonl", wordnet / "tokenizer.json"
    assert main(["--wordnet", str(wordnet), "--out", str(out), "--tokenizer", str(core), "--words", "2"]) == 0
    assert [json.loads(line)["query"] for line in out.read_text().splitlines()] == ["walk", "beacon"]
    assert tokenizers.Tokenizer.from_file(str(core)).get_vocab_size() > 256
    with pytest.raises(SystemExit):
        main(["--wordnet", str(wordnet / "nowhere"), "--out", str(out)])
    assert "wordnet-base" in capsys.readouterr().err
