"""How good and how fast checkpoints are: `refusion eval` for one, `refusion compare` for the shipped ones."""

from .answers import Answered, decode_items, summarise
from .checkers import CHECKERS, make_checker
from .compare import Comparison, compare
from .items import Item, ItemError, read_items

__all__ = [
    "CHECKERS",
    "Answered",
    "Comparison",
    "Item",
    "ItemError",
    "compare",
    "decode_items",
    "make_checker",
    "read_items",
    "summarise",
]
