"""Benchmarks: every op and whole decodes against what a user would otherwise run, side by side in one run."""
