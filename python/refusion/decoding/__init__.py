"""Decoding: plan, verify, refine, commit."""

from .api import generate, stream
from .config import ARConfig, DecodeConfig, MDMConfig
from .result import Event, Result, Stats

__all__ = ["ARConfig", "DecodeConfig", "Event", "MDMConfig", "Result", "Stats", "generate", "stream"]
