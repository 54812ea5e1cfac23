"""An engine whose steps are replayed as CUDA graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from ....errors import EngineError
from ...compiled_step import Compile, CompiledStep, Engine, LinkedStep
from .captured_step import CapturedStep
from .gpu import CudaRecorder, GraphRecorder
from .predicted_pool import predict_memory
from .refused import refused


def in_cuda_graphs(
    engine: Engine, recorder: Callable[[torch.device], GraphRecorder] = CudaRecorder, device_type: str = "cuda"
) -> Engine:
    """Return the engine for a model, with its steps replayed. All sizes of the model share a private pool per device.

    It warns with the reason if a step cannot be replayed, and runs the step without graphs.

    Args:
        engine: The engine.
        recorder: Records on a device of this type.
        device_type: The type of device.

    Raises:
        EngineError: The engine keeps memory of its own, or a step is prepared for a different device.
    """
    if engine.keeps:
        raise EngineError(
            f"the engine {engine.name!r} keeps its results in a block of its own, and CUDA graphs in a pool of theirs"
            "\n  use cuda_graphs=True with engine='compiled' or engine='eager'"
        )
    recorders: dict[torch.device, GraphRecorder] = {}

    def start() -> Compile:
        compile_ = engine.start()

        def captured(step: LinkedStep, device: torch.device) -> CompiledStep:
            if device.type not in (device_type, "meta"):
                raise EngineError(
                    f"cuda_graphs=True is for models on CUDA, and this one is on {device.type}\n  leave it out there"
                )
            plain = compile_(step, device)
            if device.type == "meta":
                return plain
            if reason := refused(step):
                warnings.warn(f"the step runs without CUDA graphs: {reason}", UserWarning, stacklevel=2)
                return plain
            predicted = predict_memory(step, plain)
            return CapturedStep(step, plain, device, lambda: opened(device), predicted).compiled()

        return captured

    def opened(device: torch.device) -> GraphRecorder:
        if device not in recorders:
            recorders[device] = recorder(device)
        return recorders[device]

    return engine._replace(start=start, graphs=True)
