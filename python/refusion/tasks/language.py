"""The task language of `refusion.tasks.code`: phrases of English and the statements that they ask for.

Templates hold `$v` (the variable), `$a` and `$b` (numbers), `$q` and `$r` (letters in quotes) and `$f` (a function
defined earlier). A step reads and writes one variable, so steps compose; the last line of a function returns.
"""

from __future__ import annotations

from dataclasses import dataclass

NUMBERS, LETTERS = range(1, 13), "abcdefgh"
FUNCTION_NAMES = (
    *("adjust", "build", "clean", "convert", "derive", "extract", "filter_out", "fold", "gather", "handle"),
    *("inspect", "join_up", "measure", "merge", "pick", "prepare", "process", "reduce_it", "refine", "score"),
    *("select", "shape", "solve", "tidy", "transform", "update"),
)
VARIABLE_NAMES = {
    "list": ("xs", "nums", "values", "items"),
    "number": ("n", "num", "value", "count"),
    "string": ("s", "text", "word", "line"),
    "dict": ("d", "table", "scores", "data"),
}
TOTAL_NAMES = ("total", "acc", "result", "out")
NOUNS = {
    "list": ("a list of numbers", "a list", "a number list"),
    "number": ("a number", "an integer", "one number"),
    "string": ("a string", "a text", "some text"),
    "dict": ("a dict", "a dictionary", "a mapping"),
}
ELEMENTS = {
    "list": ("each number", "every number"),
    "number": ("the number", "it"),
    "dict": ("each value", "every value"),
}


@dataclass(frozen=True)
class Step:
    """Ways to ask for something and the lines that do it, relative to the function's indentation."""

    phrases: tuple[str, ...]
    lines: tuple[str, ...]
    weight: float = 1.0


# Expressions and conditions of one number $x; phrases speak of $e. The divisor of a remainder is at least 2.
EXPRESSIONS = (
    ("$x + $a", ("add $a to $e", "increase $e by $a", "raise $e by $a")),
    ("$x - $a", ("subtract $a from $e", "decrease $e by $a", "lower $e by $a")),
    ("$x * $d", ("multiply $e by $d", "scale $e by $d")),
    ("$x // $d", ("divide $e by $d rounding down", "floor divide $e by $d")),
    ("$x % $d", ("take $e modulo $d", "replace $e by its remainder modulo $d")),
    ("$x * $x", ("square $e", "replace $e by its square")),
    ("-$x", ("negate $e", "flip the sign of $e")),
    ("abs($x)", ("take the absolute value of $e", "make $e absolute")),
    ("min($x, $a)", ("cap $e at $a", "limit $e to at most $a")),
    ("max($x, $a)", ("lift $e to at least $a", "set a floor of $a for $e")),
)
CONDITIONS = (
    ("$x > $a", ("above $a", "greater than $a", "over $a")),
    ("$x < $a", ("below $a", "less than $a", "under $a")),
    ("$x >= $a", ("at least $a", "no less than $a")),
    ("$x <= $a", ("at most $a", "no more than $a")),
    ("$x != $a", ("different from $a", "not equal to $a")),
    ("$x % 2 == 0", ("even",)),
    ("$x % 2 == 1", ("odd",)),
    ("$x % $d == 0", ("divisible by $d", "a multiple of $d")),
)

