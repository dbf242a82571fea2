"""Hostile programs: each gets a named verdict, and none reaches files, processes or this test."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from refusion.sandbox import MEGABYTE, Sandbox, pack, read_tests, run_checked, write_tests
from refusion.tasks.checks import mutants

TEST = [{"function": "f", "args": [[3, 1, 2]], "expect": [1, 2, 3]}]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(timeout=1.0) as running:
        yield running


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("def f(x):\n    return sorted(x)\n", "passed"),
        ("import math, re\nfrom collections import Counter\ndef f(x):\n    return sorted(Counter(x))\n", "passed"),
        ("def f(x):\n    return x\n", "wrong"),
        ("def f(x):\n    return tuple(sorted(x))\n", "wrong"),
        ("def f(x):\n    return [float(v) for v in sorted(x)]\n", "wrong"),
        ("def g(x):\n    return x\n", "error"),
        ("f = 3\n", "error"),
        ("def f(x:\n", "error"),
        ("def f(x):\n    return f(x)\n", "error"),
        ("def f(x):\n    return x[7]\n", "error"),
        ("raise Exception\n", "error"),
    ],
)
def test_ordinary_answers(sandbox: Sandbox, code: str, kind: str) -> None:
    assert sandbox.check(code, TEST).kind == kind


HOSTILE = {
    "endless loop": ("while True: pass", {"timeout"}),
    "endless loop that catches": (
        "while True:\n    try:\n        while True: pass\n    except Exception: pass",
        {"timeout"},
    ),
    "memory": ("x = [0]\nwhile True: x = x + x", {"memory"}),
    "memory at once": ("x = 'a' * 10**12", {"memory"}),
    "huge number": ("x = 10 ** 10 ** 9", {"timeout", "memory"}),
    "huge output": ("while True: print('x' * 1000)", {"output"}),
    "slow pattern": ("from re import match\nmatch('(a+)+$', 'a' * 60 + 'b')", {"timeout"}),
    "import os": ("import os\nos.fork()", {"forbidden"}),
    "fork bomb": ("from os import fork\nwhile True: fork()", {"forbidden"}),
    "socket": ("import socket", {"forbidden"}),
    "signal": ("import signal\nsignal.signal(15, lambda *a: None)", {"forbidden"}),
    "kill the parent": ("import os\nos.kill(os.getppid(), 9)", {"forbidden"}),
    "exit": ("import sys\nsys.exit(0)", {"forbidden"}),
    "submodule": ("import collections.abc", {"forbidden"}),
    "module inside module": ("import re\nre.enum.sys.exit()", {"error"}),
    "dunder import": ("__import__('os')", {"forbidden"}),
    "relative import": ("from . import os", {"forbidden"}),
    "raise SystemExit": ("raise SystemExit", {"error"}),
    "open": ("open('/tmp/refusion-sandbox-test', 'w').write('x')", {"error"}),
    "exec": ("exec('import os')", {"error"}),
    "eval": ("eval('1')", {"error"}),
    "getattr": ("getattr(1, '_' + '_class__')", {"error"}),
    "subclasses": ("().__class__.__base__.__subclasses__()", {"forbidden"}),
    "globals of a function": ("def g(): pass\ng.__globals__", {"forbidden"}),
    "frame of a generator": ("g = (x for x in [1])\ng.gi_frame.f_back", {"forbidden"}),
    "format": ("'{0.__class__}'.format(1)", {"forbidden"}),
    "pattern": ("match 1:\n    case int(real=x): pass", {"forbidden"}),
    "class": ("class A: pass", {"forbidden"}),
    "new type": ("type('A', (), {})", {"error"}),
    "null byte": ("\0", {"error"}),
    "deep source": ("(" * 5000 + ")" * 5000, {"error", "memory"}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_programs(sandbox: Sandbox, name: str) -> None:
    code, kinds = HOSTILE[name]
    begin = time.monotonic()
    assert sandbox.check(code, TEST).kind in kinds
    assert time.monotonic() - begin < 6
    assert sandbox.check("def f(x):\n    return sorted(x)\n", TEST).passed  # still at work
    assert not Path("/tmp/refusion-sandbox-test").exists()


# What the limits stop when the syntax check is passed by: the same child, handed the real modules.
LEAKED = """
import sys
sys.argv = ["worker"]
sys.path.insert(0, {folder!r})
import sandbox_worker as worker
import os, socket, signal
worker.check_syntax = lambda tree: None
worker.MODULES["os"] = (os, ["fork", "open", "kill", "getppid", "O_CREAT", "O_WRONLY", "getuid", "write"])
worker.MODULES["socket"] = (socket, ["socket"])
worker.MODULES["signal"] = (signal, ["signal", "alarm"])
print(worker.run({{"code": {code!r}, "tests": [], "timeout": 1.0, "memory": 268435456}}))
"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import os\nos.open('/tmp/refusion-sandbox-test', os.O_CREAT | os.O_WRONLY)", "OSError"),
        ("import socket\nsocket.socket()", "OSError"),
        ("import signal\nsignal.signal(15, lambda *a: None)\nwhile True: pass", "timeout"),
    ],
)
def test_limits_hold_behind_the_syntax_check(code: str, expected: str) -> None:
    assert expected in _run_leaked(code)
    assert not Path("/tmp/refusion-sandbox-test").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="as another user the limit on processes counts those of the user")
