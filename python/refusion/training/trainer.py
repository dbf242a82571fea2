"""The training loop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..checkpoint import read_training, save, write_training
from ..model import Qwen3
from .config import TrainConfig
from .data import BatchOrder, Dataset, to_device, tokenise
from .distributed import Workers, gradients_stay_local, parallel, whole, worker_device, workers
from .evaluation import HeldOut
from .log import RunLog
from .objective import Draws, TokenBatch, TrainingBatch, loss_parts, make_objective
from .optimiser import Optimiser, schedule
from .start import choose_precision, copy_tokenizer, load_model, load_tokenizer
from .state import STATE, Average, check_settings, gather, read_state, scatter, write_state


class LossModule(nn.Module):
    """The model and its loss in one `forward`, which is what DDP and FSDP hook into."""

    def __init__(self, model: Qwen3) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: TrainingBatch, targets: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
        return loss_parts(self.model, batch, targets, samples)


def train(config: TrainConfig, *, resume: bool = False) -> int:
    """Runs or continues a training; returns 0 when it is complete, 128 + the signal that ended it otherwise.

    Writes into `config.out`: the checkpoint (Hugging Face layout), `training-state.pt`, `log.jsonl`, `loss.png`.

    Raises:
        CheckpointError, DataError, StateError, ValueError: an input is missing, damaged or does not fit.
    """
    device = worker_device(config.device)
    config.out.mkdir(parents=True, exist_ok=True)
    with workers(device) as team, Stop() as stop:
        return Trainer(config, device, team, stop, resume).run()


class Stop:
    """SIGINT and SIGTERM ask for an end after the step; a second one ends at once."""

    def __init__(self) -> None:
        self.signal = 0

    def __enter__(self) -> Stop:
        self._before = {s: signal.signal(s, self._ask) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number
        signal.signal(number, self._before[signal.Signals(number)])


class Trainer:
    """One process of a run."""

    def __init__(self, config: TrainConfig, device: torch.device, team: Workers, stop: Stop, resume: bool) -> None:
        self.config, self.device, self.team, self.stop = config, device, team, stop
        state = read_state(config.out / STATE) if resume else None
        if state is not None:
            check_settings(state, config)
        if state is None and (config.out / STATE).exists():
            raise ValueError(f"{config.out} holds a run already: continue it with --resume or choose another directory")
        self.tokenizer = load_tokenizer(config, resume)
        self.model = load_model(config, state)
        shape = self.model.config
        if self.tokenizer.vocab_size > shape.vocab_size:
            raise ValueError(f"the tokenizer has {self.tokenizer.vocab_size} tokens, the model {shape.vocab_size}")
        if not shape.eos_token_ids:
            raise ValueError("config: training needs an eos_token_id")
        self.objective = make_objective(config.objective, shape.mask_token_id, config.slot_sizes)
        self.data = self._data(config.data, "train", team)
        self.order = BatchOrder(self.data.lengths, config.batch_size, config.seed)
        self.held_out = None
        if config.eval_data is not None and team.first:
            self.held_out = HeldOut(self._data(config.eval_data, "eval", Workers()), config, shape.eos_token_ids)

        self.model.to(device)
        self.precision, self.autocast = choose_precision(config.precision, self.model, device)
        self.module = parallel(LossModule(self.model), self.model.layers, team, config.fsdp)
        self.parameters = dict(self.model.named_parameters())
        self.optimiser = Optimiser(self.parameters, config)
        self.average = Average(self.parameters, config.ema) if config.ema else None
        self.step, self.tokens = 0, 0
        if state is not None:
            self._restore(state)
        minutes = 0.0 if state is None else state["minutes"]
        log = config.out / "log.jsonl" if team.first else None
        self.log = RunLog(log, self.step, config.max_steps, config.max_minutes, minutes)
        self._report_data()

    def run(self) -> int:
        """Trains to the end, or to a signal, and saves."""
        config = self.config
        sums = torch.zeros(3, device=self.device)  # loss parts and gradient norm since the last record
        since, last_tokens, last_minutes = 0, self.tokens, self.log.minutes
        ended, stopped = False, 0
        while True:
            ended, stopped, progress = self._agree()
            if ended or stopped:
                break
            factor = schedule(config, self.step, progress)
            sums += self._step(factor)
            since += 1
            self.log.advance()
            if config.log_every and self.step % config.log_every == 0:
                next_token, masked, norm = (sums / since).tolist()
                minutes = self.log.minutes
                self.log.write(
                    {
                        "step": self.step,
                        "loss": next_token + masked,
                        "next_token": next_token,
                        "masked": masked,
                        "gradient_norm": norm,
                        "learning_rate": config.learning_rate * factor,
                        "tokens": self.tokens,
                        "tokens_per_second": (self.tokens - last_tokens) / max(60 * (minutes - last_minutes), 1e-9),
                        "minutes": minutes,
                    }
                )
                sums.zero_()
                since, last_tokens, last_minutes = 0, self.tokens, minutes
            if config.eval_every and self.step % config.eval_every == 0:
                self._evaluate()
                last_minutes, last_tokens = self.log.minutes, self.tokens
            if config.save_every and self.step % config.save_every == 0:
                self._save()
        self._save()
        if ended and config.eval_data is not None and not (config.eval_every and self.step % config.eval_every == 0):
            self._evaluate()
        self.log.close()
        if stopped:
            name = signal.Signals(stopped).name
            self.log.say(f"{name}: saved step {self.step} in {config.out}; continue with --resume")
            return 128 + stopped
        spent = f"step {self.step}, {self.tokens} tokens, {self.log.minutes:.1f} minutes"
        self.log.say(f"done: {spent}; checkpoint in {config.out}")
        return 0

    def _agree(self) -> tuple[bool, int, float]:
        """End reached, signal, progress in [0, 1]: the same on every process, as clocks and signals are not."""
        config = self.config
        mine = torch.tensor(
            [self.log.minutes if self.team.first else 0.0, float(self.stop.signal)], dtype=torch.float64
        )
        if self.team.count > 1:
            shared = mine.to(self.device)
            torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MAX)
            mine = shared.cpu()
        minutes, stopped = mine.tolist()
        by_time = minutes / config.max_minutes if config.max_minutes else 0.0
        by_steps = self.step / config.max_steps if config.max_steps is not None and config.max_steps else 0.0
        none = config.max_steps == 0
        progress = by_time if config.max_steps is None else by_steps
        return none or max(by_time, by_steps) >= 1, int(stopped), min(progress, 1.0)

    def _step(self, factor: float) -> Tensor:
        """One optimiser step; returns next-token part, masked part and gradient norm without waiting for them."""
        batch, draws, everything = self._draw()
        targets, samples = everything.targets, everything.samples
        mine = torch.arange(self.team.rank, len(batch.tokens), self.team.count)  # every process sees all lengths
        # As many forwards in every process, because FSDP gathers weights in each.
        most = -(-len(batch.tokens) // self.team.count)
        pieces = mine.tensor_split(-(-most // self.config.micro_batch))
        parts = torch.zeros(2, device=self.device)
        for number, rows in enumerate(pieces, 1):
            piece = to_device(_rows(batch, rows) if len(rows) else _nothing(batch), self.device)
            rows = rows if len(rows) else torch.zeros(1, dtype=torch.int64)
            arranged = self.objective.arrange(piece, _draws_to(draws.rows(rows), self.device))
            with gradients_stay_local(self.module, number < len(pieces)):
                with self.autocast():
                    next_token, masked = self.module(arranged, targets, samples)
                # Gradients are averaged over processes; the loss is a sum over the whole batch.
                ((next_token + masked) * self.team.count).backward()
            parts += torch.stack((next_token, masked)).detach()
        norm = whole(nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)).detach()
        self.optimiser.step(factor)
        self.step += 1
        self.tokens += int(batch.prompt_lengths.sum() + batch.answer_lengths.sum())
        if self.average is not None:
            self.average.update(self.step)
        return torch.cat((self.team.total(parts), norm.reshape(1)))

    def _draw(self) -> tuple[TokenBatch, Draws, TrainingBatch]:
        """The whole batch of this step on every process: who computes which rows changes nothing."""
        shape = self.model.config
        pad = shape.pad_token_id if shape.pad_token_id is not None else shape.eos_token_ids[0]
        batch = self.data.batch(self.order[self.step], pad)
        seed = np.random.SeedSequence((self.config.seed, self.step)).generate_state(1)[0]
        generator = torch.Generator().manual_seed(int(seed))
        draws = self.objective.draw(batch.answer_lengths, generator)
        return batch, draws, self.objective.arrange(batch, draws)

    @torch.no_grad()
    def _evaluate(self) -> None:
        with self._evaluated_weights() as model:
            if self.held_out is not None:
                score = self.held_out.score(model)
                self.log.write(
                    {
                        "step": self.step,
                        "exact": score.exact,
                        "tokens_per_forward": score.tokens_per_forward,
                        "samples": score.samples,
                        "tokens": self.tokens,
                        "minutes": self.log.minutes,
                    }
                )
        self.team.wait()

    @contextmanager
    def _evaluated_weights(self) -> Iterator[Qwen3]:
        """A model of its own with the whole weights, averaged where there is an average."""
        values = self.parameters if self.average is None else self.average.values
        with torch.device("meta"):
            model = Qwen3(self.model.config)
        weights = {name: whole(value.detach()) for name, value in values.items()}
        model.load_state_dict(weights, assign=True)
        yield model.requires_grad_(False).eval()

    @torch.no_grad()
    def _save(self) -> None:
        weights = {name: whole(p.detach()).cpu() for name, p in self.parameters.items()}
        moments = gather(self.parameters, self.optimiser)
        average = {} if self.average is None else {n: whole(v).cpu() for n, v in self.average.values.items()}
        with self._evaluated_weights() as model:
            if self.team.first:
                state = {
                    "settings": self.config.to_json(),
                    "shape": self.model.config.to_hugging_face(),
                    "step": self.step,
                    "tokens": self.tokens,
                    "minutes": self.log.minutes,
                    "samples": len(self.data),
                    "weights": weights,
                    "moments": moments,
                    "average": average,
                }
                copy_tokenizer(self.config)
                write_state(self.config.out / STATE, state)
                save(model, self.config.out)
                self._write_facts()
        self.team.wait()

    def _write_facts(self) -> None:
        """How the checkpoint came about, for whoever compares it with another."""
        config = self.config
        facts = {"objective": config.objective, "steps": self.step, "tokens": self.tokens, "seed": config.seed}
        facts |= {"optimizer": config.optimizer, "batch_size": config.batch_size}
        if config.init is not None and (before := read_training(config.init)):
            facts["started_from"] = before
        write_training(config.out, facts)

    def _restore(self, state: dict[str, Any]) -> None:
        if state["samples"] != len(self.data):
            started = state["samples"]
            raise ValueError(f"{self.config.data}: the run was started with {started} samples, not {len(self.data)}")
        with torch.no_grad():
            scatter(self.parameters, self.optimiser, state["weights"], state["moments"])
            if self.average is not None:
                scatter(self.average.values, self.optimiser, state["average"], {})
        self.step, self.tokens = state["step"], state["tokens"]

    def _data(self, path: Path, name: str, team: Workers) -> Dataset:
        """Tokenised by the first process, then mapped by all."""
        if not team.first:
            team.wait()
        config = self.config
        data = tokenise(
            path,
            self.tokenizer,
            self.model.config.eos_token_ids[0],
            max_length=min(config.max_length, self.model.config.max_position_embeddings),
            answer_multiple=config.answer_multiple,
            cache=config.out / f"data-{name}",
            chat=config.chat,
        )
        if team.first:
            team.wait()
        return data

    def _report_data(self) -> None:
        counts, size = self.data.counts, sum(p.numel() for p in self.model.parameters())
        self.log.say(
            f"{self.config.objective}: {size} parameters, {self.precision}, {self.team.count} process(es); "
            f"{counts.samples} samples, {counts.tokens} tokens, {counts.truncated} answers cut at "
            f"{self.config.max_length}, {counts.empty} without an answer skipped"
        )


def _rows(batch: TokenBatch, rows: Tensor) -> TokenBatch:
    """Some samples, without padding that only the others need."""
    prompts, answers = batch.prompt_lengths[rows], batch.answer_lengths[rows]
    longest = int((prompts + answers).max())
    return TokenBatch(batch.tokens[rows, :longest], prompts, answers)


def _nothing(batch: TokenBatch) -> TokenBatch:
    """One token without an answer: its loss is 0, but the process takes part in what the others do."""
    return TokenBatch(batch.tokens[:1, :1], torch.ones(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))


def _draws_to(draws: Draws, device: torch.device) -> Draws:
    return Draws(*(x.to(device) for x in (draws.probability, draws.slot_sizes, draws.masked, draws.order)))
