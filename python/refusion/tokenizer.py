"""Text to ids and back with a checkpoint's `tokenizer.json`, and its chat template where there is one."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from .checkpoint import CheckpointError

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Tokenizer:
    """A `tokenizers.Tokenizer` together with the chat template of its checkpoint."""

    def __init__(
        self, core: tokenizers.Tokenizer, chat_template: str | None = None, special: Mapping[str, str] | None = None
    ):
        self.core = core
        self.chat_template = chat_template
        self._special = dict(special or {})

    @classmethod
    def load(cls, directory: str | Path) -> Tokenizer:
        """Reads `tokenizer.json`, and the template from `chat_template.jinja` or `tokenizer_config.json`.

        Raises `CheckpointError` when the tokenizer is missing or damaged.
        """
        directory = Path(directory)
        file = directory / "tokenizer.json"
        if not file.is_file():
            raise CheckpointError(f"{file}: missing")
        try:
            core = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"{file}: damaged: {error}") from None
        settings = _read(directory / "tokenizer_config.json")
        template = settings.get("chat_template")
        if (directory / "chat_template.jinja").is_file():
            template = (directory / "chat_template.jinja").read_text(encoding="utf-8")
        special = {name: _content(settings.get(name)) for name in ("bos_token", "eos_token", "pad_token")}
        return cls(core, template if isinstance(template, str) else None, {k: v for k, v in special.items() if v})

    @property
    def vocab_size(self) -> int:
        return self.core.get_vocab_size()

    @functools.cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that have no text: mask, EOS, padding and the like."""
        added = self.core.get_added_tokens_decoder()
        return frozenset(i for i, token in added.items() if token.special)

    def encode(self, text: str) -> list[int]:
        """Ids of the text, without special tokens added around it."""
        return self.core.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; special tokens (EOS, mask) have none."""
        return self.core.decode(list(ids), skip_special_tokens=True)

    def chat(self, messages: Sequence[Mapping[str, str]], *, answer_follows: bool = True) -> str:
        """Renders messages (`role`, `content`) with the chat template; raises `ValueError` when there is none.

        Args:
            messages: the conversation.
            answer_follows: end with the header of the assistant's turn.
        """
        if self.chat_template is None:
            raise ValueError("the checkpoint has no chat template")
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _raise
        template = environment.from_string(self.chat_template)
        return template.render(messages=list(messages), add_generation_prompt=answer_follows, **self._special)

    def prompt(self, text: str, *, chat: bool | None = None) -> list[int]:
        """Ids of a user's prompt: through the chat template when `chat`, or when None and there is one."""
        if chat or (chat is None and self.chat_template is not None):
            text = self.chat([{"role": "user", "content": text}])
        return self.encode(text)


class TextStream:
    """Turns a growing prefix of ids into a growing text, holding back what another token may still change."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._shown = 0

    def push(self, prefix: Sequence[int]) -> str:
        """New text of the prefix since the last call; an unfinished character waits."""
        return self._advance(self._tokenizer.decode(prefix).rstrip(REPLACEMENT))

    def finish(self, ids: Sequence[int]) -> str:
        """The rest of the text."""
        return self._advance(self._tokenizer.decode(ids))

    def _advance(self, text: str) -> str:
        new, self._shown = text[self._shown :], max(self._shown, len(text))
        return new


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not readable as JSON: {error}") from None


def _content(token: Any) -> str | None:
    """A special token is stored as its text or as an object with `content`."""
    return token.get("content") if isinstance(token, dict) else token


def _raise(message: str) -> None:
    raise ValueError(f"chat template: {message}")
