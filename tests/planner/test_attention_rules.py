"""The kernel of attention on CUDA, by architecture and versions. A CUDA build of each torch chose the same."""

import pytest
import torch

from remate.capture.cuda.attention import Call, TensorFacts, choice

NAMES = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn", -1: "none"}


def attention(
    capability,
    dtype=torch.bfloat16,
    head=64,
    mask=False,
    dropout=0.0,
    groups=8,
    cudnn=92000,
    torch=(2, 13),
    batch=2,
    queries=128,
):
    def facts(heads, length=128):
        shape = (batch, heads, length, head)
        return TensorFacts(dtype, True, shape, (heads * length * head, length * head, head, 1))

    masked = TensorFacts(dtype, False, (128, 128), (128, 1)) if mask else None
    grouped = groups != 8
    call = Call(
        capability, cudnn, torch, facts(8, queries), facts(groups), facts(groups), masked, dropout, False, grouped, True
    )
    return NAMES[choice(call)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("math", "flash", "flash", "cudnn", "cudnn")),
        ({"dropout": 0.1}, ("math", "flash", "flash", "flash", "flash")),
        ({"mask": True}, ("math", "efficient", "efficient", "cudnn", "cudnn")),
        ({"mask": True, "groups": 2}, ("math", "math", "math", "cudnn", "cudnn")),
        ({"head": 256, "dropout": 0.1}, ("math", "flash", "efficient", "flash", "flash")),
        ({"head": 320}, ("math", "efficient", "efficient", "efficient", "efficient")),
        ({"dtype": torch.float32}, ("efficient", "efficient", "efficient", "efficient", "efficient")),
        ({"dtype": torch.float64}, ("math", "math", "math", "math", "math")),
        ({"dtype": torch.float16, "head": 33}, ("math", "flash", "flash", "flash", "flash")),
    ],
)
def test_attention_runs_the_kernel_of_the_architecture(options, expected):
    chosen = tuple(attention(capability, **options) for capability in ((7, 5), (8, 0), (8, 9), (9, 0), (10, 0)))
    assert chosen == expected


def test_newer_versions_choose_otherwise():
    assert attention((9, 0), head=160) == "cudnn"
    assert attention((9, 0), head=160, cudnn=92400, torch=(2, 14)) == "flash"
    assert attention((8, 0), mask=True, groups=2, cudnn=92400, torch=(2, 14)) == "efficient"
    assert attention((9, 0), head=160, cudnn=92400) == "cudnn"  # an older torch with this cuDNN


@pytest.mark.parametrize(
    ("cudnn", "version", "expected"),
    [
        (92400, (2, 14), "flash"),
        (91800, (2, 14), "cudnn"),
        (92401, (2, 14), "cudnn"),
        (92501, (2, 14), "cudnn"),
        (92400, (2, 13), "cudnn"),
    ],
)
def test_a_single_query_on_blackwell(cudnn, version, expected):
    assert attention((10, 0), queries=1, cudnn=cudnn, torch=version) == expected
    assert attention((9, 0), queries=1, cudnn=cudnn, torch=version) == "cudnn"


@pytest.mark.parametrize(
    ("version", "dropout", "expected"),
    [
        ((2, 11), 0.1, "cudnn"),
        ((2, 12), 0.1, "flash"),
        ((2, 13), 0.1, "flash"),
        ((2, 11), 0.125, "cudnn"),
        ((2, 12), 0.125, "cudnn"),
        ((2, 12), 0.03125, "flash"),
    ],
)
def test_cudnn_takes_any_dropout_until_torch_2_12(version, dropout, expected):
    cudnn = 91900 if version == (2, 11) else 92000
    for capability in ((9, 0), (10, 0)):
        assert attention(capability, dropout=dropout, torch=version, cudnn=cudnn) == expected
    assert attention((8, 0), dropout=dropout, torch=version, cudnn=cudnn) == "flash"


@pytest.mark.parametrize(
    ("cudnn", "first", "with_dropout", "large"),
    [
        (90900, "flash", "flash", "flash"),
        (91002, "flash", "flash", "flash"),
        (91300, "flash", "flash", "flash"),
        (91500, "flash", "flash", "flash"),
        (91501, "cudnn", "cudnn", "cudnn"),
    ],
)
def test_older_cudnn_comes_last(cudnn, first, with_dropout, large):
    """Builds of torch 2.11 for CUDA 12 have it."""
    torch_211 = {"torch": (2, 11), "cudnn": cudnn}
    chosen = (attention((9, 0), **options, **torch_211) for options in ({}, {"dropout": 0.1}, {"head": 160}))
    assert tuple(chosen) == (first, with_dropout, large)


@pytest.mark.parametrize(
    ("cudnn", "large", "with_dropout"),
    [(90900, "none", "cudnn"), (91000, "cudnn", "cudnn"), (91300, "cudnn", "none"), (91400, "cudnn", "cudnn")],
)
def test_what_older_cudnn_takes(cudnn, large, with_dropout):
    old = {"torch": (2, 11), "cudnn": cudnn}
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
        assert attention((9, 0), head=160, **old) == large
        assert attention((9, 0), dropout=0.1, **old) == with_dropout


@pytest.mark.parametrize(("version", "expected"), [((2, 12), "cudnn"), ((2, 13), "flash"), ((2, 14), "flash")])
def test_cudnn_takes_batches_up_to_a_limit_from_torch_2_13(version, expected):
    assert attention((9, 0), batch=65535, torch=version) == "cudnn"
    assert attention((9, 0), batch=65536, torch=version) == expected
