"""Training: the objectives, data, and the loop behind `refusion train`."""

from .config import TrainConfig
from .data import DataError
from .objective import ARObjective, MDMObjective, Objective, ReFusionObjective
from .state import StateError
from .trainer import train

__all__ = [
    "ARObjective",
    "DataError",
    "MDMObjective",
    "Objective",
    "ReFusionObjective",
    "StateError",
    "TrainConfig",
    "train",
]
