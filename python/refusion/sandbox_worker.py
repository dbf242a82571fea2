"""The process in which `refusion.sandbox` runs code; started with `python -I -S`, imports nothing of the package.

Reads one JSON request a line. Each is run in a forked child of its own session with resource limits, so that what a
program does to its interpreter ends with it; the child's group is killed after its answer, or when time is up.
"""

from __future__ import annotations

import ast
import bisect
import builtins
import collections
import contextlib
import functools
import heapq
import itertools
import json
import math
import os
import re
import resource
import select
import signal
import string
import sys
import time
import types
from collections.abc import Sequence
from typing import Any

MODULES: dict[str, tuple[types.ModuleType, list[str]]] = {
    "math": (math, [n for n in dir(math) if not n.startswith("_")]),
    "itertools": (itertools, [n for n in dir(itertools) if not n.startswith("_")]),
    "functools": (functools, ["reduce", "cmp_to_key", "lru_cache"]),
    "collections": (collections, ["Counter", "defaultdict", "deque", "OrderedDict"]),
    "string": (string, ["ascii_letters", "ascii_lowercase", "ascii_uppercase", "digits", "punctuation", "whitespace"]),
    "re": (re, ["sub", "findall", "match", "fullmatch", "search", "split"]),
    "heapq": (heapq, ["heapify", "heappush", "heappop", "nlargest", "nsmallest", "merge"]),
    "bisect": (bisect, ["bisect", "bisect_left", "bisect_right", "insort"]),
}
# fmt: off
BUILTINS = [
    "abs", "all", "any", "ascii", "bin", "bool", "bytes", "callable", "chr", "complex", "dict", "divmod",
    "enumerate", "filter", "float", "frozenset", "hash", "hex", "int", "isinstance", "iter", "len", "list",
    "map", "max", "min", "next", "oct", "ord", "pow", "range", "repr", "reversed", "round", "set", "slice",
    "sorted", "str", "sum", "tuple", "zip", "True", "False", "None", "ArithmeticError", "AssertionError",
    "AttributeError", "Exception", "IndexError", "KeyError", "LookupError", "NameError", "NotImplementedError",
    "OverflowError", "RuntimeError", "StopIteration", "TypeError", "ValueError", "ZeroDivisionError",
]
# fmt: on
# Attributes by which a value leads to the interpreter, without an underscore in front.
REVEALING = {"format", "format_map", "mro"}
REVEALING_PREFIXES = ("_", "f_", "tb_", "gi_", "cr_", "ag_", "co_")
MOST_OUTPUT = 100_000  # characters printed or in an answer
NOBODY = 65534


class Forbidden(Exception):
    """The code uses something that is not offered."""


class TooMuchOutput(Exception):
    """The code prints without end."""


def check_syntax(tree: ast.AST) -> None:
    """Refuses names and attributes that lead out of the program, classes, and modules that are not offered."""
    for node in ast.walk(tree):
        names = [getattr(node, key, None) for key in ("id", "name", "arg", "module")]
        if any(isinstance(n, str) and n.startswith("__") for n in names):
            raise Forbidden("name with two underscores")
        if isinstance(node, ast.Attribute) and (node.attr in REVEALING or node.attr.startswith(REVEALING_PREFIXES)):
            raise Forbidden(f"attribute {node.attr}")
        if isinstance(node, (ast.ClassDef, ast.MatchClass, ast.AsyncFunctionDef, ast.Await)):
            raise Forbidden(type(node).__name__)
        if isinstance(node, ast.Import):
            for alias in node.names:
                offered(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = offered(node.module)
            for alias in node.names:
                if alias.name not in MODULES[module][1]:
                    raise Forbidden(f"import of {module}.{alias.name}")


def offered(name: str | None) -> str:
    if name is None or name not in MODULES:
        raise Forbidden(f"import of {name}")
    return name


def import_offered(name: str, *_: Any, **__: Any) -> types.SimpleNamespace:
    """Stands in for `__import__`: the offered names of a module, not the module, whose globals hold others."""
    module, names = MODULES[offered(name)]
    return types.SimpleNamespace(**{n: getattr(module, n) for n in names})


def make_builtins() -> dict[str, Any]:
    printed = 0

    def count_output(*values: Any, **_: Any) -> None:
        nonlocal printed
        printed += sum(len(str(v)) for v in values) + 1
        if printed > MOST_OUTPUT:
            raise TooMuchOutput

    def type_of(value: Any) -> type:
        return type(value)

    return {n: getattr(builtins, n) for n in BUILTINS} | {
        "print": count_output,
        "type": type_of,
        "__import__": import_offered,
    }


def same(value: Any, expected: Any) -> bool:
    """Equal in value and type, all the way down; JSON has no tuples, so a tuple is not a list."""
    if type(value) is not type(expected):
        return False
    if isinstance(expected, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(expected, dict):
        types_of = {(type(k), k) for k in value}
        return types_of == {(type(k), k) for k in expected} and all(same(value[k], v) for k, v in expected.items())
    return value == expected or (value != value and expected != expected)


def revive(value: Any) -> Any:
    """Undoes `refusion.sandbox.pack`: dicts travel as lists of pairs, so that keys keep their types."""
    if isinstance(value, list):
        return [revive(v) for v in value]
    if isinstance(value, dict):
        return {revive(k): revive(v) for k, v in value["pairs"]}
    return value


def judge(code: str, tests: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Runs the code and its tests in this process: (verdict, detail)."""
    try:
        tree = ast.parse(code)
        check_syntax(tree)
        scope = {"__builtins__": make_builtins(), "__name__": "answer"}
        exec(compile(tree, "<answer>", "exec"), scope)
        for index, test in enumerate(tests):
            function = scope.get(test["function"])
            if not callable(function):
                return "error", f"no function {test['function']}"
            value = function(*revive(test["args"]))
            if not same(value, revive(test["expect"])):
                return "wrong", f"test {index}"
        return "passed", ""
    except SyntaxError as error:
        return "error", f"SyntaxError: {error.msg}"
    except Forbidden as error:
        return "forbidden", str(error)
    except MemoryError:
        return "memory", ""
    except TooMuchOutput:
        return "output", ""
    except BaseException as error:
        return "error", type(error).__name__


def confine(timeout: float, memory: int) -> None:
    """Limits of a child: processor seconds, memory, no new files, descriptors or processes, another user than root."""
    seconds = math.ceil(timeout) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.getuid() == 0:
        with contextlib.suppress(OSError):  # a container may map one user only; the other limits stay
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def run_child(request: dict[str, Any], answer: int) -> None:
    os.setsid()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    sink = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(sink, descriptor)
    confine(request["timeout"], request["memory"])
    verdict = judge(request["code"], request["tests"])
    os.write(answer, json.dumps(verdict).encode()[:4096])


def run(request: dict[str, Any]) -> tuple[str, str]:
    """(verdict, detail) of one request, from a child that does not outlive it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            run_child(request, writing)
        finally:
            os._exit(0)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], request["timeout"])
    text = os.read(reading, 4096) if ready else b""
    for kill in (os.killpg, os.kill):  # the group does not exist before the child's setsid
        with contextlib.suppress(OSError):
            kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(reading)
    if not ready:
        return "timeout", f"{request['timeout']} s"
    if text:
        kind, detail = json.loads(text)
        return kind, detail
    return "crashed", f"status {status}"


def main() -> None:
    for line in sys.stdin:
        begin = time.monotonic()
        verdict, detail = run(json.loads(line))
        sys.stdout.write(json.dumps([verdict, detail, time.monotonic() - begin]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
