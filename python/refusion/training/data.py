"""Training data: JSON Lines or a JSON list of {"query", "response"}, tokenised once into a file that is then mapped."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checkpoint import write_atomically
from ..tokenizer import Tokenizer
from .objective import TokenBatch

CHUNK = 512  # samples tokenised together
BUCKETS = 32  # batches whose samples are sorted by length together


class DataError(ValueError):
    """A training file is unusable; the message names file and line."""


def read_samples(path: Path) -> Iterator[tuple[str, str]]:
    """Streams (query, response) of a JSON Lines file, or of a file that holds one JSON list.

    Raises `DataError` naming the file and the line (JSON Lines) or item (list), both counted from 1.
    """
    try:
        with open(path, encoding="utf-8") as file:
            first = file.read(1)
            while first and first in "\ufeff \t\r\n":
                first = file.read(1)
            file.seek(0)
            if first == "[":
                yield from _read_list(path, file.read())
                return
            for number, line in enumerate(file, 1):
                if line.strip("\ufeff \t\r\n"):
                    yield _sample(path, f"line {number}", _parse(path, number, line))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error}") from None


def _read_list(path: Path, text: str) -> Iterator[tuple[str, str]]:
    try:
        items = json.loads(text)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    for number, item in enumerate(items, 1):
        yield _sample(path, f"item {number}", item)


def _parse(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line.lstrip("\ufeff"))
    except ValueError as error:
        raise DataError(f"{path}, line {number}: {error}") from None


def _sample(path: Path, where: str, item: Any) -> tuple[str, str]:
    for name in ("query", "response"):
        if not isinstance(item, dict) or not isinstance(item.get(name), str):
            raise DataError(f"{path}, {where}: expected an object with the texts 'query' and 'response'")
    return item["query"], item["response"]


@dataclass(frozen=True)
class Counts:
    """What became of the samples of a file."""

    samples: int
    truncated: int
    """Answers cut at the maximum length (they have no EOS)."""
    empty: int
    """Skipped: no answer, or a prompt that leaves no room for one."""
    tokens: int


class Dataset:
    """Token ids of all samples; sample i is `tokens[starts[i]:starts[i + 1]]`, its answer begins at `answers[i]`."""

    def __init__(self, tokens: np.ndarray, starts: np.ndarray, answers: np.ndarray, counts: Counts) -> None:
        self.tokens, self.starts, self.answers, self.counts = tokens, starts, answers, counts

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    def prompt(self, index: int) -> list[int]:
        return self.tokens[self.starts[index] : self.answers[index]].tolist()

    def answer(self, index: int) -> list[int]:
        return self.tokens[self.answers[index] : self.starts[index + 1]].tolist()

    def batch(self, indices: np.ndarray, pad_token_id: int) -> TokenBatch:
        """The samples side by side, padded on the right."""
        starts, lengths = self.starts[indices], self.starts[indices + 1] - self.starts[indices]
        padded = np.full((len(indices), int(lengths.max(initial=1))), pad_token_id, dtype=np.int64)
        for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            padded[row, :length] = self.tokens[start : start + length]
        prompts = self.answers[indices] - starts
        return TokenBatch(*(torch.from_numpy(x) for x in (padded, prompts, lengths - prompts)))


def tokenise(
    path: Path,
    tokenizer: Tokenizer,
    eos_token_id: int,
    *,
    max_length: int,
    answer_multiple: int,
    cache: Path,
    chat: bool | None,
) -> Dataset:
    """Tokenises a file, or maps the result of an earlier call with the same file, tokenizer and settings.

    Args:
        path: JSON Lines, or a JSON list, of {"query", "response"}.
        tokenizer: of the checkpoint; queries go through its chat template where there is one (`chat` None).
        eos_token_id: appended to every answer.
        max_length: tokens of prompt and answer together; longer answers are cut, without EOS.
        answer_multiple: answers are filled up with EOS to a multiple of this, so that a model learns what to write at
            masks behind the end; 1 leaves them as they are.
        cache: file stem for the result.
        chat: use the chat template; None: where there is one.
    """
    key = _fingerprint(path, tokenizer, (eos_token_id, max_length, answer_multiple, chat))
    ids_file, index_file = cache.with_suffix(".tokens"), cache.with_suffix(".npz")
    if not _matches(index_file, ids_file, key):
        _write(path, tokenizer, eos_token_id, max_length, answer_multiple, chat, ids_file, index_file, key)
    with np.load(index_file) as index:
        counts = Counts(**json.loads(str(index["counts"])))
        if not counts.samples:
            raise DataError(f"{path}: no sample with an answer")
        tokens = np.memmap(ids_file, dtype=np.int32, mode="r")
        return Dataset(tokens, index["starts"], index["answers"], counts)


def _write(
    path: Path,
    tokenizer: Tokenizer,
    eos: int,
    limit: int,
    multiple: int,
    chat: bool | None,
    ids: Path,
    index: Path,
    key: str,
) -> None:
    starts, answers, truncated, empty = [0], [], 0, 0
    temporary = ids.with_name(f".{ids.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            for prompt, answer in _encode(read_samples(path), tokenizer, chat):
                if not answer or len(prompt) >= limit:
                    empty += 1
                    continue
                answer.append(eos)
                answer.extend([eos] * (-len(answer) % multiple))
                room = limit - len(prompt)
                # Filling that does not fit is no loss; a cut that reaches the answer is.
                truncated += len(answer) > room and answer[room - 1] != eos
                sample = prompt + answer[:room]
                np.asarray(sample, dtype=np.int32).tofile(file)
                answers.append(starts[-1] + len(prompt))
                starts.append(starts[-1] + len(sample))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, ids)
    finally:
        temporary.unlink(missing_ok=True)
    counts = Counts(len(answers), truncated, empty, starts[-1])

    def write_index(target: Path) -> None:
        with open(target, "wb") as file:
            np.savez(
                file,
                starts=np.asarray(starts, dtype=np.int64),
                answers=np.asarray(answers, dtype=np.int64),
                counts=np.asarray(json.dumps(asdict(counts))),
                key=np.asarray(key),
            )

    write_atomically(index, write_index)


def _encode(
    samples: Iterator[tuple[str, str]], tokenizer: Tokenizer, chat: bool | None
) -> Iterator[tuple[list[int], list[int]]]:
    templated = chat or (chat is None and tokenizer.chat_template is not None)
    pending: list[tuple[str, str]] = []

    def flush() -> Iterator[tuple[list[int], list[int]]]:
        texts = [text for sample in pending for text in sample]
        encoded = [e.ids for e in tokenizer.core.encode_batch(texts, add_special_tokens=False)]
        yield from zip(encoded[::2], encoded[1::2], strict=True)
        pending.clear()

    for query, response in samples:
        if templated:
            query = tokenizer.chat([{"role": "user", "content": query}])
        pending.append((query, response))
        if len(pending) == CHUNK:
            yield from flush()
    yield from flush()


def _fingerprint(path: Path, tokenizer: Tokenizer, settings: tuple[Any, ...]) -> str:
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    parts = (
        str(path.resolve()),
        status.st_size,
        status.st_mtime_ns,
        tokenizer.core.to_str(),
        tokenizer.chat_template,
        settings,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _matches(index_file: Path, ids_file: Path, key: str) -> bool:
    if not (index_file.is_file() and ids_file.is_file()):
        return False
    with np.load(index_file) as index:
        return str(index["key"]) == key and ids_file.stat().st_size == 4 * int(index["starts"][-1])


class BatchOrder:
    """Which samples make up step n: a function of seed and n alone, so a run can continue anywhere.

    Each epoch is a permutation; within stretches of `BUCKETS` batches samples are sorted by length, so that a batch
    pads little, and the batches of a stretch are shuffled. The last, incomplete batch of an epoch is left out.
    """

    def __init__(self, lengths: np.ndarray, batch_size: int, seed: int) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.lengths, self.seed = lengths, seed
        self.batch_size = min(batch_size, len(lengths))
        self.batches_per_epoch = len(lengths) // self.batch_size
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def __getitem__(self, step: int) -> np.ndarray:
        """Indices of the samples of a step, int64 [batch_size]."""
        epoch, position = divmod(step, self.batches_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._shuffle(epoch)
        return self._order[position]

    def _shuffle(self, epoch: int) -> np.ndarray:
        random = np.random.default_rng((self.seed, epoch))
        used = random.permutation(len(self.lengths))[: self.batches_per_epoch * self.batch_size]
        batches = []
        for first in range(0, len(used), BUCKETS * self.batch_size):
            stretch = used[first : first + BUCKETS * self.batch_size]
            ordered = stretch[np.argsort(self.lengths[stretch], kind="stable")]
            batches.append(random.permutation(ordered.reshape(-1, self.batch_size)))
        return np.concatenate(batches)


def to_device(batch: TokenBatch, device: torch.device) -> TokenBatch:
    def move(x: Tensor) -> Tensor:
        return x.to(device, non_blocking=True)

    return TokenBatch(move(batch.tokens), move(batch.prompt_lengths), move(batch.answer_lengths))
