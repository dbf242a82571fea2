"""Runs code that a model wrote, and says whether it does what tests demand.

Layers: the program's syntax is checked first (no attribute or name that leads to the interpreter, no classes, imports
from a short list), builtins are few, and it runs in a child process of its own session with limits on processor time,
memory, file size (0), descriptors (no new ones: no files, no sockets) and processes (no new ones), as user nobody
when the caller is root; the child's process group is killed when its time is up.

What this is not: a boundary against an attacker who studies it. There is no seccomp filter, namespace or virtual
machine; a fault of the interpreter that the syntax check does not foresee leaves a process that can use the
descriptors it already has (pipes and /dev/null), signal processes of its user when the caller is not root, and use
memory and a core up to its limits. It is meant for answers of a small model, which are wrong rather than hostile. Run
it in a container when that is not enough. POSIX only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

VERDICTS = ("passed", "wrong", "error", "timeout", "memory", "output", "forbidden", "crashed")
GRACE = 5.0  # seconds the worker may take beyond a check's own limit before it is replaced
MEGABYTE = 1 << 20
Test = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """Outcome of a check.

    Attributes:
        kind: 'passed'; 'wrong' (a value differs); 'error' (it raises, does not parse, or lacks a function); 'timeout';
            'memory'; 'output' (prints without end); 'forbidden' (uses something not offered); 'crashed' (it died).
        detail: what was wrong, for people.
        seconds: wall-clock time of the check.
    """

    kind: str
    detail: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.kind == "passed"


class Sandbox:
    """A warm worker that checks one program after another; a context manager.

    Args:
        timeout: seconds of wall-clock time of a check.
        memory: bytes of address space of a check.
    """

    def __init__(self, *, timeout: float = 1.0, memory: int = 256 * MEGABYTE) -> None:
        if not 0 < timeout < float("inf"):
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}")
        if memory < 32 * MEGABYTE:
            raise ValueError(f"memory must be at least {32 * MEGABYTE} bytes, got {memory!r}")
        self.timeout, self.memory = timeout, memory
        self._worker: subprocess.Popen[str] | None = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check(self, code: str, tests: Sequence[Test]) -> Verdict:
        """Runs `code`, then every test: {"function": name, "args": list, "expect": value}; stops at the first failure.

        Values are None, bool, int, float, str, list and dict, compared with their types. Raises `TypeError` for others.
        """
        request = {"code": code, "tests": write_tests(tests), "timeout": self.timeout, "memory": self.memory}
        worker = self._start()
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            worker.stdin.write(json.dumps(request) + "\n")
            worker.stdin.flush()
            ready, _, _ = select.select([worker.stdout], [], [], self.timeout + GRACE)
            line = worker.stdout.readline() if ready else ""
        except OSError:
            line = ""
        if not line:
            self.close()
            return Verdict("crashed", "the worker did not answer")
        kind, detail, seconds = json.loads(line)
        return Verdict(kind, detail, seconds)

    def check_all(self, items: Iterable[tuple[str, Sequence[Test]]]) -> list[Verdict]:
        """`check` of many programs with their tests."""
        return [self.check(code, tests) for code, tests in items]

    def close(self) -> None:
        """Ends the worker and what it may still run."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        try:
            os.killpg(worker.pid, signal.SIGKILL)
        except OSError:
            worker.kill()
        for pipe in (worker.stdin, worker.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        worker.wait()

    def _start(self) -> subprocess.Popen[str]:
        if self._worker is None or self._worker.poll() is not None:
            self._worker = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("sandbox_worker.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                cwd="/",
                env={},
                start_new_session=True,
            )
        return self._worker


def run_checked(code: str, tests: Sequence[Test], *, timeout: float = 1.0, memory: int = 256 * MEGABYTE) -> Verdict:
    """One check with a worker of its own; `Sandbox` keeps the worker for many."""
    with Sandbox(timeout=timeout, memory=memory) as sandbox:
        return sandbox.check(code, tests)


def read_tests(packed: Iterable[Test]) -> list[Test]:
    """Tests as a JSON file holds them, with their values packed, in the form that `Sandbox.check` takes."""
    return [{"function": t["function"], "args": unpack(t["args"]), "expect": unpack(t["expect"])} for t in packed]


def write_tests(tests: Iterable[Test]) -> list[Test]:
    """The inverse of `read_tests`."""
    return [{"function": t["function"], "args": pack(t["args"]), "expect": pack(t["expect"])} for t in tests]


def unpack(value: Any) -> Any:
    """The inverse of `pack`."""
    if isinstance(value, list):
        return [unpack(v) for v in value]
    if isinstance(value, dict):
        return {unpack(k): unpack(v) for k, v in value["pairs"]}
    return value


def pack(value: Any) -> Any:
    """A value as JSON that keeps its types: a dict becomes {"pairs": [[key, value], ...]}."""
    if isinstance(value, dict):
        return {"pairs": [[pack(k), pack(v)] for k, v in value.items()]}
    if isinstance(value, list):
        return [pack(v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a test may hold None, bool, int, float, str, list and dict, got {type(value).__name__}")
