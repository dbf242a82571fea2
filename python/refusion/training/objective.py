"""What is learned: the ReFusion objective (arXiv 2512.13586, section 3.3); on the same model, AR and masked diffusion.

An objective works in two steps, so that runs on any number of processes are the same run. `draw` makes the random
choices of a whole batch; `arrange` turns rows of tokens and their draws into model inputs, labels and weights. Both are
vectorised over rows, slots and tokens. Weights carry the per-sample part of the normalisation; the two counts of
`TrainingBatch`, taken over everything that makes one optimiser step, divide the two parts of the loss.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention import DenseAttention
from ..model import Qwen3

IGNORED = -100  # label of a row without a target
SLOT_SIZES = (4, 8, 16, 32)
EPSILON = 1e-3  # lowest probability of masking


@dataclass(frozen=True)
class TokenBatch:
    """Right-padded samples.

    Attributes:
        tokens: int64 [batch, tokens], prompt, answer, padding.
        prompt_lengths: int64 [batch].
        answer_lengths: int64 [batch]; 0 means that the sample carries no loss and is not counted.
    """

    tokens: Tensor
    prompt_lengths: Tensor
    answer_lengths: Tensor

    @classmethod
    def from_mask(cls, tokens: Tensor, attention_mask: Tensor, prompt_lengths: Tensor) -> TokenBatch:
        """From tokens and an attention mask [batch, tokens] (1: prompt or answer, then 0: padding)."""
        prompts = prompt_lengths.reshape(-1)
        return cls(tokens, prompts, (attention_mask.sum(1) - prompts).clamp(min=0))


@dataclass(frozen=True)
class Draws:
    """The random choices for a batch; what an objective does not use is empty ([batch, 0]).

    Attributes:
        probability: float32 [batch], with which a slot or token is masked.
        slot_sizes: int64 [batch], slot size of each sample (ReFusion).
        masked: bool [batch, slots] (ReFusion) or [batch, answer tokens] (MDM).
        order: [batch, slots], any sortable type; clean slots go in ascending order of this (ReFusion).
    """

    probability: Tensor
    slot_sizes: Tensor
    masked: Tensor
    order: Tensor

    def rows(self, index: Tensor) -> Draws:
        """The draws of some samples."""
        return Draws(*(getattr(self, f.name)[index] for f in fields(self)))


@dataclass(frozen=True)
class TrainingBatch:
    """Inputs of a forward pass and what its outputs are compared with.

    Attributes:
        input_ids, position_ids, labels: int64 [batch, tokens], rows in the order the model sees them; label -100: none.
        weights: float32 [batch, tokens], of each row's cross entropy, before division by its part's count.
        diffusion: bool [batch, tokens], the row belongs to the masked part of the loss, else to the next-token part.
        visible: bool [batch, 1, tokens, tokens], or None: causal by row order.
        targets: int64 [], next-token targets: divides the next-token part.
        samples: int64 [], samples with an answer: divides the masked part.
    """

    input_ids: Tensor
    position_ids: Tensor
    labels: Tensor
    weights: Tensor
    diffusion: Tensor
    visible: Tensor | None
    targets: Tensor
    samples: Tensor


class Objective(Protocol):
    """How samples become a `TrainingBatch`."""

    def draw(self, answer_lengths: Tensor, generator: torch.Generator) -> Draws:
        """Random choices for samples with these answer lengths [batch], on the generator's device."""
        ...

    def arrange(self, batch: TokenBatch, draws: Draws) -> TrainingBatch: ...


