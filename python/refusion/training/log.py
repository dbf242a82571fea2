"""What a run tells: a progress bar, `log.jsonl`, and a plot of it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from ..checkpoint import write_atomically


class RunLog:
    """Bar and JSON lines of the first process; the others are silent (`path` None)."""

    def __init__(
        self, path: Path | None, step: int, max_steps: int | None, max_minutes: float | None, minutes: float
    ) -> None:
        self.path = path
        self._minutes, self._started, self._max_minutes = minutes, time.monotonic(), max_minutes
        if path is not None:
            _forget_after(path, step)
        shown = path is not None and sys.stderr.isatty()
        self._by_time = max_steps is None
        total = max_steps if max_steps is not None else 60 * (max_minutes or 0)
        self._bar = tqdm(
            total=total,
            initial=step if max_steps is not None else 60 * minutes,
            disable=not shown,
            dynamic_ncols=True,
            unit="step" if max_steps is not None else "s",
            bar_format="{percentage:3.0f}% |{bar}| {postfix} left {remaining}",
        )

    @property
    def minutes(self) -> float:
        """Training time so far, that of earlier sittings of the same run included."""
        return self._minutes + (time.monotonic() - self._started) / 60

    def advance(self) -> None:
        if self._by_time:
            self._bar.n = min(60 * self.minutes, self._bar.total)
            self._bar.refresh()
        else:
            self._bar.update()

    def write(self, record: dict[str, Any]) -> None:
        """One line in the log and, without a terminal, on standard error."""
        if self.path is None:
            return
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        text = "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in record.items())
        if self._bar.disable:
            print(text, file=sys.stderr, flush=True)
        elif "exact" in record:
            self._bar.write(text)
        else:
            self._bar.set_postfix_str(text, refresh=False)

    def say(self, text: str) -> None:
        if self.path is not None:
            self._bar.write(text, file=sys.stderr) if not self._bar.disable else print(
                text, file=sys.stderr, flush=True
            )

    def close(self) -> None:
        self._bar.close()
        if self.path is not None:
            plot(self.path, self.path.with_name("loss.png"))


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a `log.jsonl`; a last line that a crash cut short is left out."""
    records = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                records.append(json.loads(line))
            except ValueError:
                break
    return records


def _forget_after(path: Path, step: int) -> None:
    """Drops what an interrupted run had logged beyond the state that is continued."""
    kept = "".join(json.dumps(r) + "\n" for r in read_log(path) if r["step"] <= step)
    write_atomically(path, lambda file: file.write_text(kept, encoding="utf-8"))


def plot(log: Path, picture: Path) -> bool:
    """Draws loss parts and exact match over tokens; returns whether there was something to draw and matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    records = read_log(log)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    losses = [r for r in records if "loss" in r]
    if not losses:
        return False
    for name, style in (("loss", "-"), ("next_token", "--"), ("masked", ":")):
        values = [r[name] for r in losses]
        if any(values):
            axes.plot([r["tokens"] for r in losses], values, style, label=name.replace("_", " "))
    axes.set(xlabel="tokens", ylabel="loss", ylim=(0, None))
    scores = [r for r in records if "exact" in r]
    if scores:
        right = axes.twinx()
        right.plot(
            [r["tokens"] for r in scores], [r["exact"] for r in scores], "o-", color="tab:green", label="exact match"
        )
        right.set(ylabel="exact match on held-out items", ylim=(0, 1))
    figure.legend(loc="outside upper center", ncols=4)
    write_atomically(picture, lambda file: figure.savefig(file, format="png", dpi=120))
    return True
