"""Runs a core's plan: swaps first, then the model."""

from collections.abc import Sequence

from engine.core import StepPlan, StepResult
from engine.runner import ModelRunner
from engine.swap import SwapSpace


class ModelStepper:
    """The only thing that touches the arena from the loop's thread."""

    def __init__(self, runner: ModelRunner, swap: SwapSpace) -> None:
        self._runner = runner
        self.swap = swap

    def run(self, plan: StepPlan) -> Sequence[StepResult]:
        """One result per chunk of the plan."""
        for swap in plan.swaps:
            self.swap.carry_out(swap)
        return self._runner.step(plan.chunks) if plan.chunks else ()
