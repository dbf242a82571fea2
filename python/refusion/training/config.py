"""Settings of a training run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

OBJECTIVES = ("refusion", "ar", "mdm")
PRECISIONS = ("auto", "float32", "bfloat16")
OPTIMIZERS = ("adamw", "muon")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What a run does; saved with its state. A batch is what one optimiser step sees, over all processes.

    Attributes:
        data: JSON Lines or a JSON list of {"query", "response"}.
        out: directory of checkpoint, state, log and plot.
        objective: 'refusion', 'ar' or 'mdm'.
        init: checkpoint to start from; or None, with `model_config` (a Hugging Face config.json) and `tokenizer`.
        batch_size, micro_batch: samples a step, and samples a forward of one process at most.
        max_length: tokens of prompt and answer, longer answers are cut.
        answer_multiple: fill answers up with EOS to a multiple of this many tokens.
        max_steps, max_minutes: the run ends at whichever comes first. The learning rate follows steps when there is a
            `max_steps`, else time.
        optimizer: 'adamw', or 'muon' for the layers' matrices and AdamW for the rest (torch 2.9 or newer, no FSDP).
        learning_rate, min_learning_rate: peak, and share of it at the end of the schedule.
        matrix_learning_rate: peak of Muon.
        decay: share of the run, at its end, in which the learning rate falls linearly; 0: a cosine over the whole run.
        warmup: steps of linear warm-up.
        weight_decay: of matrices; norms and biases have none.
        clip: largest norm of the gradient.
        ema: decay of an average of the weights, which is then what is evaluated and written; 0: none.
        slot_sizes: of the ReFusion objective.
        precision: 'auto' is bfloat16 on CUDA and, on a CPU with bfloat16 products, from 3 M parameters.
        log_every, save_every, eval_every: in steps; 0: never (a run always saves at its end).
        eval_data, eval_samples, eval_settings: held-out items to decode, how many, and changes to the decode config.
    """

    data: Path
    out: Path
    objective: str = "refusion"
    init: Path | None = None
    model_config: Path | None = None
    tokenizer: Path | None = None
    chat: bool | None = None
    device: str = "cpu"
    batch_size: int = 32
    micro_batch: int = 32
    max_length: int = 512
    answer_multiple: int = 1
    max_steps: int | None = None
    max_minutes: float | None = None
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    matrix_learning_rate: float = 0.02
    min_learning_rate: float = 0.1
    decay: float = 0.0
    warmup: int = 100
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.98
    clip: float = 1.0
    ema: float = 0.0
    slot_sizes: tuple[int, ...] = (4, 8, 16, 32)
    seed: int = 0
    precision: str = "auto"
    fsdp: bool = False
    log_every: int = 20
    save_every: int = 500
    eval_every: int = 0
    eval_data: Path | None = None
    eval_samples: int = 64
    eval_settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, choices in (("objective", OBJECTIVES), ("precision", PRECISIONS), ("optimizer", OPTIMIZERS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {getattr(self, name)!r}")
        for name in ("batch_size", "micro_batch", "max_length", "answer_multiple", "eval_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("warmup", "log_every", "save_every", "eval_every", "weight_decay"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        for name in ("learning_rate", "matrix_learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay must lie in [0, 1], got {self.decay}")
        if self.optimizer == "muon" and self.fsdp:
            raise ValueError("optimizer 'muon' needs whole matrices: not with fsdp")
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema must lie in [0, 1), got {self.ema}")
        if self.max_steps is None and self.max_minutes is None:
            raise ValueError("a run needs max_steps or max_minutes")
        if (self.init is None) == (self.model_config is None):
            raise ValueError("a run starts from init (a checkpoint) or from model_config and tokenizer")
        if self.model_config is not None and self.tokenizer is None:
            raise ValueError("model_config needs a tokenizer")
        if self.eval_every and self.eval_data is None:
            raise ValueError("eval_every needs eval_data")

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the state of a run."""
        settings = asdict(self)
        for name, value in settings.items():
            if isinstance(value, Path):
                settings[name] = str(value.resolve())
            elif isinstance(value, tuple):
                settings[name] = list(value)
        return settings

    @classmethod
    def from_json(cls, settings: dict[str, Any], **changes: Any) -> TrainConfig:
        """The settings of `to_json`, some of them changed."""
        paths = {"data", "out", "init", "model_config", "tokenizer", "eval_data"}
        saved: dict[str, Any] = {k: Path(v) if k in paths and v is not None else v for k, v in settings.items()}
        saved["slot_sizes"] = tuple(saved["slot_sizes"])
        return cls(**saved | changes)
