"""Tokenizers of the tasks: byte-level BPE trained on their texts, so that any other text is still encodable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

MASK, EOS, PAD = "<mask>", "<eos>", "<pad>"


def train_bpe(
    texts: Iterable[str], vocab_size: int, *, more_tokens: Sequence[str] = (), pieces: str | None = None
) -> tokenizers.Tokenizer:
    """Trains a tokenizer whose first ids are those of `<mask>`, `<eos>`, `<pad>` and `more_tokens`.

    Args:
        texts: to be trained on.
        vocab_size: tokens, at most.
        more_tokens: further special tokens.
        pieces: regular expression of what no token reaches beyond; None: words, as GPT-2 cuts them.
    """
    core = tokenizers.Tokenizer(models.BPE())
    if pieces is None:
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        split = pre_tokenizers.Split(tokenizers.Regex(pieces), behavior="isolated")
        core.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[MASK, EOS, PAD, *more_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return core
