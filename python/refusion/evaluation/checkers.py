"""Whether an answer is right: equal to the expected one, passing tests, or as a user's own function says."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ..sandbox import Sandbox
from ..tokenizer import Tokenizer
from .items import Item, ItemError

CHECKERS = ("exact", "code")
Checker = Callable[[Item, str], bool]
T = TypeVar("T")
TIMEOUT = 2.0  # seconds for one program, with all of its tests


@contextmanager
def make_checker(name: str, tokenizer: Tokenizer) -> Iterator[Checker]:
    """A function of item and answer text.

    Args:
        name: 'exact' (the text equals `response`, special tokens such as fill and EOS left out on both sides), 'code'
            (the program passes `tests` in `refusion.sandbox`), or 'module:function', called with the item's fields and
            the text; modules of the current directory are found.
        tokenizer: of the checkpoint.

    Raises `ValueError` for another name, `ItemError` from a call where the item lacks what the checker needs.
    """
    if name == "exact":
        yield lambda item, text: text == tokenizer.decode(tokenizer.encode(_need(item, item.response, "response")))
    elif name == "code":
        with Sandbox(timeout=TIMEOUT) as sandbox:
            yield lambda item, text: sandbox.check(text, _need(item, item.tests, "tests")).passed
    elif ":" in name:
        function = _own(name)
        yield lambda item, text: bool(function(dict(item.fields), text))
    else:
        raise ValueError(f"checker must be {', '.join(map(repr, CHECKERS))} or 'module:function', got {name!r}")


def _need(item: Item, value: T | None, name: str) -> T:
    if value is None:
        raise ItemError(f"line {item.line}: this checker needs {name!r}")
    return value


def _own(name: str) -> Callable[..., object]:
    module, _, function = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"checker {name!r}: {error}") from None
    if not callable(found):
        raise ValueError(f"checker {name!r} is not callable")
    return found
