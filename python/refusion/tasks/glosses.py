"""Words and their definitions: training data for a small model of readable English, from the files of WordNet 3.0.

    python -m refusion.tasks.glosses --wordnet /usr/share/wordnet --out train.jsonl --tokenizer tokenizer.json

writes JSON Lines of {"query", "response"}, such as "lighthouse, a kind of tower: " and "a tower with a light that gives
warning of shoals to passing ships". WordNet's files come with the Debian package `wordnet-base` (or from Princeton
University); its licence lets everybody use, copy and change it with its notice kept.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

MASK, EOS, PAD = "<mask>", "<eos>", "<pad>"
KINDS = {"noun": "a kind of", "verb": "a way to"}
HELD_OUT = 50  # one meaning in so many
LONGEST = 200  # characters of a definition
VOCABULARY = 2048


@dataclass(frozen=True)
class Meaning:
    """A set of words with one definition."""

    words: tuple[str, ...]
    kind: str
    wider: str | None
    """The first word of the meaning above it (a dog for a poodle), or None."""
    definition: str

    def query(self, word: str) -> str:
        return f"{word}, {KINDS[self.kind]} {self.wider}: " if self.wider else f"{word}: "

    @property
    def split(self) -> str:
        digest = hashlib.sha256(self.definition.encode()).digest()
        return "test" if int.from_bytes(digest[:8], "big") % HELD_OUT == 0 else "train"


def read_meanings(directory: Path) -> Iterator[Meaning]:
    """Meanings of `data.noun` and `data.verb` (format: wndb(5WN)); raises `ValueError` where they are missing."""
    for kind in KINDS:
        file = directory / f"data.{kind}"
        if not file.is_file():
            raise ValueError(f"{file}: missing; WordNet's files are in the Debian package wordnet-base")
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("  ")]
        parsed = [_parse(line) for line in lines]
        first = {offset: words[0] for offset, words, _, _ in parsed}
        for _, words, above, definition in parsed:
            if definition and len(definition) <= LONGEST:
                yield Meaning(words, kind, first.get(above), definition)


def _parse(line: str) -> tuple[str, tuple[str, ...], str, str]:
    """Offset, words, offset of the meaning above ('' without one), definition without its examples."""
    head, _, gloss = line.partition(" | ")
    fields = head.split(" ")
    count = int(fields[3], 16)
    words = tuple(w.replace("_", " ") for w in fields[4 : 4 + 2 * count : 2])
    pointers = fields[5 + 2 * count :]
    above = next((pointers[i + 1] for i in range(0, len(pointers) - 3) if pointers[i] in ("@", "@i")), "")
    return fields[0], words, above, gloss.split('; "')[0].strip().rstrip(";:")


def items(meanings: Iterable[Meaning], split: str, seed: int = 0) -> list[dict[str, str]]:
    """Shuffled items of a split: one for each word of a meaning, at most three."""
    found = [
        {"query": meaning.query(word), "response": meaning.definition}
        for meaning in meanings
        if meaning.split == split
        for word in meaning.words[:3]
    ]
    random.Random(seed).shuffle(found)
    return found


def build_tokenizer(texts: Iterable[str]) -> tokenizers.Tokenizer:
    """A byte-level BPE: any text is encodable."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[MASK, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return core


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m refusion.tasks.glosses", description=__doc__.split("\n")[0])
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"), help="holds data.noun, data.verb")
    parser.add_argument("--split", choices=("train", "test"), default="train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON Lines file of items")
    parser.add_argument("--tokenizer", type=Path, help="write a tokenizer.json trained on the items here")
    args = parser.parse_args(arguments)
    try:
        chosen = items(read_meanings(args.wordnet), args.split, args.seed)
    except ValueError as error:
        parser.error(str(error))
    if args.tokenizer:
        build_tokenizer(item[part] for item in chosen for part in ("query", "response")).save(str(args.tokenizer))
    if args.out:
        args.out.write_text("".join(json.dumps(item) + "\n" for item in chosen), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
