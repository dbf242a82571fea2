"""Hidden inputs for a problem: calls and the values they return, chosen so that a slightly wrong program fails."""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

from .generator import Problem

Call = dict[str, Any]  # {"function": name, "args": [...], "expect": value}
CANDIDATES = 120  # random inputs of a function to choose from
KEPT = 3  # inputs of a function kept beside those that tell mutants apart
FEEBLE = 0.03  # share of mutants of a problem that may give the same results


def make_tests(problem: Problem, seed: int = 0) -> list[Call] | None:
    """Calls with their results; None when too many mutants of the program behave as it does.

    Such a program has a step without effect (numbers above 5, then those above 3), so no test can tell whether an
    answer does as it was told.
    """
    pick = random.Random(f"{seed} {problem.program}")
    functions = load_functions(problem.code)
    inputs = {f.name: [_input(f.kind, pick) for _ in range(CANDIDATES)] for f in problem.functions}
    expected = {name: [_result(functions[name], x) for x in given] for name, given in inputs.items()}
    kept = {name: set(range(KEPT)) for name in inputs}
    changes = list(mutants(problem.code))
    same = 0
    for mutant in changes:
        changed = load_functions(mutant)
        found = None
        for name, given in inputs.items():
            # Inputs already kept come first, so that few are added.
            order = [*sorted(kept[name]), *(i for i in range(CANDIDATES) if i not in kept[name])]
            found = next((i for i in order if _result(changed[name], given[i]) != expected[name][i]), None)
            if found is not None:
                kept[name].add(found)
                break
        same += found is None
        if same > FEEBLE * len(changes):
            return None
    return [
        {"function": name, "args": [given[i]], "expect": expected[name][i][1]}
        for name, given in inputs.items()
        for i in sorted(kept[name])
    ]


def load_functions(code: str) -> dict[str, Callable[..., Any]]:
    """Runs *trusted* code, made by the generator, in this process; `refusion.sandbox` is for all other code."""
    scope: dict[str, Any] = {}
    exec(compile(code, "<problem>", "exec"), scope)
    return scope


def mutants(code: str) -> Iterator[str]:
    """Programs that differ from the code in one constant, operator or comparison, or lack one statement."""
    tree = ast.parse(code)
    for index, node in enumerate(ast.walk(tree)):
        for change in _changes(node):
            copied = copy.deepcopy(tree)
            change(list(ast.walk(copied))[index])
            yield ast.unparse(copied)


def _changes(node: ast.AST) -> Iterator[Callable[[Any], None]]:
    def set_value(value: Any) -> Callable[[Any], None]:
        return lambda n: setattr(n, "value", value)

    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield from (set_value(node.value + 1), set_value(node.value + 2))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) == 1:
        yield set_value(chr(ord("a") + (ord(node.value) - ord("a") + 1) % 8))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        other = ast.Sub if isinstance(node.op, ast.Add) else ast.Add
        if not _holds_text(node):
            yield lambda n: setattr(n, "op", other())
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Gt | ast.Lt | ast.GtE | ast.LtE):
        closed = {ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Lt: ast.LtE, ast.LtE: ast.Lt}[type(node.ops[0])]
        turned = {ast.Gt: ast.Lt, ast.GtE: ast.LtE, ast.Lt: ast.Gt, ast.LtE: ast.GtE}[type(node.ops[0])]
        yield lambda n: setattr(n, "ops", [closed()])
        yield lambda n: setattr(n, "ops", [turned()])
    if isinstance(node, ast.FunctionDef | ast.If | ast.For):
        for i in range(len(node.body) - isinstance(node, ast.FunctionDef)):

            def drop(n: Any, i: int = i) -> None:
                n.body[i] = ast.Pass()

            yield drop


def _holds_text(node: ast.BinOp) -> bool:
    """Joining lists or strings has no minus."""
    return any(
        isinstance(n, ast.List) or (isinstance(n, ast.Constant) and isinstance(n.value, str)) for n in ast.walk(node)
    )


def _input(kind: str, pick: random.Random) -> Any:
    def number() -> int:
        return pick.choice((pick.randint(-6, 16), pick.randint(-6, 16), pick.randint(-150, 300)))

    if kind == "number":
        return number()
    if kind == "list":
        size = pick.randint(0, 30)
        return [number() for _ in range(size)]
    if kind == "string":
        alphabet = pick.choice(("abcdefgh", "abcdefghABCDEFGH xyz", "abc"))
        return "".join(pick.choice(alphabet) for _ in range(pick.randint(0, 34)))
    keys = list("abcdefghijklmnopqrst")
    pick.shuffle(keys)
    return {key: number() for key in keys[: pick.randint(0, 20)]}


def _result(function: Callable[..., Any], given: Any) -> tuple[str, Any]:
    """The value with its type, or the name of the error."""
    try:
        value = function(copy.deepcopy(given))
    except Exception as error:
        return "error", type(error).__name__
    return type(value).__name__, value
