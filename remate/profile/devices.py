"""The devices of the roofline model. Figures are the makers' peaks; `efficiency` is the share that kernels reach."""

from __future__ import annotations

import msgspec

from ..errors import ProfileError
from .power import POWER

_Rates = tuple[dict[str, float], dict[str, float]]  # of matrix products, of elementwise arithmetic


class Gpu(msgspec.Struct, frozen=True):
    """The properties of a GPU that torch reads to select kernels. memory: bytes."""

    name: str
    capability: tuple[int, int]
    memory: int


class Link(msgspec.Struct, frozen=True):
    """The link of a rank to the others of its mesh. latency_ns: least time of a collective. bandwidth: bytes/s, each
    way."""

    latency_ns: int
    bandwidth: float


class Device(msgspec.Struct, frozen=True):
    """A device.

    Attributes:
        matrix: Peak FLOP/s of matrix products, by dtype.
        vector: Peak FLOP/s of elementwise arithmetic, by dtype.
        bandwidth: Bytes/s of main memory.
        efficiency: Share of these that well-shaped kernels reach (matrix, vector and bandwidth).
        launch_ns: Least time of an operation, from Python's call to the end of an empty kernel.
        kind: "cpu" or "cuda".
        link: To the other ranks.
        gpu: None for a CPU.
        processors: Units that work on blocks of a matrix product at the same time.
        attention: Shares of the matrix peak that kernels of fused attention reach forward and backward, by kernel.
            Others reach `efficiency`.
        host: Bytes/s of copies from and to pinned memory of the host, each way; 0 for a CPU.
    """

    name: str
    kind: str
    matrix: dict[str, float]
    vector: dict[str, float]
    bandwidth: float
    efficiency: tuple[float, float, float]
    launch_ns: int
    link: Link
    gpu: Gpu | None = None
    processors: int = 1
    attention: dict[str, tuple[float, float]] = {}
    host: float = 0


# Launch: a Python loop over resolved overloads issues an operation every 3 to 5 µs to a GPU.
_LAUNCH_CUDA = 4_000
# NCCL's collectives within a machine take at least about 12 µs, and reach 80% of the link's bandwidth.
_NCCL_NS, _NCCL = 12_000, 0.8
# PCIe x16, bytes/s each way: 8, 16 and 32 GT/s per lane, with 128 of 130 bits of data (PCI Express Base Specification,
# revisions 3.0, 4.0 and 5.0). Packets have headers, and large copies from and to pinned memory reach about 80% of it.
_PCIE3, _PCIE4, _PCIE5 = (0.8 * 16 * rate * 1e9 / 8 * 128 / 130 for rate in (8, 16, 32))
_PCIE = {7: _PCIE3, 8: _PCIE4}  # of the data sheets, by compute capability; others have 5.0
# Gloo between two processes of one machine: 200 µs, and 1 GB/s.
_GLOO = Link(200_000, 1e9)
# The fastest BF16 products have 87% of the tensor cores' peak on A100, 80% on H100 and 51% on MI300X (S. Bekman,
# ml-engineering b9e29720, compute/accelerator/README.md); those of a step reach about four fifths of that. docs/gpu.md
# compares whole steps. Streaming kernels reach about 85% of the bandwidth.
_EFFICIENCY_CUDA, _EFFICIENCY_AMPERE, _EFFICIENCY_CDNA3 = (0.65, 0.7, 0.85), (0.7, 0.7, 0.85), (0.41, 0.7, 0.85)
# Fused attention on an H100, of 989 TFLOP/s, with heads of 128 and 2048 tokens (J. Shah et al., "FlashAttention-3",
# arXiv:2407.08608, figures 5 and 6): FlashAttention-2, which is torch's "flash", 298 TFLOP/s with a causal mask and 362
# without, 291 backward; cuDNN 484, 617 and 465. Forward is the mean of both masks.
_ATTENTION_HOPPER = {"flash": (0.33, 0.29), "cudnn": (0.56, 0.47)}

