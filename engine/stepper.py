"""Runs a core's plan: swaps first, then the model."""

from collections.abc import Sequence

from engine.config import ModelConfig
from engine.core import StepPlan, StepResult
from engine.loader import LoadedModel
from engine.runner import ModelRunner
from engine.swap import SwapSpace


class ModelStepper:
    """The only thing that touches the arena from the loop's thread."""

    def __init__(self, runner: ModelRunner, swap: SwapSpace) -> None:
        self._runner = runner
        self.swap = swap

    @property
    def config(self) -> ModelConfig:
        """The model in use."""
        return self._runner.config

    def use(self, loaded: LoadedModel) -> None:
        """Compute with other weights of the same model from the next step on."""
        self._runner.use(loaded)

    def run(self, plan: StepPlan) -> Sequence[StepResult]:
        """One result per chunk of the plan."""
        for swap in plan.swaps:
            self.swap.carry_out(swap)
        return self._runner.step(plan.chunks) if plan.chunks else ()
