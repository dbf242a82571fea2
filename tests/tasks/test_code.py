"""The code task: seeded, split by program, checkable, and laid out so that lines start at slots."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
import tokenizers

from refusion.sandbox import Sandbox, read_tests
from refusion.tasks.bpe import EOS, MASK
from refusion.tasks.checks import make_tests, mutants
from refusion.tasks.code import items, main, write_tokenizer
from refusion.tasks.generator import Function, Generator, Problem
from refusion.tasks.layout import FILL, PIECE, SLOT, fill_slots


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> tokenizers.Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    write_tokenizer(path)
    return tokenizers.Tokenizer.from_file(str(path))


def problem(name: str, variable: str, *lines: str) -> Problem:
    return Problem((Function(name, "list", variable, "Do it.", lines, False),))


def test_the_seed_alone_decides() -> None:
    first, again, other = (list(islice(Generator(s, "train"), 50)) for s in (3, 3, 4))
    assert first == again
    assert first != other


def test_names_do_not_move_a_program_to_the_other_split() -> None:
    lines = ("$v = $v[::-1]", "total = 0", "for x in $v:", "    total += x", "return total")
    one = problem("pick", "xs", *lines)
    two = problem("fold", "nums", *(line.replace("total", "acc") for line in lines))
    assert one.code != two.code
    assert one.program == two.program
    assert one.split == two.split
    assert problem("pick", "xs", *lines[1:]).program != one.program


def test_share_of_loops() -> None:
    def share(loops: float) -> float:
        functions = [
            f for p in islice(Generator(0, "train", loops=loops), 300) for f in p.functions if f.kind == "list"
        ]
        return sum("for x in $v:" in f.lines for f in functions) / len(functions)

    assert share(0) == 0
    assert share(1) == 1
    assert 0.5 < share(0.6) < 0.7
    with pytest.raises(ValueError, match="loops must lie between 0 and 1, got 2"):
        Generator(0, "train", loops=2)


def test_no_program_is_in_both_splits() -> None:
    train = {p.program for p in islice(Generator(0, "train"), 2000)}
    test = {p.program for p in islice(Generator(0, "test"), 300)}
    assert not train & test
    assert len(train) > 1800  # many programs, not many wordings of few


def test_answers_pass_their_tests_and_mutants_do_not() -> None:
    held_out = list(islice(items("test", 5, layout="plain"), 20))
    killed = total = 0
    with Sandbox() as sandbox:
        for item in held_out:
            tests = read_tests(json.loads(json.dumps(item["tests"])))
            assert sandbox.check(item["response"], tests).passed
            for mutant in mutants(item["response"]):
                total += 1
                killed += not sandbox.check(mutant, tests).passed
    assert total > 100
    assert killed >= 0.97 * total


def test_a_step_without_effect_is_left_out() -> None:
    assert (
        make_tests(problem("f", "v", "$v = [x for x in $v if x > 5]", "$v = [x for x in $v if x > 3]", "return $v"))
        is None
    )
    assert make_tests(problem("f", "v", "$v = [x for x in $v if x > 5]", "return $v")) is not None


def test_a_line_starts_at_a_slot(tokenizer: tokenizers.Tokenizer) -> None:
    newline_ends = ("\n",)
    for item in islice(Generator(1, "train"), 500):
        encoded = tokenizer.encode(fill_slots(item.code))
        assert len(encoded.ids) % SLOT == 0
        starts = [i for i in range(1, len(encoded.ids)) if _starts_line(tokenizer, encoded.ids, i, newline_ends)]
        assert all(i % SLOT == 0 for i in starts)
        assert tokenizer.decode(encoded.ids) == item.code  # fills have no text
        assert len(PIECE.findall(item.code)) == len(encoded.ids) - encoded.ids.count(tokenizer.token_to_id(FILL))


def _starts_line(tokenizer: tokenizers.Tokenizer, ids: list[int], at: int, ends: tuple[str, ...]) -> bool:
    fill = tokenizer.token_to_id(FILL)
    before = next(i for i in reversed(ids[:at]) if i != fill)
    return ids[at] != fill and tokenizer.decode([before]).endswith(ends)


def test_any_text_survives_the_tokenizer(tokenizer: tokenizers.Tokenizer) -> None:
    for text in ("naïve ☃ text\twith\r\ntabs", "def f(xs):\n    return 123456", ""):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert [tokenizer.token_to_id(t) for t in (MASK, EOS)] == [0, 1]
    assert 300 <= tokenizer.get_vocab_size() <= 1200


def test_command_writes_json_lines(tmp_path: Path) -> None:
    out = tmp_path / "test.jsonl"
    assert main(["--split", "test", "--count", "3", "--seed", "2", "--out", str(out), "--most-functions", "1"]) == 0
    read = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert read == list(islice(items("test", 2, most_functions=1), 3))
    assert set(read[0]) == {"query", "response", "program", "tests"}


@pytest.mark.parametrize(
    ("arguments", "name"), [({"split": "dev"}, "split"), ({"split": "test", "layout": "x"}, "layout")]
)
def test_wrong_settings_are_named(arguments: dict[str, str], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        next(items(seed=0, **arguments))
    with pytest.raises(ValueError, match="most_steps"):
        Generator(0, "train", most_steps=0)