# NVIDIA H100/H200 SXM data sheets (figures without sparsity): FP64 tensor 67 TFLOP/s, FP32 67, TF32 494.7, FP16 and
# BF16 989.4, FP8 1978.9. PyTorch computes float32 products without TF32 by default, so f32 is 67; convolutions use
# TF32 (torch.backends.cudnn.allow_tf32), with the key "tf32".
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
# NVIDIA HGX B200 data sheet, an eighth of it, without sparsity: FP64 37 TFLOP/s, FP32 75, TF32 1125, FP16 and BF16
# 2250, FP8 and INT8 4500.
_BLACKWELL_MATRIX = {
    "f64": 37e12,
    "f32": 75e12,
    "tf32": 1125e12,
    "f16": 2250e12,
    "bf16": 2250e12,
    "f8e4m3": 4500e12,
    "f8e5m2": 4500e12,
    "i8": 4500e12,
}
_BLACKWELL_VECTOR = {"f64": 37e12, "f32": 75e12, "f16": 150e12, "bf16": 150e12}
# NVIDIA Ada architecture whitepaper, GeForce RTX 4090: FP32 82.6 TFLOP/s, FP64 1/64 of it; with FP32 accumulation,
# without sparsity: TF32 82.6, FP16 and BF16 165.2, FP8 330.3; INT8 660.6.
_ADA_MATRIX = {
    "f64": 1.29e12,
    "f32": 82.6e12,
    "tf32": 82.6e12,
    "f16": 165.2e12,
    "bf16": 165.2e12,
    "f8e4m3": 330.3e12,
    "f8e5m2": 330.3e12,
    "i8": 660.6e12,
}
_ADA_VECTOR = {"f64": 1.29e12, "f32": 82.6e12, "f16": 82.6e12, "bf16": 82.6e12}
# NVIDIA L40S data sheet, without sparsity: FP32 91.6 TFLOP/s, TF32 183, FP16 and BF16 362, FP8 733, INT8 733.
_L40S_MATRIX = {
    "f64": 1.43e12,
    "f32": 91.6e12,
    "tf32": 183e12,
    "f16": 362e12,
    "bf16": 362e12,
    "f8e4m3": 733e12,
    "f8e5m2": 733e12,
    "i8": 733e12,
}
_L40S_VECTOR = {"f64": 1.43e12, "f32": 91.6e12, "f16": 91.6e12, "bf16": 91.6e12}
# NVIDIA T4 data sheet: FP32 8.1 TFLOP/s, FP16 on tensor cores 65, INT8 130. Without units for BF16 and TF32: the rate
# of FP32.
_TURING_MATRIX = {"f64": 0.254e12, "f32": 8.1e12, "f16": 65e12, "bf16": 8.1e12, "i8": 130e12}
_TURING_VECTOR = {"f64": 0.254e12, "f32": 8.1e12, "f16": 16.2e12, "bf16": 8.1e12}

# AMD Instinct MI300X data sheet, without sparsity: FP64 matrix 163.4 TFLOP/s, FP32 matrix 163.4, TF32 653.7, FP16 and
# BF16 1307.4, FP8 and INT8 2614.9; FP64 vector 81.7, FP32 vector 163.4. Units for 16 bits have the rate of FP32 here.
_CDNA3_MATRIX = {
    "f64": 163.4e12,
    "f32": 163.4e12,
    "tf32": 653.7e12,
    "f16": 1307.4e12,
    "bf16": 1307.4e12,
    "f8e4m3": 2614.9e12,
    "f8e5m2": 2614.9e12,
    "i8": 2614.9e12,
}
_CDNA3_VECTOR = {"f64": 81.7e12, "f32": 163.4e12, "f16": 163.4e12, "bf16": 163.4e12}

# One core with AVX2 at 3 GHz: two FMA units of eight floats make 96 GFLOP/s; one core streams about 12 GB/s of a
# server's memory. 16-bit types have no units of their own there and are converted.
_CPU_MATRIX = {"f64": 48e9, "f32": 96e9, "f16": 24e9, "bf16": 48e9}
_CPU_VECTOR = {"f64": 24e9, "f32": 48e9, "f16": 12e9, "bf16": 12e9}


def _flat(flops: float) -> dict[str, float]:
    return dict.fromkeys(_CPU_MATRIX, flops)


def _gpu(
    name: str,
    title: str,
    sm: tuple[int, int],
    gigabytes: int,
    rates: _Rates,
    bandwidth: float,
    link: float,
    processors: int,
    efficiency: tuple[float, float, float] = _EFFICIENCY_CUDA,
) -> Device:
    attention = _ATTENTION_HOPPER if sm[0] == 9 else {}
    gpu, between = Gpu(title, sm, gigabytes * 10**9), Link(_NCCL_NS, link * _NCCL)
    about = between, gpu, processors, attention, _PCIE.get(sm[0], _PCIE5)
    return Device(name, "cuda", *rates, bandwidth, efficiency, _LAUNCH_CUDA, *about)


