"""Draws problems of the task language: an instruction, and the program that answers it and decides the split."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

from . import language as L

KINDS = ("list", "number", "string", "dict")
KIND_WEIGHTS = (5, 2, 2, 2)
TEST_SHARE = 16  # one program in so many is held out


@dataclass(frozen=True)
class Function:
    """A function of a problem: how it is asked for, its lines, and what it takes and gives."""

    name: str
    kind: str
    variable: str
    instruction: str
    lines: tuple[str, ...]
    gives_number: bool

    def source(self, name: str, variable: str) -> str:
        body = "".join(f"    {line.replace('$v', variable)}\n" for line in self.lines)
        return f"def {name}({variable}):\n{body}"


@dataclass(frozen=True)
class Problem:
    """An instruction and the functions that answer it."""

    functions: tuple[Function, ...]

    @property
    def query(self) -> str:
        return " ".join(f.instruction for f in self.functions) + "\n"

    @property
    def code(self) -> str:
        return "".join(f.source(f.name, f.variable) for f in self.functions)

    @property
    def program(self) -> str:
        """The code with names that no wording can change: equal for two problems that ask for the same program."""
        code = "".join(f.source(f.name, "v") for f in self.functions)
        for index, function in enumerate(self.functions):
            code = code.replace(f"{function.name}(", f"f{index}(")
        for name in L.TOTAL_NAMES:
            code = code.replace(f"{name} ", "t ").replace(f"return {name}\n", "return t\n")
        return code

    @property
    def split(self) -> str:
        """'test' or 'train', by a hash of the program alone."""
        digest = hashlib.sha256(self.program.encode()).digest()
        return "test" if int.from_bytes(digest[:8], "big") % TEST_SHARE == 0 else "train"


class Generator:
    """Problems in an order that the seed alone decides.

    Args:
        seed: of the random numbers.
        split: 'train' or 'test'; programs of the other split are passed over.
        least_functions, most_functions: of an answer, between 1 and 3.
        most_steps: a function has one to so many steps before it returns.
        loops: share of the functions of a list that end in a loop.
    """

    def __init__(
        self,
        seed: int,
        split: str,
        *,
        least_functions: int = 1,
        most_functions: int = 3,
        most_steps: int = 5,
        loops: float = 0.2,
    ) -> None:
        if split not in ("train", "test"):
            raise ValueError(f"split must be 'train' or 'test', got {split!r}")
        if not 1 <= least_functions <= most_functions:
            raise ValueError(f"least_functions must lie between 1 and {most_functions}, got {least_functions}")
        if most_steps < 1:
            raise ValueError(f"most_steps must be at least 1, got {most_steps}")
        if not 0 <= loops <= 1:
            raise ValueError(f"loops must lie between 0 and 1, got {loops}")
        self.least_functions, self.loops = min(least_functions, 3), loops
        self.split, self.most_functions, self.most_steps = split, most_functions, most_steps
        self.random = random.Random(f"refusion.tasks.code {split} {seed}")

    def __iter__(self) -> Generator:
        return self

    def __next__(self) -> Problem:
        while (problem := self._draw()).split != self.split:
            pass
        return problem

    def _draw(self) -> Problem:
        pick = self.random
        count = max(min(pick.choices((1, 2, 3), (6, 3, 1))[0], self.most_functions), self.least_functions)
        functions: list[Function] = []
        for name in pick.sample(L.FUNCTION_NAMES, count):
            functions.append(self._function(name, [f.name for f in functions if f.gives_number]))
        return Problem(tuple(functions))

    def _function(self, name: str, callable_names: list[str]) -> Function:
        pick = self.random
        kind = "list" if callable_names and pick.random() < 0.7 else pick.choices(KINDS, KIND_WEIGHTS)[0]
        steps = min(1 + pick.choices(range(5), (1, 3, 3, 2, 1))[0], self.most_steps)
        asked: list[str] = []
        lines: list[str] = []
        for _ in range(steps):
            self._add(self._step(kind, callable_names), asked, lines)
        end = self._end(kind)
        self._add(end, asked, lines)
        variable = pick.choice(L.VARIABLE_NAMES[kind])
        header = pick.choice(L.HEADERS).replace("$n", name).replace("$v", variable)
        header = header.replace("$k", pick.choice(L.NOUNS[kind]))
        gives_number = kind == "number" and lines[-1] == "return $v"
        text = header + pick.choice(L.JOINERS).join(asked) + "."
        return Function(name, kind, variable, text, tuple(lines), gives_number)

    def _add(self, step: tuple[str, list[str]], asked: list[str], lines: list[str]) -> None:
        asked.append(step[0])
        lines.extend(step[1])

    def _step(self, kind: str, callable_names: list[str]) -> tuple[str, list[str]]:
        """One step: a call of an earlier function, a guarded step, or a plain one."""
        pick, guard = self.random, L.GUARDS.get(kind)
        if callable_names and kind in ("list", "number") and pick.random() < 0.4:
            name = pick.choice(callable_names)
            if kind == "list":
                phrase = pick.choice((f"apply {name} to each number", f"replace every number by its {name}"))
                return phrase, [f"$v = [{name}(x) for x in $v]"]
            return f"apply {name} to it", [f"$v = {name}($v)"]
        if kind == "number" and pick.random() < 0.3:
            condition, phrases = pick.choice(L.CONDITIONS)
            inner, lines = self._plain(kind)
            ask = pick.choice(("if it is ", "when it is ")) + pick.choice(phrases)
            filled = self._fill([ask, f"if {condition}:".replace("$x", "$v")])
            return f"{filled[0]}, {inner}", [filled[1], *("    " + line for line in lines)]
        if guard and pick.random() < 0.15:
            inner, lines = self._plain(kind)
            ask, test = self._fill([pick.choice(guard[1]), f"if {guard[0]}:"])
            return f"{ask}, {inner}", [test, *("    " + line for line in lines)]
        return self._plain(kind)

    def _plain(self, kind: str) -> tuple[str, list[str]]:
        pick = self.random
        choice = pick.random()
        if kind == "number" or (kind in ("list", "dict") and choice < 0.4):
            expression, phrases = pick.choice(L.EXPRESSIONS)
            ask = pick.choice(phrases).replace("$e", pick.choice(L.ELEMENTS[kind]))
            return self._line(ask, MAP_LINES[kind].replace("$E", expression.replace("$x", ITEM_NAMES[kind])))
        if kind in ("list", "dict") and choice < 0.7:
            condition, wordings = pick.choice(L.CONDITIONS)
            keep = pick.random() < 0.75
            verb = pick.choice(("keep", "keep only") if keep else ("drop", "remove"))
            noun = "numbers" if kind == "list" else "values"
            test = ("if " if keep else "if not ") + condition.replace("$x", "x")
            return self._line(
                f"{verb} the {noun} that are {pick.choice(wordings)}", KEEP_LINES[kind].replace("$C", test)
            )
        step = pick.choices(L.STEPS[kind], [s.weight for s in L.STEPS[kind]])[0]
        ask, *lines = self._fill([pick.choice(step.phrases), *step.lines])
        return ask, lines

    def _end(self, kind: str) -> tuple[str, list[str]]:
        pick = self.random
        if kind == "list" and pick.random() < self.loops:
            return self._loop()
        step = pick.choices(L.ENDS[kind], [s.weight for s in L.ENDS[kind]])[0]
        ask, *lines = self._fill([pick.choice(step.phrases), *step.lines])
        return ask, lines

    def _loop(self) -> tuple[str, list[str]]:
        """A total over the numbers that meet a condition, in a variable whose name is free."""
        pick = self.random
        total = pick.choice(L.TOTAL_NAMES)
        condition, phrases = pick.choice(L.CONDITIONS)
        ask, test = self._fill([pick.choice(phrases), f"    if {condition}:".replace("$x", "x")])
        verb, change = pick.choice((("add up", f"{total} += x"), ("count", f"{total} += 1")))
        body = [f"{total} = 0", "for x in $v:", test, f"        {change}", f"return {total}"]
        return f"{verb} the numbers that are {ask} in a loop and return it", body

    def _line(self, ask: str, line: str) -> tuple[str, list[str]]:
        ask, line = self._fill([ask, line])
        return ask, [line]

    def _fill(self, texts: list[str]) -> list[str]:
        """Fills numbers and letters in, the same ones in every text."""
        pick = self.random
        first, second = pick.sample(L.LETTERS, 2)
        values = {"$a": str(pick.choice(L.NUMBERS)), "$d": str(pick.randint(2, 9))}
        values |= {"$q": f'"{first}"', "$r": f'"{second}"'}
        for key, value in values.items():
            texts = [text.replace(key, value) for text in texts]
        return texts


MAP_LINES = {"list": "$v = [$E for x in $v]", "number": "$v = $E", "dict": "$v = {k: $E for k, x in $v.items()}"}
KEEP_LINES = {"list": "$v = [x for x in $v $C]", "dict": "$v = {k: x for k, x in $v.items() $C}"}
ITEM_NAMES = {"list": "x", "number": "$v", "dict": "x"}
