"""Items to be answered: JSON Lines of {"query", "response", "tests", ...}."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..sandbox import Test, read_tests


class ItemError(ValueError):
    """A file of items is unusable, or an item lacks what its checker needs; the message names the line."""


@dataclass(frozen=True)
class Item:
    """One item.

    Attributes:
        query: the prompt.
        response: the expected answer, or None.
        tests: calls with the values they must return, or None.
        fields: everything that the file says of the item.
        line: of the file, from 1.
    """

    query: str
    response: str | None = None
    tests: list[Test] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    line: int = 0

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], line: int = 0) -> Item:
        """From an object of a file; raises `ItemError`."""
        query, response, tests = fields.get("query"), fields.get("response"), fields.get("tests")
        if not isinstance(query, str):
            raise ItemError(f"line {line}: expected an object with the text 'query'")
        if response is not None and not isinstance(response, str):
            raise ItemError(f"line {line}: 'response' must be a text")
        try:
            calls = None if tests is None else read_tests(tests)
        except (TypeError, KeyError, ValueError) as error:
            raise ItemError(f"line {line}: 'tests' are not calls with their values: {error}") from None
        return cls(query, response, calls, fields, line)


def read_items(path: Path, limit: int | None = None) -> list[Item]:
    """Items of a JSON Lines file, at most `limit`; raises `ItemError` naming file and line."""
    items: list[Item] = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                if limit is not None and len(items) == limit:
                    break
                if text.strip():
                    items.append(_parse(path, number, text))
    except OSError as error:
        raise ItemError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ItemError(f"{path}: not UTF-8: {error}") from None
    if not items:
        raise ItemError(f"{path}: no items")
    return items


def _parse(path: Path, number: int, text: str) -> Item:
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ItemError(f"line {number}: expected an object")
        return Item.from_fields(fields, number)
    except ItemError as error:
        raise ItemError(f"{path}: {error}") from None
    except ValueError as error:
        raise ItemError(f"{path}: line {number}: {error}") from None