DEVICES: dict[str, Device] = {
    device.name: device
    for device in (  # processors: streaming multiprocessors, by the data sheets and whitepapers of the architectures
        # bandwidth: 8 TB/s of HBM3e; link: NVLink 5, 900 GB/s each way
        _gpu("b200", "NVIDIA B200", (10, 0), 180, (_BLACKWELL_MATRIX, _BLACKWELL_VECTOR), 8e12, 900e9, 148),
        # bandwidth: 4.8 TB/s of HBM3e; link: NVLink 4, 450 GB/s each way
        _gpu("h200", "NVIDIA H200", (9, 0), 141, (_HOPPER_MATRIX, _HOPPER_VECTOR), 4.8e12, 450e9, 132),
        # bandwidth: 3.35 TB/s of HBM3 (SXM); link: NVLink 4
        _gpu("h100", "NVIDIA H100 80GB HBM3", (9, 0), 80, (_HOPPER_MATRIX, _HOPPER_VECTOR), 3.35e12, 450e9, 132),
        # bandwidth: 2.039 TB/s of HBM2e (80 GB SXM); link: NVLink 3, 300 GB/s each way
        _gpu(
            "a100",
            "NVIDIA A100-SXM4-80GB",
            (8, 0),
            80,
            (_AMPERE_MATRIX, _AMPERE_VECTOR),
            2.039e12,
            300e9,
            108,
            _EFFICIENCY_AMPERE,
        ),
        # bandwidth: 1,008 GB/s of GDDR6X; link: PCIe 4.0 x16, 32 GB/s each way
        _gpu("rtx4090", "NVIDIA GeForce RTX 4090", (8, 9), 24, (_ADA_MATRIX, _ADA_VECTOR), 1.008e12, 32e9, 128),
        # bandwidth: 864 GB/s of GDDR6; link: PCIe 4.0 x16
        _gpu("l40s", "NVIDIA L40S", (8, 9), 48, (_L40S_MATRIX, _L40S_VECTOR), 864e9, 32e9, 142),
        # bandwidth: 320 GB/s of GDDR6; link: PCIe 3.0 x16, 16 GB/s each way
        _gpu("t4", "Tesla T4", (7, 5), 16, (_TURING_MATRIX, _TURING_VECTOR), 320e9, 16e9, 40),
        # ROCm runs other operators than CUDA, so costs alone. bandwidth: 5.3 TB/s of HBM3; link: Infinity Fabric, seven
        # links of 64 GB/s each way; processors: compute units
        Device(
            "mi300x",
            "cuda",
            _CDNA3_MATRIX,
            _CDNA3_VECTOR,
            5.3e12,
            _EFFICIENCY_CDNA3,
            _LAUNCH_CUDA,
            Link(_NCCL_NS, 448e9 * _NCCL),
            processors=304,
            host=_PCIE5,
        ),
        # POET's times are FLOP over FLOP/s, without memory traffic
        *(
            Device(name, "cpu", _flat(POWER[name].flops), _flat(POWER[name].flops), 1e18, (1.0, 1.0, 1.0), 0, _GLOO)
            for name in POWER
        ),
        Device("cpu", "cpu", _CPU_MATRIX, _CPU_VECTOR, 12e9, (0.7, 0.5, 0.8), 2_000, _GLOO),
    )
}
_PREFIX = "cuda:"


def named_gpu(device: str | None) -> Device | None:
    """Return the device for `cuda:h100`; None for a name without a GPU model (`cpu`, `cuda`, `cuda:1`, nothing).

    Raises:
        ProfileError: The table has no such name.
    """
    if device is None or not device.startswith(_PREFIX) or device.removeprefix(_PREFIX).isdecimal():
        return None
    named = DEVICES.get(device.removeprefix(_PREFIX))
    if named is None or named.gpu is None:
        names = ", ".join(_PREFIX + name for name, known in DEVICES.items() if known.gpu)
        why = ": ROCm runs other operators than CUDA" if named is not None and named.kind == "cuda" else ""
        raise ProfileError(f"{device[:80]!r} is no GPU that can be planned for{why}\n  hint: one of {names}")
    return named


def is_estimated(cost: str) -> bool:
    """Return whether times and workspaces of these costs are estimates. Floors and bounds then hold for the
    estimates only."""
    return cost in DEVICES
