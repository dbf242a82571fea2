"""The objectives against recorded batches (tests/data/train.safetensors) and by their statistics."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from safetensors.torch import load_file

import refusion
from golden import CHECKPOINT, DATA
from refusion.training.objective import (
    EPSILON,
    IGNORED,
    SLOT_SIZES,
    ARObjective,
    Draws,
    MDMObjective,
    ReFusionObjective,
    TokenBatch,
    loss_parts,
    make_objective,
)

MASK = 258


@pytest.fixture(scope="module")
def recorded() -> list[dict[str, torch.Tensor]]:
    stored = load_file(DATA / "train.safetensors")
    return [{k.split(".")[0]: v for k, v in stored.items() if k.endswith(f".{n}")} for n in range(4)]


@pytest.fixture(scope="module")
def exact_model() -> refusion.Qwen3:
    return refusion.load(CHECKPOINT, dtype="float64").requires_grad_(True)


def draws_of(case: dict[str, torch.Tensor]) -> Draws:
    """Slot sizes, masks and permutations, read back from what the recorded objective made of a batch."""
    rows, slots = len(case["tokens"]), 32
    masked, order, sizes = torch.zeros(rows, slots, dtype=torch.bool), torch.zeros(rows, slots), []
    for row in range(rows):
        prompt, answer = int(case["prompt_lengths"][row]), int(case["answer_length"][row])
        part = slice(prompt, prompt + answer)
        offset = case["position_ids"][row, part] - prompt
        hidden, targets = case["masked"][row, part].bool(), case["labels"][row, part] != IGNORED
        for size in sorted(SLOT_SIZES, reverse=True):  # the largest size that explains targets and masks
            inside = ((offset + 1) % size != 0) & (offset + 1 != answer)
            whole = all(len(set(hidden[offset // size == s].tolist())) == 1 for s in range(-(-answer // size)))
            if whole and torch.equal(inside[~hidden], targets[~hidden]):
                break
        sizes.append(size)
        for rank, slot in enumerate(dict.fromkeys((offset // size).tolist())):
            order[row, slot] = rank
        masked[row, offset[hidden] // size] = True
    return Draws(case["p_mask"].float(), torch.tensor(sizes), masked, order)


@pytest.mark.parametrize("number", range(4))
def test_recorded_batches(number: int, recorded: list[dict[str, torch.Tensor]], exact_model: refusion.Qwen3) -> None:
    case = recorded[number]
    batch = TokenBatch.from_mask(case["tokens"], case["attention_mask"], case["prompt_lengths"])
    assert torch.equal(batch.answer_lengths, case["answer_length"])
    arranged = ReFusionObjective(MASK).arrange(batch, draws_of(case))
    for name in ("input_ids", "position_ids", "labels"):
        assert torch.equal(getattr(arranged, name), case[name]), name
    assert torch.equal(arranged.diffusion, case["masked"].bool())

    exact_model.zero_grad()
    next_token, masked = loss_parts(exact_model, arranged, arranged.targets, arranged.samples)
    (next_token + masked).backward()
    assert next_token.item() == pytest.approx(case["ar_loss"].item(), abs=1e-6)
    assert (next_token + masked).item() == pytest.approx(case["loss"].item(), abs=1e-6)
    # The recorded model's embedding had a padding_idx: no gradient reaches the row of the pad token.
    exact_model.embedding.grad[exact_model.config.pad_token_id] = 0
    norm = torch.stack([p.grad.norm() for p in exact_model.parameters()]).norm()
    assert norm.item() == pytest.approx(case["grad_norm"].item(), abs=1e-6)


def test_draws_are_distributed_as_specified() -> None:
    rows = 40_000
    draws = ReFusionObjective(MASK).draw(torch.full((rows,), 128), torch.Generator().manual_seed(1))
    share = torch.stack([(draws.slot_sizes == size).float().mean() for size in SLOT_SIZES])
    assert share.sum() == 1
    assert (share - 0.25).abs().max() < 0.012  # five standard deviations
    assert draws.probability.min() >= EPSILON
    assert draws.probability.max() <= 1
    uniform = ((draws.probability - EPSILON) / (1 - EPSILON)).double()
    assert (uniform.sort().values - torch.linspace(0, 1, rows)).abs().max() < 0.012  # Kolmogorov-Smirnov, p = 1e-5
    for low in (0.0, 0.25, 0.5, 0.75):  # masked share, given t
        some = (uniform >= low) & (uniform < low + 0.25)
        expected = draws.probability[some].mean()
        assert (draws.masked[some].float().mean() - expected).abs() < 5 * (0.25 / (some.sum() * 32)) ** 0.5
    ranks = draws.order[:, :4].argsort(1)  # each of the 24 permutations alike
    codes = (ranks * torch.tensor([64, 16, 4, 1])).sum(1)
    counts = codes.unique(return_counts=True)[1]
    assert len(counts) == 24
    assert ((counts - rows / 24) ** 2 / (rows / 24)).sum() < 67  # chi squared with 23 degrees of freedom, p = 3e-6


@pytest.mark.parametrize("name", ["refusion", "ar", "mdm"])
def test_layout_of_own_draws(name: str) -> None:
    """Every token once, prompt first, targets as specified, whatever was drawn."""
    generator = torch.Generator().manual_seed(0)
    prompts, answers = torch.tensor([3, 0, 7, 5, 2]), torch.tensor([70, 33, 1, 0, 9])
    length = int((prompts + answers).max())
    tokens = torch.randint(200, (5, length), generator=generator)
    batch = TokenBatch(tokens, prompts, answers)
    for _ in range(20):
        objective = make_objective(name, MASK)
        draws = objective.draw(answers, generator)
        out = objective.arrange(batch, draws)
        assert torch.equal(out.position_ids.sort(1).values, torch.arange(length).expand(5, length))
        assert int(out.samples) == 4
        assert int(out.targets) == int(((out.labels != IGNORED) & ~out.diffusion).sum())
        for row in range(5):
            prompt, answer = int(prompts[row]), int(answers[row])
            end = prompt + answer
            assert out.position_ids[row, :prompt].tolist() == list(range(prompt))
            assert (out.labels[row, end:] == IGNORED).all()
            positions = out.position_ids[row, prompt:end]
            hidden = out.diffusion[row, prompt:end]
            assert torch.equal(out.labels[row, prompt:end][hidden], tokens[row, positions[hidden]])
            if name != "ar":
                assert (out.input_ids[row, prompt:end][hidden] == MASK).all()
                weight = 1 / (draws.probability[row] * answer)
                assert torch.allclose(out.weights[row, prompt:end][hidden], weight)
            if name == "refusion":
                assert hidden.sort().values.equal(hidden)  # clean ones first
                assert positions[hidden].sort().values.equal(positions[hidden])
                slot = (positions - prompt) // draws.slot_sizes[row]
                runs = slot[~hidden].unique_consecutive()
                assert len(runs) == len(runs.unique())  # clean slots stay together
                last = (positions[~hidden] - prompt + 1) % draws.slot_sizes[row] == 0
                last |= positions[~hidden] + 1 == end
                assert torch.equal(out.labels[row, prompt:end][~hidden] == IGNORED, last)
    if name == "ar":
        assert int(out.targets) == int(answers.sum()) - 1  # an empty prompt does not say its first token


@pytest.mark.parametrize("objective", [ReFusionObjective(MASK), ARObjective(), MDMObjective(MASK)])
@pytest.mark.parametrize("answers", [[1, 1], [0, 0], [0, 5]])
def test_short_and_empty_answers_are_finite(model: refusion.Qwen3, objective: object, answers: list[int]) -> None:
    lengths = torch.tensor(answers)
    batch = TokenBatch(torch.randint(200, (2, 9)), torch.tensor([4, 4]), lengths)
    trained = refusion.load(CHECKPOINT).requires_grad_(True)
    for seed in range(4):
        out = objective.arrange(batch, objective.draw(lengths, torch.Generator().manual_seed(seed)))
        parts = loss_parts(trained, out, out.targets, out.samples)
        sum(parts).backward()
        assert torch.stack(parts).isfinite().all()
        assert all(p.grad is None or p.grad.isfinite().all() for p in trained.parameters())
        if not any(answers):
            assert sum(parts) == 0
            assert int(out.samples) == 0


@pytest.mark.parametrize("name", ["refusion", "ar", "mdm"])
def test_padding_changes_nothing(exact_model: refusion.Qwen3, name: str) -> None:
    objective = make_objective(name, MASK)
    prompts, answers = torch.tensor([5]), torch.tensor([20])
    tokens = torch.randint(200, (1, 25))
    draws = objective.draw(answers, torch.Generator().manual_seed(3))
    padded = torch.cat((tokens, torch.full((1, 11), 257)), 1)
    values = []
    for row in (tokens, padded):
        out = objective.arrange(TokenBatch(row, prompts, answers), draws)
        values.append(torch.stack(loss_parts(exact_model, out, out.targets, out.samples)).detach())
    assert torch.allclose(*values, rtol=1e-12, atol=0)


def test_parts_of_a_batch_add_up(exact_model: refusion.Qwen3, recorded: list[dict[str, torch.Tensor]]) -> None:
    case, objective = recorded[0], ReFusionObjective(MASK)
    batch = TokenBatch.from_mask(case["tokens"], case["attention_mask"], case["prompt_lengths"])
    draws = draws_of(case)
    whole = objective.arrange(batch, draws)
    total = torch.stack(loss_parts(exact_model, whole, whole.targets, whole.samples))
    split = torch.zeros(2, dtype=torch.float64)
    for rows in torch.arange(8).split(3):
        part = TokenBatch(*(getattr(batch, f.name)[rows] for f in dataclasses.fields(batch)))
        arranged = objective.arrange(part, draws.rows(rows))
        split += torch.stack(loss_parts(exact_model, arranged, whole.targets, whole.samples))
    assert torch.allclose(total, split, rtol=1e-12)


def test_unknown_objective() -> None:
    with pytest.raises(ValueError, match="objective must be"):
        make_objective("bert", MASK)