@pytest.mark.parametrize("code", ["import os\nos.fork()", "import os\nos.kill(os.getppid(), 9)"])
def test_user_nobody_can_neither_fork_nor_kill(code: str) -> None:
    assert "Error" in _run_leaked(code)


def _run_leaked(code: str) -> str:
    import subprocess
    import sys

    import refusion.sandbox

    folder = str(Path(refusion.sandbox.__file__).parent)
    program = LEAKED.format(folder=folder, code=code)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_programs_do_not_see_each_other(sandbox: Sandbox) -> None:
    assert sandbox.check("import math\nmath.pi = 3\ndef f(x):\n    return x\n", TEST).kind == "wrong"
    code = "import math\ndef f(x):\n    return math.pi > 3.1\n"
    assert sandbox.check(code, [{"function": "f", "args": [0], "expect": True}]).passed


def test_a_killed_worker_is_replaced() -> None:
    with Sandbox() as sandbox:
        assert sandbox.check("def f(x):\n    return sorted(x)\n", TEST).passed
        worker = sandbox._worker
        assert worker is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        assert sandbox.check("def f(x):\n    return sorted(x)\n", TEST).passed


def test_types_survive_the_journey() -> None:
    value = {1: True, "1": [1.5, None, {"a": {}}]}
    code = "def f(x):\n    return x\n"
    tests = [{"function": "f", "args": [value], "expect": value}]
    assert run_checked(code, tests).passed
    assert read_tests(json.loads(json.dumps(write_tests(tests)))) == tests
    assert run_checked(code, [{"function": "f", "args": [{1: 1}], "expect": {True: 1}}]).kind == "wrong"
    assert run_checked(code, [{"function": "f", "args": [1], "expect": True}]).kind == "wrong"
    with pytest.raises(TypeError, match="set"):
        pack({1, 2})


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="timeout"):
        Sandbox(timeout=0)
    with pytest.raises(ValueError, match="memory"):
        Sandbox(memory=MEGABYTE)


def test_mutants_of_a_function_fail(sandbox: Sandbox) -> None:
    code = "def f(x):\n    x = [v + 3 for v in x if v > 1]\n    return x[::-1]\n"
    tests = [{"function": "f", "args": [[1, 5, 2]], "expect": [5, 8]}]
    assert sandbox.check(code, tests).passed
    assert all(not v.passed for v in sandbox.check_all((m, tests) for m in mutants(code)))
