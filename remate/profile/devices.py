"""The devices that the roofline model knows. Figures are the makers' peaks; `efficiency` is what kernels reach of them."""

from __future__ import annotations

import msgspec


class Device(msgspec.Struct, frozen=True):
    """matrix, vector: peak FLOP/s by dtype, of matrix products and of elementwise arithmetic. bandwidth: bytes/s of
    main memory. efficiency: share of these that well-shaped kernels reach (matrix, vector and bandwidth). launch_ns:
    least time of an operation, from Python's call to the end of an empty kernel. kind: "cpu" or "cuda".
    """

    name: str
    kind: str
    matrix: dict[str, float]
    vector: dict[str, float]
    bandwidth: float
    efficiency: tuple[float, float, float]
    launch_ns: int


# Launch: a Python loop over resolved overloads issues an operation every 3 to 5 µs to a GPU.
_LAUNCH_CUDA = 4_000
# Dense matrix products reach about 65-75% of the tensor cores' peak at the power limit, streaming kernels about 85%
# of the bandwidth.
_EFFICIENCY_CUDA = (0.65, 0.7, 0.85)

# NVIDIA H100/H200 SXM data sheets (figures without sparsity): FP64 tensor 67 TFLOP/s, FP32 67, TF32 494.7, FP16 and
# BF16 989.4, FP8 1978.9. PyTorch keeps float32 products off TF32 unless told otherwise, so f32 stands with 67;
# convolutions do use TF32 (torch.backends.cudnn.allow_tf32), which the key "tf32" is for.
_HOPPER_MATRIX = {
    "f64": 67e12,
    "f32": 67e12,
    "tf32": 494.7e12,
    "f16": 989.4e12,
    "bf16": 989.4e12,
    "f8e4m3": 1978.9e12,
    "f8e5m2": 1978.9e12,
    "i8": 1978.9e12,
}
_HOPPER_VECTOR = {"f64": 33.5e12, "f32": 66.9e12, "f16": 133.8e12, "bf16": 133.8e12}
# NVIDIA A100 80 GB SXM data sheet: FP64 tensor 19.5 TFLOP/s, FP32 19.5, TF32 156, FP16 and BF16 312, INT8 624.
_AMPERE_MATRIX = {"f64": 19.5e12, "f32": 19.5e12, "tf32": 156e12, "f16": 312e12, "bf16": 312e12, "i8": 624e12}
_AMPERE_VECTOR = {"f64": 9.7e12, "f32": 19.5e12, "f16": 78e12, "bf16": 39e12}

# One core with AVX2 at 3 GHz: two FMA units of eight floats make 96 GFLOP/s; one core streams about 12 GB/s of a
# server's memory. 16-bit types have no units of their own there and are converted.
_CPU_MATRIX = {"f64": 48e9, "f32": 96e9, "f16": 24e9, "bf16": 48e9}
_CPU_VECTOR = {"f64": 24e9, "f32": 48e9, "f16": 12e9, "bf16": 12e9}

DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        # bandwidth: 4.8 TB/s of HBM3e
        Device("h200", "cuda", _HOPPER_MATRIX, _HOPPER_VECTOR, 4.8e12, _EFFICIENCY_CUDA, _LAUNCH_CUDA),
        # bandwidth: 3.35 TB/s of HBM3 (SXM)
        Device("h100", "cuda", _HOPPER_MATRIX, _HOPPER_VECTOR, 3.35e12, _EFFICIENCY_CUDA, _LAUNCH_CUDA),
        # bandwidth: 2.039 TB/s of HBM2e (80 GB SXM)
        Device("a100", "cuda", _AMPERE_MATRIX, _AMPERE_VECTOR, 2.039e12, _EFFICIENCY_CUDA, _LAUNCH_CUDA),
        Device("cpu", "cpu", _CPU_MATRIX, _CPU_VECTOR, 12e9, (0.7, 0.5, 0.8), 2_000),
    )
}


def is_estimated(cost: str) -> bool:
    """Whether times and workspaces of these costs are estimates, so that floors and bounds are proven for them alone."""
    return cost in DEVICES