LIST_STEPS = (
    Step(("reverse it", "reverse the order", "turn it around"), ("$v = $v[::-1]",)),
    Step(("sort it", "sort in ascending order", "put it in order"), ("$v = sorted($v)",)),
    Step(("sort in descending order", "sort it from high to low"), ("$v = sorted($v, reverse=True)",)),
    Step(("remove duplicates", "drop repeated numbers"), ("$v = list(dict.fromkeys($v))",)),
    Step(("take the first $a", "keep the first $a items"), ("$v = $v[:$a]",)),
    Step(("skip the first $a", "drop the first $a items"), ("$v = $v[$a:]",)),
    Step(("take the last $a", "keep the last $a items"), ("$v = $v[-$a:]",)),
    Step(("drop the last $a items", "cut off the last $a"), ("$v = $v[:-$a]",)),
    Step(("append $a", "put $a at the end"), ("$v = $v + [$a]",)),
    Step(("prepend $a", "put $a at the front"), ("$v = [$a] + $v",)),
)
LIST_ENDS = (
    Step(("return it", "return the list"), ("return $v",), 4),
    Step(("return the sum", "return the sum of it"), ("return sum($v)",)),
    Step(("return how many there are", "return the length"), ("return len($v)",)),
    Step(("return the largest or $a if empty", "return the maximum or $a if empty"), ("return max($v, default=$a)",)),
    Step(("return the smallest or $a if empty", "return the minimum or $a if empty"), ("return min($v, default=$a)",)),
    Step(("return how often $a occurs", "return the count of $a"), ("return $v.count($a)",)),
    Step(("return a dict of counts", "return a dict from number to count"), ("return {x: $v.count(x) for x in $v}",)),
    Step(("return them joined with $q", "join with $q and return"), ("return $q.join(str(x) for x in $v)",)),
)
NUMBER_ENDS = (
    Step(("return it", "return the number"), ("return $v",), 4),
    Step(("return it as a string", "return its text"), ("return str($v)",)),
    Step(("return a list of $a copies", "return it $a times in a list"), ("return [$v] * $a",)),
    Step(("return the numbers below its remainder modulo $d",), ("return list(range($v % $d))",)),
)
STRING_STEPS = (
    Step(("make it upper case", "convert to upper case"), ("$v = $v.upper()",)),
    Step(("make it lower case", "convert to lower case"), ("$v = $v.lower()",)),
    Step(("reverse it", "reverse the order", "turn it around"), ("$v = $v[::-1]",)),
    Step(("take the first $a", "keep the first $a characters"), ("$v = $v[:$a]",)),
    Step(("skip the first $a", "drop the first $a characters"), ("$v = $v[$a:]",)),
    Step(("take the last $a", "keep the last $a characters"), ("$v = $v[-$a:]",)),
    Step(("replace $q with $r", "turn every $q into $r"), ("$v = $v.replace($q, $r)",), 3),
    Step(("remove every $q", "delete all $q"), ('$v = $v.replace($q, "")',), 2),
    Step(("append $q", "put $q at the end"), ("$v = $v + $q",), 2),
    Step(("prepend $q", "put $q at the front"), ("$v = $q + $v",), 2),
    Step(("repeat it $d times", "repeat the text $d times"), ("$v = $v * $d",)),
    Step(("sort the characters", "sort its letters"), ('$v = "".join(sorted($v))',)),
)
STRING_ENDS = (
    Step(("return it", "return the text"), ("return $v",), 4),
    Step(("return the length", "return how long it is"), ("return len($v)",)),
    Step(("return how often $q occurs", "return the count of $q"), ("return $v.count($q)",)),
    Step(("return a list of the characters", "return its characters as a list"), ("return list($v)",)),
    Step(("split at $q and return", "return the parts between $q"), ("return $v.split($q)",)),
    Step(
        ("return a dict of counts", "return a dict from character to count"), ("return {c: $v.count(c) for c in $v}",)
    ),
)
DICT_STEPS = (
    Step(("set $q to $a", "store $a under $q"), ("$v = {**$v, $q: $a}",), 3),
    Step(("remove the key $q", "drop the entry $q"), ("$v = {k: x for k, x in $v.items() if k != $q}",), 2),
)
DICT_ENDS = (
    Step(("return it", "return the dict"), ("return $v",), 4),
    Step(("return the sum of the values", "return the total of the values"), ("return sum($v.values())",)),
    Step(("return how many there are", "return the length"), ("return len($v)",)),
    Step(("return the sorted keys", "return the keys in order"), ("return sorted($v)",)),
    Step(
        ("return the value of $q or $a if missing", "look up $q with default $a and return"), ("return $v.get($q, $a)",)
    ),
    Step(("return a list of the values", "return the values"), ("return list($v.values())",)),
    Step(
        ("return it with keys and values swapped", "swap keys and values and return"),
        ("return {x: k for k, x in $v.items()}",),
    ),
)
STEPS = {"list": LIST_STEPS, "number": (), "string": STRING_STEPS, "dict": DICT_STEPS}
ENDS = {"list": LIST_ENDS, "number": NUMBER_ENDS, "string": STRING_ENDS, "dict": DICT_ENDS}
GUARDS = {
    "list": ("len($v) > $a", ("if there are more than $a items", "when it has more than $a items")),
    "string": ("len($v) > $a", ("if it is longer than $a", "when it has more than $a characters")),
    "dict": ("len($v) > $a", ("if there are more than $a entries", "when it has more than $a entries")),
}
# The instruction names function and variable: lines are then free to be written in any order.
HEADERS = (
    "Write $n($v) for $k: ",
    "Define $n($v), which takes $k: ",
    "Create a function $n($v). Given $k, ",
    "$n($v) gets $k. ",
)
JOINERS = ("; then ", ", then ", ". Next, ", "; ")
