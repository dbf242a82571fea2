"""Tokenizer of the code task, and the layout that starts every line of an answer at a slot.

A token is a piece of text a person would call a unit: a word with the space before it, or a fixed phrase of Python such
as ` for x in`, so that nearly every line fits one slot of 8 tokens. What a line leaves of its last slot is filled with
`<fill>`, a special token without text. A planner that reads a slot's first token then decides between lines, not
between positions inside of lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import tokenizers

from .bpe import train_bpe

SLOT = 8
FILL = "<fill>"
PHRASES = (
    *(" = [x", " = [-x", " = [abs(x)", " = [min(x,", " = [max(x,", " = [", ") for x in", " for x in", " for c in"),
    *(" = {k: x", " = {k: -x", " = {k: abs(x)", " = {k: min(x,", " = {k: max(x,", " {x: k", " = {**"),
    *(
        ") for k, x in",
        " for k, x in",
        ".items() if x",
        ".items() if not x",
        ".items() if k",
        ".items()}\n",
        ".values())\n",
    ),
    *(
        " if not x",
        " if x",
        " == 0]\n",
        " == 1]\n",
        " == 0}\n",
        " == 1}\n",
        "]\n",
        "}\n",
        "):\n",
        "()\n",
        ")\n",
        ":\n",
        ":]\n",
    ),
    *(
        "[::-1]\n",
        "[-",
        "[:-",
        "[:",
        "(x)",
        " = list(dict.fromkeys(",
        "))\n",
        ", reverse=True)\n",
        ' = "".join(sorted(',
    ),
    *(
        ".replace(",
        ".count(",
        ".count(x)",
        "(str(x)",
        ".join",
        ", default=",
        " = sorted(",
        " sum(",
        " len(",
        " max(",
        " min(",
    ),
    *(" = abs(", " = min(", " = max(", ".upper()\n", ".lower()\n", "(x) for x in"),
)
# First a returned name with its `return`: the first token of a slot then tells which name it is, so that a planner that
# does not know the name yet leaves the slot alone. Then the longest phrase; then a word, a letter in quotes, or a sign,
# each with the spaces before it.
PIECE = re.compile(
    r" *return \w+(?=\n)|"
    + "|".join(re.escape(p) for p in sorted(PHRASES, key=lambda p: (-len(p), p)))
    + r'| *\w+| *"\w*"| *[^\w\s"]+| *"|\s'
)


def build_tokenizer(texts: Iterable[str], vocab_size: int = 2048) -> tokenizers.Tokenizer:
    """A byte-level BPE in which every frequent piece of the texts is one token."""
    return train_bpe(texts, vocab_size, more_tokens=[FILL], pieces=PIECE.pattern)


def fill_slots(code: str, slot: int = SLOT) -> str:
    """The code with `<fill>` after each line, so that every line starts at a multiple of `slot` tokens.

    Counts pieces, which are tokens of `build_tokenizer`'s result for the texts of this task.
    """
    lines = code.splitlines(keepends=True)
    return "".join(line + FILL * (-len(PIECE.findall(line)) % slot) for line in lines)


def filled_length(code: str, slot: int = SLOT) -> int:
    """Tokens of `fill_slots(code)`."""
    return sum(-(-len(PIECE.findall(line)) // slot) * slot for line in code.splitlines(keepends=True))
