"""The comparison for people: a table, and accuracy over speed as a picture."""

from __future__ import annotations

from pathlib import Path

from ..checkpoint import write_atomically
from .compare import Comparison

COLOURS = {"ar": "tab:blue", "mdm": "tab:orange", "refusion": "tab:green"}
NAMES = {"ar": "autoregressive, cached", "mdm": "masked diffusion", "refusion": "ReFusion"}
DEFINITIONS = (
    "accuracy: answers that pass hidden tests, ± one standard error; tokens: those of the returned text (no fill, no "
    "EOS, no prompt);\nseconds: of decoding, one sequence at a time, prompts included; settings take turns on every "
    "problem."
)


def table(comparison: Comparison) -> str:
    """One line a setting, in Markdown."""
    lines = [
        "| decoder | problems | accuracy | tokens/forward | tokens/s | over AR | over MDM |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in comparison.rows:
        s = row.summary
        ratios = [comparison.speedup(row, over) for over in (comparison.autoregressive, comparison.masked)]
        lines.append(
            f"| {row.name} | {s.items} | {100 * s.accuracy:.1f} ± {100 * s.error:.1f} % | {s.tokens_per_forward:.2f} "
            f"| {s.tokens_per_second:.0f} | {ratios[0]:.2f} | {ratios[1]:.2f} |"
        )
    return "\n".join([*lines, "", *_training(comparison), f"precision: {comparison.dtype}", DEFINITIONS])


def _training(comparison: Comparison) -> list[str]:
    """How long each model was trained, since accuracy means little without it."""
    lines = []
    for variant, facts in comparison.training.items():
        runs = []
        while facts:
            runs.append(f"{facts['steps']} steps, {facts['tokens'] / 1e6:.1f} million tokens")
            if facts["objective"] != variant:
                runs[-1] += f" {NAMES[facts['objective']].removesuffix(', cached')}"
            facts = facts.get("started_from", {})
        if runs:
            lines.append(f"{NAMES[variant].removesuffix(', cached')}: trained for {', after '.join(runs)}")
    return lines


def plot(comparison: Comparison, picture: Path) -> bool:
    """One point a setting; returns False where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for variant, colour in COLOURS.items():
        rows = [r for r in comparison.rows if r.variant == variant]
        axes.errorbar(
            [r.summary.tokens_per_second for r in rows],
            [100 * r.summary.accuracy for r in rows],
            [100 * r.summary.error for r in rows],
            fmt="o",
            capsize=3,
            color=colour,
            label=NAMES[variant],
        )
        for number, row in enumerate(rows):  # labels at different heights: settings of one decoder lie close together
            label = row.name.removeprefix("MDM, ").removeprefix("ReFusion ").removesuffix(" (recommended)")
            at = (row.summary.tokens_per_second, 100 * row.summary.accuracy)
            down = at[1] > 50
            offset = (4, (-14 if down else 8) + (-10 if down else 10) * number)
            axes.annotate(label, at, xytext=offset, textcoords="offset points", fontsize=7)
    axes.set(xscale="log", xlabel="tokens per second", ylabel="problems solved (%)", ylim=(-4, 104))
    axes.margins(x=0.12)  # labels stand right of their points
    axes.grid(alpha=0.3)
    axes.legend(loc="center left")
    write_atomically(picture, lambda file: figure.savefig(file, format="png", dpi=120))
    return True
