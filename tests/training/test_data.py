"""Reading, tokenising and ordering of training data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from golden import CHECKPOINT
from refusion import Tokenizer
from refusion.training.data import BatchOrder, DataError, Dataset, read_samples, tokenise

EOS = 257
SAMPLES = [{"query": "ab", "response": "cdefg"}, {"query": "é\n", "response": "x"}, {"query": "q", "response": ""}]


def read(path: Path, **changes: object) -> Dataset:
    settings = {"max_length": 64, "answer_multiple": 1, "cache": path.with_name("cache"), "chat": None}
    return tokenise(path, Tokenizer.load(CHECKPOINT), EOS, **settings | changes)


def lines(path: Path, samples: list[object] = SAMPLES) -> Path:
    path.write_text("".join(json.dumps(s) + "\n" for s in samples))
    return path


def test_lines_and_list_hold_the_same(tmp_path: Path) -> None:
    listed = tmp_path / "list.json"
    listed.write_text("\n " + json.dumps(SAMPLES))
    expected = [(s["query"], s["response"]) for s in SAMPLES]
    assert list(read_samples(lines(tmp_path / "a.jsonl"))) == expected
    assert list(read_samples(listed)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"query": "a", "response": "b"}\n\n{"query": "a"\n', r"bad.jsonl, line 3: "),
        ('{"query": "a", "response": 3}\n', r"bad.jsonl, line 1: expected an object with the texts"),
        ('[{"query": "a", "response": "b"}, 5]', r"bad.jsonl, item 2: expected an object"),
        ("[{]", r"bad.jsonl: "),
        ("", r"no sample"),
    ],
)
def test_bad_data_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read(path)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.jsonl: No such file"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8"):
        read(tmp_path / "binary.jsonl")


def test_tokens_eos_and_counts(tmp_path: Path) -> None:
    data = read(lines(tmp_path / "a.jsonl"))
    assert (data.prompt(0), data.answer(0)) == (list(b"ab"), [*b"cdefg", EOS])
    assert (data.prompt(1), data.answer(1)) == (list("é\n".encode()), [*b"x", EOS])
    assert (data.counts.samples, data.counts.empty, data.counts.truncated, data.counts.tokens) == (2, 1, 0, 13)
    batch = data.batch(np.array([1, 0]), pad_token_id=9)
    assert batch.tokens[0].tolist() == [*"é\nx".encode(), EOS, 9, 9, 9]
    assert batch.prompt_lengths.tolist() == [3, 2]
    assert batch.answer_lengths.tolist() == [2, 6]


def test_long_answers_are_cut_and_filled_ones_are_not_counted_as_cut(tmp_path: Path) -> None:
    data = read(lines(tmp_path / "a.jsonl"), max_length=6)
    assert data.answer(0) == list(b"cdef")
    assert data.counts.truncated == 1
    filled = read(lines(tmp_path / "a.jsonl"), max_length=10, answer_multiple=8)
    assert filled.answer(0) == [*b"cdefg", EOS, EOS, EOS]
    assert filled.answer(1) == [*b"x", EOS, EOS, EOS, EOS, EOS, EOS]  # 3 + 8 do not fit into 10
    assert filled.counts.truncated == 0


def test_chat_template(tmp_path: Path) -> None:
    tokenizer = Tokenizer(Tokenizer.load(CHECKPOINT).core, "<{{ messages[0].content }}>")
    path = lines(tmp_path / "a.jsonl")
    for chat, prompt in ((None, b"<ab>"), (False, b"ab")):
        data = tokenise(path, tokenizer, EOS, max_length=64, answer_multiple=1, cache=tmp_path / "c", chat=chat)
        assert data.prompt(0) == list(prompt)


def test_cache_follows_file_and_settings(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl")
    assert len(read(path)) == 2
    stamp = (tmp_path / "cache.tokens").stat().st_mtime_ns
    assert len(read(path)) == 2
    assert (tmp_path / "cache.tokens").stat().st_mtime_ns == stamp
    assert len(read(lines(path, SAMPLES[:1]))) == 1
    assert read(path, max_length=4).counts.truncated == 1


def test_order_is_a_function_of_seed_and_step() -> None:
    lengths = np.random.default_rng(0).integers(5, 100, 1000)
    order = BatchOrder(lengths, 8, seed=1)
    epoch = np.concatenate([order[n] for n in range(125)])
    assert sorted(epoch) == list(range(1000))  # each sample once an epoch
    later = order[130].copy()
    assert np.array_equal(BatchOrder(lengths, 8, seed=1)[130], later)
    assert not np.array_equal(BatchOrder(lengths, 8, seed=2)[130], later)
    assert not np.array_equal(order[5], order[130])
    padding = np.mean([1 - lengths[order[n]].mean() / lengths[order[n]].max() for n in range(125)])
    assert padding < 0.08
    assert np.corrcoef(np.arange(125), [lengths[order[n]].mean() for n in range(125)])[0, 1] < 0.5


def test_fewer_samples_than_a_batch() -> None:
    order = BatchOrder(np.array([3, 4, 5]), 8, seed=0)
    assert sorted(order[0]) == sorted(order[7]) == [0, 1, 2]