class ReFusionObjective:
    """Slots of the answer are masked or clean; clean ones come first, in random order (issue 3, DESIGN section 6).

    Args:
        mask_token_id: input of a masked row.
        slot_sizes: one is drawn uniformly for each sample.
    """

    def __init__(self, mask_token_id: int, slot_sizes: tuple[int, ...] = SLOT_SIZES) -> None:
        if not slot_sizes or min(slot_sizes) < 1:
            raise ValueError(f"slot_sizes must be positive integers, at least one, got {slot_sizes!r}")
        self.mask_token_id = mask_token_id
        self.slot_sizes = slot_sizes

    def draw(self, answer_lengths: Tensor, generator: torch.Generator) -> Draws:
        device, batch = generator.device, len(answer_lengths)
        sizes = torch.tensor(self.slot_sizes, device=device)
        slots = -(-int(answer_lengths.max()) // min(self.slot_sizes)) if batch else 0
        probability = _probability(batch, generator)
        chosen = sizes[torch.randint(len(self.slot_sizes), (batch,), generator=generator, device=device)]
        masked = torch.rand(batch, slots, generator=generator, device=device) < probability[:, None]
        # float64: ties would favour the slot on the left.
        order = torch.rand(batch, slots, generator=generator, device=device, dtype=torch.float64)
        return Draws(probability, chosen, masked, order)

    def arrange(self, batch: TokenBatch, draws: Draws) -> TrainingBatch:
        tokens, (rows, length) = batch.tokens, batch.tokens.shape
        position = torch.arange(length, device=tokens.device).expand(rows, length)
        offset = position - batch.prompt_lengths[:, None]  # within the answer
        sizes, answers = draws.slot_sizes[:, None], batch.answer_lengths[:, None]
        in_answer = (offset >= 0) & (offset < answers)
        slot = torch.where(in_answer, offset, 0) // sizes
        has_slots = draws.masked.shape[1] > 0
        masked = in_answer & draws.masked.gather(1, slot) if has_slots else torch.zeros_like(in_answer)
        clean = in_answer & ~masked
        has_next = clean & (offset + 1 < answers) & ((offset + 1) % sizes != 0)
        following = torch.cat((tokens[:, 1:], tokens[:, :1]), 1)
        labels = torch.where(masked, tokens, torch.where(has_next, following, IGNORED))

        # One integer a token sorts prompt < clean slots by rank < masked slots < padding; position breaks ties.
        rank = draws.order.argsort(1).argsort(1).gather(1, slot) + 1 if has_slots else slot
        last = draws.order.shape[1] + 1
        group = torch.where(clean, rank, torch.where(masked, last, torch.where(offset < 0, 0, last + 1)))
        order = (group * length + position).argsort(1)

        def by_row(values: Tensor) -> Tensor:
            return values.gather(1, order)

        weight = 1.0 / (draws.probability[:, None] * answers.clamp(min=1))
        weights = torch.where(masked, weight, has_next.to(weight.dtype))
        inputs = tokens.masked_fill(masked, self.mask_token_id)
        return TrainingBatch(
            by_row(inputs),
            order,
            by_row(labels),
            by_row(weights),
            by_row(masked),
            None,
            has_next.sum(),
            (answers > 0).sum(),
        )


class ARObjective:
    """The next token of the answer, the first one from the last row of the prompt; mean over targets."""

    def draw(self, answer_lengths: Tensor, generator: torch.Generator) -> Draws:
        device, batch = generator.device, len(answer_lengths)
        none = torch.empty(batch, 0, device=device)
        return Draws(
            torch.ones(batch, device=device), torch.ones(batch, dtype=torch.int64, device=device), none.bool(), none
        )

    def arrange(self, batch: TokenBatch, draws: Draws) -> TrainingBatch:
        tokens, (rows, length) = batch.tokens, batch.tokens.shape
        position = torch.arange(length, device=tokens.device).expand(rows, length)
        offset = position - batch.prompt_lengths[:, None]
        target = (offset >= -1) & (offset + 1 < batch.answer_lengths[:, None])
        labels = torch.where(target, torch.cat((tokens[:, 1:], tokens[:, :1]), 1), IGNORED)
        samples = (batch.answer_lengths > 0).sum()
        return TrainingBatch(
            tokens, position, labels, target.float(), torch.zeros_like(target), None, target.sum(), samples
        )


class MDMObjective:
    """Masked diffusion as LLaDA trains it (arXiv 2502.09992): bidirectional, weighted by 1 / probability."""

    def __init__(self, mask_token_id: int) -> None:
        self.mask_token_id = mask_token_id

    def draw(self, answer_lengths: Tensor, generator: torch.Generator) -> Draws:
        device, batch = generator.device, len(answer_lengths)
        probability = _probability(batch, generator)
        longest = int(answer_lengths.max()) if batch else 0
        masked = torch.rand(batch, longest, generator=generator, device=device) < probability[:, None]
        return Draws(
            probability,
            torch.ones(batch, dtype=torch.int64, device=device),
            masked,
            torch.empty(batch, 0, device=device),
        )

    def arrange(self, batch: TokenBatch, draws: Draws) -> TrainingBatch:
        tokens, (rows, length) = batch.tokens, batch.tokens.shape
        position = torch.arange(length, device=tokens.device).expand(rows, length)
        offset = position - batch.prompt_lengths[:, None]
        answers = batch.answer_lengths[:, None]
        in_answer = (offset >= 0) & (offset < answers)
        if draws.masked.shape[1]:
            masked = in_answer & draws.masked.gather(1, torch.where(in_answer, offset, 0))
        else:
            masked = torch.zeros_like(in_answer)
        weight = 1.0 / (draws.probability[:, None] * answers.clamp(min=1))
        # Padding queries see the sample too: their outputs are not used, and a row that sees nothing would be NaN.
        visible = (offset < answers)[:, None, None, :].expand(rows, 1, length, length)
        return TrainingBatch(
            tokens.masked_fill(masked, self.mask_token_id),
            position,
            torch.where(masked, tokens, IGNORED),
            torch.where(masked, weight, 0.0),
            masked,
            visible,
            torch.zeros((), dtype=torch.int64, device=tokens.device),
            (batch.answer_lengths > 0).sum(),
        )


def make_objective(name: str, mask_token_id: int, slot_sizes: tuple[int, ...] = SLOT_SIZES) -> Objective:
    """'refusion', 'ar' or 'mdm'; raises `ValueError` for another name."""
    if name == "refusion":
        return ReFusionObjective(mask_token_id, slot_sizes)
    if name == "ar":
        return ARObjective()
    if name == "mdm":
        return MDMObjective(mask_token_id)
    raise ValueError(f"objective must be 'refusion', 'ar' or 'mdm', got {name!r}")


def loss_parts(
    model: Qwen3, batch: TrainingBatch, targets: Tensor | int, samples: Tensor | int
) -> tuple[Tensor, Tensor]:
    """Next-token and masked part of the loss, scalars; their sum is what is minimised.

    Args:
        model: the model; its LM head runs on the rows that have a target only.
        batch: one micro-batch.
        targets, samples: the counts over the whole optimiser step. A count of 0 gives a part of 0.

    The cross entropy is taken in float32, or float64 for a float64 model.
    """
    hidden = model.hidden(batch.input_ids, DenseAttention(model.config, batch.position_ids, batch.visible))
    labels = batch.labels.flatten()
    rows = (labels != IGNORED).nonzero().squeeze(1)
    logits = model.logits(hidden.flatten(0, 1)[rows])
    wide = logits if logits.dtype == torch.float64 else logits.float()
    entropy = F.cross_entropy(wide, labels[rows], reduction="none")
    # Multiplied apart: a product in float32 would be the only rounding above float64 in a float64 run.
    weighted = entropy * batch.weights.flatten()[rows].to(entropy.dtype)
    diffusion = batch.diffusion.flatten()[rows]
    count = [torch.as_tensor(n, device=entropy.device).clamp(min=1) for n in (targets, samples)]
    next_token = torch.where(diffusion, 0.0, weighted).sum() / count[0]
    return next_token, torch.where(diffusion, weighted, 0.0).sum() / count[1]


def _probability(batch: int, generator: torch.Generator) -> Tensor:
    t = torch.rand(batch, generator=generator, device=generator.device)
    return (1 - EPSILON) * t + EPSILON
