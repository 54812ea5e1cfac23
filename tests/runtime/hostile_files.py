"""Files whose operators would crash the process, or write out of bounds, if they ran: names and schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from remate_runtime.format.schedule import Constant, Schedule

from .strangers import edited, line

FAR = 1 << 40


def whole(numbers: int, *shape: int, kind: str = "i64") -> Constant:
    count = 1
    for size in shape:
        count *= size
    return Constant(type=f"{kind}[{','.join(map(str, shape))}]", data=(numbers,) * count)


def zeros(name: str, *shape: int) -> Any:
    return line("aten.zeros", list(shape), out=f"f32[{','.join(map(str, shape))}]", id=name)


def _pooled(n: int, indices: Constant) -> Schedule:
    small, large = (1, 2) + (1,) * n, (1, 2) + (3,) * n
    fixed = ([3] * n, [3] * n, [0] * n, [1] * n, False)
    name = f"aten.max_pool{n}d_with_indices_backward"
    out = f"f32[{','.join(map(str, large))}]"
    lines = zeros("grad", *small), zeros("x0", *large), line(name, "%grad", "%x0", *fixed, "%indices", out=out)
    return edited(*lines, constants={"indices": indices})


def _adaptive(n: int, indices: Constant) -> Schedule:
    small, large = (1, 2) + (1,) * n, (1, 2) + (3,) * n
    name, out = f"aten.adaptive_max_pool{n}d_backward", f"f32[{','.join(map(str, large))}]"
    lines = zeros("grad", *small), zeros("x0", *large), line(name, "%grad", "%x0", "%indices", out=out)
    return edited(*lines, constants={"indices": indices})


def files() -> Iterator[tuple[str, Schedule]]:
    for n, shape in ((2, (1, 2, 1, 1)), (3, (1, 2, 1, 1, 1))):
        for number in (FAR, -FAR, 10**6, -1):
            yield f"max_pool{n}d indices {number}", _pooled(n, whole(number, *shape))
            yield f"adaptive_max_pool{n}d indices {number}", _adaptive(n, whole(number, *shape))
    yield "fractional_max_pool3d", edited(
        zeros("grad", 1, 1, 1, 1, 1), zeros("x0", 1, 1, 3, 3, 3),
        line("aten.fractional_max_pool3d_backward", "%grad", "%x0", [2] * 3, [1] * 3, "%i", out="f32[1,1,3,3,3]"),
        constants={"i": whole(FAR, 1, 1, 1, 1, 1)},
    )  # fmt: skip
    for name in ("aten._softmax_backward_data", "aten._log_softmax_backward_data"):
        for grad, made in (((2, 3, 2, 2), (2, 3, 1, 2)), ((0, 4), (4,))):
            yield f"{name} of {list(made)}", edited(
                zeros("grad", *grad), zeros("y0", *made),
                line(name, "%grad", "%y0", 0, {"dtype": "f32"}, out=f"f32[{','.join(map(str, grad))}]"),
            )  # fmt: skip
    statistics = ("weight", "bias", "mean", "var")
    for name in statistics:
        yield f"batch norm with a short {name}", edited(
            zeros("x0", 1, 64, 6, 6), *(zeros(each, 1 if each == name else 64) for each in statistics),
            line(
                "aten._batch_norm_with_update_functional", "%x0", *(f"%{each}" for each in statistics), 0.1, 1e-5,
                out=("f32[1,64,6,6]", "f32[64]", "f32[64]", "u8[0]", "f32[64]", "f32[64]"),
            ),
        )  # fmt: skip
    yield (
        "adaptive_avg_pool3d without elements",
        edited(
            zeros("x0", 8, 8, 8, 8),
            line("aten._adaptive_avg_pool3d", "%x0", [1 << 31, 7, 0], out=f"f32[8,{1 << 31},7,0]"),
        ),
    )
    pooled = ("f32[1,3,2,2]", "i64[1,3,2,2]")
    yield "fractional_max_pool2d of no size", edited(
        zeros("g", 1, 3, 2, 2), zeros("x0", 1, 3, 9, 9), zeros("s", 1, 3, 2),
        line("aten.fractional_max_pool2d", "%x0", [3, 3], [], "%s", id="pool", out=pooled),
        line("aten.fractional_max_pool2d_backward", "%g", "%x0", [3, 3], [], "%pool:1", out="f32[1,3,9,9]"),
    )  # fmt: skip
    yield "embedding_dense_backward scaled", edited(
        zeros("grad", 5, 5), line("aten.embedding_dense_backward", "%grad", "%i", 10, -1, True, out="f32[10,5]"),
        constants={"i": whole(FAR, 5)},
    )  # fmt: skip
    yield "embedding_dense_backward", edited(
        zeros("grad", 5, 5), line("aten.embedding_dense_backward", "%grad", "%i", 10, -1, False, out="f32[10,5]"),
        constants={"i": whole(FAR, 5)},
    )  # fmt: skip
    yield "embedding_bag", edited(
        zeros("grad", 2, 5),
        line("aten._embedding_bag_dense_backward", "%grad", "%i", "%o", "%b", "%b", 10, False, 0, None, out="f32[10,5]"),
        constants={"i": whole(FAR, 5), "o": whole(FAR, 5), "b": whole(3, 2)},
    )  # fmt: skip
    yield "ctc_loss", edited(
        zeros("grad", 2), zeros("p", 4, 2, 3), zeros("alpha", 2, 4, 9), zeros("nll", 2),
        line("aten._ctc_loss_backward", "%grad", "%p", "%t", [4, 4], [4, 4], "%nll", "%alpha", 0, out="f32[4,2,3]"),
        constants={"t": whole(FAR, 2, 4)},
    )  # fmt: skip
    yield "native_layer_norm statistics", edited(
        zeros("g", 1, 2, 3), zeros("nothing", 0), zeros("one", 1, 1, 1),
        line("aten.native_layer_norm_backward", "%g", "%g", [1, 2, 3], "%nothing", "%one", "%g", "%g", [True] * 3,
             out=("f32[1,2,3]",) * 3),
    )  # fmt: skip
    yield "native_layer_norm gradient", edited(
        line("aten.native_layer_norm", "%x", [8], None, None, 1e-5, out=("f32[4,8]", "f32[4,1]", "f32[4,1]"), id="ln"),
        zeros("g", 1),
        line("aten.native_layer_norm_backward", "%g", "%x", [8], "%ln:1", "%ln:2", None, None, [True, False, False],
             out=("f32[4,8]", None, None)),
    )  # fmt: skip
    yield "native_batch_norm", edited(
        zeros("x0", 3, 1), zeros("one", 1), zeros("nothing", 0),
        line("aten.native_batch_norm_backward", "%nothing", "%x0", "%one", "%one", "%one", "%one", "%one", True, 1e-5,
             [True] * 3, out=("f32[3,1]", "f32[1]", "f32[1]")),
    )  # fmt: skip
    yield "batch_norm", edited(
        zeros("x0", 3, 4, 2, 2), zeros("one", 4), zeros("few", 1), zeros("nothing", 0),
        line("aten.batch_norm_backward", "%x0", "%x0", "%one", None, None, "%few", "%few", True, 1e-5, [True] * 3,
             "%nothing", out=("f32[3,4,2,2]", "f32[4]", "f32[4]")),
    )  # fmt: skip
    yield "adaptive_avg_pool", edited(
        zeros("g", 1, 4, 1, 2), zeros("x0", 0, 8, 1, 8),
        line("aten._adaptive_avg_pool2d_backward", "%g", "%x0", out="f32[0,8,1,8]"),
    )  # fmt: skip
    yield (
        "gelu_backward",
        edited(zeros("g", 100, 100), zeros("x0", 100), line("aten.gelu_backward", "%g", "%x0", out="f32[100,100]")),
    )
    yield "grid_sampler_3d", edited(
        zeros("g", 0, 0, 0, 0, 0), zeros("x0", 1, 1, 2, 2, 2), zeros("grid", 1, 1, 1, 1, 3),
        line("aten.grid_sampler_3d_backward", "%g", "%x0", "%grid", 0, 0, False, [True, True],
             out=("f32[1,1,2,2,2]", "f32[1,1,1,1,3]")),
    )  # fmt: skip
    yield "cdist", edited(
        zeros("g", 5, 6, 5), zeros("x1", 5, 6, 2), zeros("x2", 5, 5, 2), zeros("d", 5, 0, 5),
        line("aten._cdist_backward", "%g", "%x1", "%x2", {"float": "inf"}, "%d", out="f32[5,6,2]"),
    )  # fmt: skip
    yield (
        "pdist",
        edited(zeros("g", 0), zeros("x0", 3, 3), line("aten._pdist_backward", "%g", "%x0", 2.0, "%g", out="f32[3,3]")),
    )
    for key, value in (((4, 0, 6, 8), (4, 4, 6, 8)), ((4, 4, 6, 8), (4, 0, 6, 8)), ((4, 2, 6, 8), (4, 4, 6, 8))):
        yield f"attention {key} {value}", edited(
            zeros("q", 4, 4, 3, 8), zeros("k", *key), zeros("v", *value),
            line("aten._scaled_dot_product_flash_attention_for_cpu", "%q", "%k", "%v", 0.0, True,
                 out=("f32[4,4,3,8]{96,8,32,1}", "f32[4,4,3]{12,1,4}")),
        )  # fmt: skip
    yield "attention mask", edited(
        zeros("q", 4, 4, 3, 8), zeros("k", 4, 4, 6, 8), zeros("m", 2, 2),
        line("aten._scaled_dot_product_flash_attention_for_cpu", "%q", "%k", "%k", 0.0, False, attn_mask="%m",
             out=("f32[4,4,3,8]{96,8,32,1}", "f32[4,4,3]{12,1,4}")),
    )  # fmt: skip
    yield "attention backward", edited(
        zeros("q", 4, 4, 3, 8), zeros("k", 4, 4, 6, 8), zeros("s", 4, 4, 3), zeros("n", 0, 0, 0, 0),
        line("aten._scaled_dot_product_flash_attention_for_cpu_backward", "%n", "%q", "%k", "%k", "%q", "%s", 0.0, True,
             out=("f32[4,4,3,8]", "f32[4,4,6,8]", "f32[4,4,6,8]")),
    )  # fmt: skip
    yield "adaptive_avg_pool of nothing", edited(
        zeros("g", 8, 5, 7, 4), zeros("x0", 8, 0, 8, 8),
        line("aten._adaptive_avg_pool3d_backward", "%g", "%x0", out="f32[8,0,8,8]"),
    )  # fmt: skip
    yield "fft_c2r", edited(
        line("aten.zeros", [3, 6, 18], dtype={"dtype": "c64"}, out="c64[3,6,18]", id="z"),
        line("aten._fft_c2r", "%z", [2], 2, 10, out="f32[3,6,10]"),
    )  # fmt: skip
    yield "lu_unpack", edited(
        zeros("lu", 3, 5), line("aten.lu_unpack", "%lu", "%p", out=("f32[3,3]", "f32[3,3]", "f32[3,5]")),
        constants={"p": whole(1 << 30, 3, kind="i32")},
    )  # fmt: skip
    yield "ldl_solve", edited(
        zeros("ld", 5, 5), line("aten.linalg_ldl_solve", "%ld", "%p", "%ld", out="f32[5,5]"),
        constants={"p": whole(-1, 5, kind="i32")},
    )  # fmt: skip
    yield "segment_reduce", edited(
        zeros("g", 4), zeros("d", 5),
        line("aten._segment_reduce_backward", "%g", "%g", "%d", "max", lengths="%n", out="f32[5]"),
        constants={"n": whole(10**6, 4)},
    )  # fmt: skip
    for name, hidden, rows in (("hidden", 64, 4), ("weights", 4, 1), ("overflow", 1 << 31, 4)):
        layer = ("%s", "%wi", "%wi", "%b", "%b", "%h", "%h", False, [], 2, hidden, 1, True, False, False, True)
        made = ("f32[5,2,4]", "f32[2,4]", "f32[2,4]", "u8[28672]")
        yield f"lstm {name}", edited(
            zeros("s", 5, 2, 4), zeros("wi", 4 * rows, 4), zeros("b", 16), zeros("h", 2, 4),
            line("aten.mkldnn_rnn_layer", *layer, out=made),
        )  # fmt: skip
    back = ("%s", "%wi", "%wi", "%b", "%b", "%h", "%h", "%s", "%h", "%h", "%s", None, None)
    yield "lstm backward of nothing", edited(
        zeros("s", 5, 2, 4), zeros("wi", 16, 4), zeros("b", 16), zeros("h", 2, 4),
        line("aten.mkldnn_rnn_layer_backward", *back, False, 2, 4, 1, True, True, False, [], False, "%w",
             out=("f32[5,2,4]", "f32[16,4]", "f32[16,4]", "f32[16]", "f32[16]", "f32[2,4]", "f32[2,4]")),
        constants={"w": whole(255, 64, kind="u8")},
    )  # fmt: skip
    for kind in ("reflection", "replication"):
        yield f"{kind}_pad2d", edited(
            zeros("g", 1, 1, 1, 1), zeros("x0", 1, 1, 4, 4),
            line(f"aten.{kind}_pad2d_backward", "%g", "%x0", [1, 1, 1, 1], out="f32[1,1,4,4]"),
        )  # fmt: skip
    for op, args, out in (
        ("aten.index.Tensor", ("%x", ["%i"]), "f32[2,8]"),
        ("aten.gather", ("%x", 0, "%j"), "f32[2,1]"),
        ("aten.index_select", ("%x", 0, "%i"), "f32[2,8]"),
        ("aten.embedding", ("%x", "%i"), "f32[2,8]"),
        ("aten.take", ("%x", "%i"), "f32[2]"),
        ("aten.scatter.value", ("%x", 0, "%j", 1.0), "f32[4,8]"),
        ("aten.index_add", ("%x", 0, "%i", "%two"), "f32[4,8]"),
        ("aten.nll_loss_forward", ("%x", "%k", None, 1, -100), ("f32[]", "f32[]")),
        ("aten._grouped_mm", ("%x", "%w", "%o"), "f32[4,8]"),
    ):
        numbers = {"i": whole(FAR, 2), "j": whole(-FAR, 2, 1), "k": whole(10**6, 4), "o": whole(10**6, 2, kind="i32")}
        lines = zeros("two", 2, 8), zeros("w", 2, 8, 8), line(op, *args, out=out)
        yield op, edited(*lines, constants=numbers)
    for shape, norm, dim in (((3, 0), (1, 0), 1), ((4, 4), (1,), 0), ((4, 4), (4, 1), 1)):
        yield f"weight norm {shape} {norm}", edited(
            zeros("v", *shape), zeros("w", *norm),
            line("aten._weight_norm_interface", "%v", "%w", dim,
                 out=(f"f32[{','.join(map(str, shape))}]", f"f32[{','.join(map(str, norm))}]")),
        )  # fmt: skip
    yield "weight norm backward", edited(
        zeros("v", 4, 4), zeros("w", 4, 0),
        line("aten._weight_norm_interface_backward", "%v", "%v", "%w", "%w", 0, out=("f32[4,4]", "f32[4,0]")),
    )  # fmt: skip
    yield "resizing by other factors", edited(
        zeros("image", 6, 3, 10, 1),
        line("aten._upsample_bilinear2d_aa", "%image", [17, 18], False, 1.7, 0.9, out="f32[6,3,17,18]"),
    )  # fmt: skip
    yield "avg_pool2d", edited(
        zeros("g", 3, 3, 1, 3), zeros("x0", 2, 3, 1, 9),
        line("aten.avg_pool2d_backward", "%g", "%x0", [1, 3], [1, 3], [0, 0], False, True, None, out="f32[2,3,1,9]"),
    )  # fmt: skip
    yield "cholesky_solve", edited(
        zeros("b", 2, 3), zeros("factor", 2, 3, 4),
        line("aten._cholesky_solve_helper", "%b", "%factor", False, out="f32[2,3]"),
    )  # fmt: skip
    for name in ("_stack", "stack", "cat", "block_diag"):
        yield f"{name} of an empty list", edited(line(f"aten.{name}", [], out="f32[0]"))
    yield "addition of numbers", edited(line("aten.add.Tensor", 1, 2, out="i64[]"))
    for size, stride, offset in ((4, FAR, 0), (4, 1, FAR), (FAR, 1, 0), (40, 1, 0)):
        shown = f"f32[{size}]{{{stride}}}" if stride > 1 else f"f32[{size}]"
        far = line("aten.as_strided", "%x", [size], [stride], offset, out=shown, id="far")
        yield f"as_strided {size} {stride} {offset}", edited(far, line("aten.sum", "%far", out="f32[]"))
