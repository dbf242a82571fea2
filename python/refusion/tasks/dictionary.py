"""A pocket dictionary, the commonest English nouns and verbs with one meaning each, from the files of WordNet 3.0.

    python -m refusion.tasks.dictionary --wordnet /usr/share/wordnet --out train.jsonl --tokenizer tokenizer.json

writes JSON Lines of {"query", "response"}, such as "labor" and "productive work (especially physical work done for
wages); "his labor did not require a great deal of skill"". WordNet's files come with the Debian package `wordnet-base`
(or from Princeton University); its licence lets everybody use, copy and change it with its notice kept.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .bpe import train_bpe

KINDS = {"noun": 1, "verb": 2}  # the number of a kind in WordNet's sense keys
COUNTS = "cntlist.rev"
LONGEST = 160  # characters of an entry
VOCABULARY = 3072
# Words that insult, and examples that speak of peoples as one should not.
UNFIT_DEFINITION = re.compile(r"slur|offensive name|obscene term|disparaging|vulgar")
UNFIT_EXAMPLE = re.compile(r"Jew|Gyps|gyps|Negro|Hitler")


@dataclass(frozen=True)
class Meaning:
    """What a word means in one of its senses."""

    word: str
    uses: int
    """How often the word has this meaning in the texts WordNet's authors have read."""
    definition: str
    examples: tuple[str, ...]

    @property
    def entry(self) -> str:
        """The definition, and the first example that has the word in it."""
        stem = self.word[:-1] if len(self.word) > 4 else self.word
        fit = (e for e in self.examples if stem in e.lower() and not UNFIT_EXAMPLE.search(e))
        chosen = next(fit, None)
        return f'{self.definition}; "{chosen}"' if chosen else self.definition


def read_meanings(directory: Path) -> Iterator[Meaning]:
    """Senses of single words in lower case that were met at least once (formats: wndb(5WN), senseidx(5WN)).

    Raises `ValueError` where a file is missing.
    """
    uses = {key: int(count) for key, _, count in map(str.split, _lines(directory / COUNTS))}
    for kind, number in KINDS.items():
        for line in _lines(directory / f"data.{kind}"):
            if line.startswith("  "):
                continue  # the licence
            head, _, gloss = line.partition(" | ")
            fields = head.split(" ")
            definition, *examples = gloss.strip().split('; "')
            for i in range(int(fields[3], 16)):
                word, sense = fields[4 + 2 * i], int(fields[5 + 2 * i], 16)
                count = uses.get(f"{word.lower()}%{number}:{fields[1]}:{sense:02}::", 0)
                if count and word.isalpha() and word.islower() and not UNFIT_DEFINITION.search(definition):
                    yield Meaning(word, count, definition.rstrip(";: "), tuple(e.rstrip('"') for e in examples))


def _lines(file: Path) -> list[str]:
    if not file.is_file():
        raise ValueError(f"{file}: missing; WordNet's files are in the Debian package wordnet-base")
    return file.read_text(encoding="utf-8").splitlines()


def items(meanings: Iterable[Meaning], words: int) -> list[dict[str, str]]:
    """The commonest words, each with its commonest meaning, by falling use."""
    commonest: dict[str, Meaning] = {}
    for meaning in sorted(meanings, key=lambda m: -m.uses):
        if len(meaning.entry) <= LONGEST:
            commonest.setdefault(meaning.word, meaning)
    return [{"query": m.word, "response": m.entry} for m in list(commonest.values())[:words]]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m refusion.tasks.dictionary", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--wordnet", type=Path, default=Path("/usr/share/wordnet"), help=f"holds data.noun, data.verb and {COUNTS}"
    )
    parser.add_argument("--words", type=int, default=5000, help="the commonest so many (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="JSON Lines file of items")
    parser.add_argument("--tokenizer", type=Path, help="write a tokenizer.json trained on the items here")
    args = parser.parse_args(arguments)
    try:
        chosen = items(read_meanings(args.wordnet), args.words)
    except ValueError as error:
        parser.error(str(error))
    if args.tokenizer:
        texts = (item[part] for item in chosen for part in ("query", "response"))
        train_bpe(texts, VOCABULARY).save(str(args.tokenizer))
    if args.out:
        args.out.write_text("".join(json.dumps(item) + "\n" for item in chosen), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
