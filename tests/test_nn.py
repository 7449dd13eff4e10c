# chapter 2
"""Convolution, normalization, pooling, losses, embedding and attention against the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradients import never_waiting, with_gradients
from same_as_cpu import DTYPES, check
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

import cookbook_backend

FLOATING = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
Function = Callable[..., Any]


def image(*shape: int, dtype: torch.dtype = torch.float32, last: bool = False) -> Tensor:
    """Return numbers that are not ordered, of any dtype; optionally channels_last."""
    x = (torch.arange(float(torch.Size(shape).numel())).mul(7).remainder(11).reshape(shape) - 5) / 4
    x = x.abs() if dtype == torch.uint8 else x
    return x.to(dtype).contiguous(memory_format=LAST[len(shape)] if last else torch.contiguous_format)


CONVOLUTIONS: dict[str, tuple[Function, tuple[int, ...], tuple[int, ...], int]] = {
    "1d": (F.conv1d, (2, 4, 9), (6, 4, 3), 6),
    "2d": (F.conv2d, (2, 4, 7, 6), (6, 4, 3, 3), 6),
    "2d stride padding": (lambda *a: F.conv2d(*a, stride=2, padding=1), (2, 4, 7, 6), (6, 4, 3, 3), 6),
    "2d dilation": (lambda *a: F.conv2d(*a, dilation=2), (2, 4, 7, 6), (6, 4, 3, 3), 6),
    "2d same": (lambda *a: F.conv2d(*a, padding="same"), (2, 4, 7, 6), (6, 4, 3, 3), 6),
    "2d groups": (lambda *a: F.conv2d(*a, groups=2), (2, 4, 7, 6), (6, 2, 3, 3), 6),
    "2d depthwise": (lambda *a: F.conv2d(*a, groups=4), (2, 4, 7, 6), (4, 1, 3, 3), 4),
    "2d unbatched": (F.conv2d, (4, 7, 6), (6, 4, 3, 3), 6),
    "2d pixel": (F.conv2d, (2, 4, 7, 6), (6, 4, 1, 1), 6),
    "3d": (F.conv3d, (2, 4, 5, 4, 4), (6, 4, 2, 3, 3), 6),
    "1d transposed": (F.conv_transpose1d, (2, 4, 5), (4, 6, 3), 6),
    "2d transposed": (
        lambda *a: F.conv_transpose2d(*a, stride=2, padding=1, output_padding=1, groups=2),
        (2, 4, 5, 5), (4, 3, 3, 3), 6,
    ),
    "3d transposed": (F.conv_transpose3d, (2, 4, 3, 3, 3), (4, 6, 2, 2, 2), 6),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_convolution_of_every_dtype(name: str, dtype: torch.dtype) -> None:
    function, x, w, channels = CONVOLUTIONS[name]
    bias = image(channels, dtype=dtype)
    succeeded = check(function, image(*x, dtype=dtype), image(*w, dtype=dtype), bias)
    assert succeeded or dtype not in FLOATING


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_convolution_gradients(name: str, dtype: torch.dtype, bias: bool) -> None:
    function, x, w, channels = CONVOLUTIONS[name]
    biases = [image(channels, dtype=dtype)] if bias else []
    assert check(with_gradients(function), image(*x, dtype=dtype), image(*w, dtype=dtype), *biases)


@pytest.mark.parametrize("name", [n for n, c in CONVOLUTIONS.items() if len(c[1]) > 3])
@pytest.mark.parametrize(("input_last", "weight_last"), itertools.product((False, True), repeat=2))
def test_convolution_in_channels_last(name: str, input_last: bool, weight_last: bool) -> None:
    function, x, w, _ = CONVOLUTIONS[name]
    assert check(with_gradients(function), image(*x, last=input_last), image(*w, last=weight_last))


def test_convolution_of_an_empty_batch_and_of_slices() -> None:
    assert check(with_gradients(F.conv2d), image(0, 4, 7, 6), image(6, 4, 3, 3))
    assert check(lambda x, w: F.conv2d(x[:, ::2, 1:], w.transpose(2, 3)), image(2, 8, 7, 6), image(6, 4, 3, 3))


WRONG: dict[str, Callable[[], tuple[Any, ...]]] = {
    "conv channels": lambda: (F.conv2d, image(2, 3, 7, 6), image(6, 4, 3, 3)),
    "conv kernel": lambda: (F.conv2d, image(2, 4, 2, 2), image(6, 4, 3, 3)),
    "conv dtypes": lambda: (F.conv2d, image(2, 4, 7, 6), image(6, 4, 3, 3, dtype=torch.float64)),
    "conv bias": lambda: (F.conv2d, image(2, 4, 7, 6), image(6, 4, 3, 3), image(5)),
    "layer_norm shape": lambda: (lambda x: F.layer_norm(x, (5,)), image(2, 3)),
    "layer_norm dtypes": lambda: (lambda x, w: F.layer_norm(x, (3,), w), image(2, 3), image(3, dtype=torch.float64)),
    "group_norm groups": lambda: (lambda x: F.group_norm(x, 2), image(2, 3, 4)),
    "batch_norm channels": lambda: (lambda x, m: F.batch_norm(x, m, m), image(2, 3, 4), image(4)),
    "max_pool size": lambda: (lambda x: F.max_pool2d(x, 9), image(1, 1, 4, 4)),
    "adaptive dims": lambda: (lambda x: F.adaptive_avg_pool2d(x, 2), image(4, 4)),
    "nll batch": lambda: (F.nll_loss, image(3, 4), torch.tensor([0, 1])),
    "nll dtype": lambda: (F.nll_loss, image(2, 4), torch.tensor([0, 1], dtype=torch.int32)),
    "mse shapes": lambda: (F.mse_loss, image(3, 4), image(3, 5)),
    "huber delta": lambda: (lambda x, y: F.huber_loss(x, y, delta=-1.0), image(3), image(3)),
    "embedding dtype": lambda: (F.embedding, torch.tensor([0.0]), image(3, 4)),
    "attention dtypes": lambda: (
        F.scaled_dot_product_attention,
        image(1, 1, 2, 4),
        image(1, 1, 2, 4).double(),
        image(1, 1, 2, 4),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_raise_on_the_host(case: str) -> None:
    function, *arguments = WRONG[case]()
    assert not check(function, *arguments)


NORMS: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "batch": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), ((4, 3, 5, 2), (3,), (3,))),
    "batch 1d": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), ((4, 3), (3,), (3,))),
    "batch eval": (lambda x, w, b: F.batch_norm(x, b.detach(), w.detach().abs(), w, b), ((4, 3, 5, 2), (3,), (3,))),
    "batch plain": (lambda x: F.batch_norm(x, None, None, training=True), ((4, 3, 5, 2),)),
    "batch 3d": (lambda x: F.batch_norm(x, None, None, training=True), ((2, 3, 2, 2, 2),)),
    "instance": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), ((4, 3, 5, 2), (3,), (3,))),
    "layer": (lambda x, w, b: F.layer_norm(x, (5,), w, b), ((4, 3, 5), (5,), (5,))),
    "layer two": (lambda x, w: F.layer_norm(x, (3, 5), w), ((4, 3, 5), (3, 5))),
    "layer plain": (lambda x: F.layer_norm(x, (5,)), ((4, 5),)),
    "layer strided": (lambda x: F.layer_norm(x.t(), (4,)), ((4, 5),)),
    "layer empty": (lambda x, w, b: F.layer_norm(x, (5,), w, b), ((0, 5), (5,), (5,))),
    "group": (lambda x, w, b: F.group_norm(x, 2, w, b), ((3, 4, 5, 2), (4,), (4,))),
    "group plain": (lambda x: F.group_norm(x, 2), ((3, 4, 5),)),
    "rms": (lambda x, w: F.rms_norm(x, (5,), w), ((3, 4, 5), (5,))),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_normalization_of_every_dtype(name: str, dtype: torch.dtype) -> None:
    function, shapes = NORMS[name]
    succeeded = check(function, *(image(*shape, dtype=dtype) for shape in shapes))
    assert succeeded or dtype not in FLOATING


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_normalization_gradients(name: str, dtype: torch.dtype) -> None:
    function, shapes = NORMS[name]
    assert check(with_gradients(function), *(image(*shape, dtype=dtype) for shape in shapes))


def test_group_norm_in_channels_last() -> None:
    """The gradient's values are the CPU's; its strides are not, as core's formula makes them contiguous off the CPU."""
    function, (shape, *others) = NORMS["group"]
    arguments = [image(*shape, last=True), *(image(*s) for s in others)]
    assert check(function, *arguments)
    theirs = arguments[0].clone().requires_grad_()
    ours = arguments[0].to("cookbook").requires_grad_()
    (expected,) = torch.autograd.grad(function(theirs, *arguments[1:]).square().sum(), theirs)
    (actual,) = torch.autograd.grad(function(ours, *(a.to("cookbook") for a in arguments[1:])).square().sum(), ours)
    torch.testing.assert_close(actual.cpu(), expected)
    assert actual.is_contiguous()
    assert not expected.is_contiguous()


@pytest.mark.parametrize("name", [n for n, c in NORMS.items() if len(c[1][0]) > 3 and n != "group"])
def test_normalization_in_channels_last(name: str) -> None:
    function, (shape, *others) = NORMS[name]
    assert check(with_gradients(function), image(*shape, last=True), *(image(*s) for s in others))


def gaps(tensor: torch.Tensor) -> torch.Tensor:
    return torch.repeat_interleave(tensor, 2, dim=-1)[..., ::2]


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("layout", ["gaps", "permuted", "gaps in channels last", "expanded"])
def test_batch_norm_of_strided_inputs(layout: str, train: bool) -> None:
    """The CPU's kernel for `out` would leave `save_mean` unwritten here."""
    x = {
        "gaps": gaps(image(2, 4, 3, 5)),
        "permuted": image(3, 5, 2, 4).permute(2, 3, 0, 1),
        "gaps in channels last": gaps(image(2, 4, 3, 5, last=True)),
        "expanded": image(2, 4, 3, 1).expand(2, 4, 3, 5),
    }[layout]
    mean, variance = image(4), image(4).abs() + 1
    assert check(lambda a, m, v: F.batch_norm(a, m, v, training=train), x, mean, variance)
    assert check(
        with_gradients(lambda a, w: F.batch_norm(a, mean.to(a), variance.to(a), w, w, training=train)), x, mean
    )


@pytest.mark.parametrize("source", ["contiguous", "last", "gaps"])
@pytest.mark.parametrize("target", ["contiguous", "last", "gaps"])
def test_batch_norm_into_any_layout(source: str, target: str) -> None:
    """Against the functional form: `out=` on the CPU is wrong when the two layouts differ."""
    make = {
        "contiguous": lambda: image(2, 4, 3, 5),
        "last": lambda: image(2, 4, 3, 5, last=True),
        "gaps": lambda: gaps(image(2, 4, 3, 5)),
    }
    x = make[source]()
    expected = torch.native_batch_norm(x.contiguous(), None, None, None, None, True, 0.1, 1e-5)
    saved = [torch.empty(0, device="cookbook") for _ in range(2)]
    out = torch.empty_strided(make[target]().shape, make[target]().stride(), device="cookbook")
    results = torch.native_batch_norm(
        x.to("cookbook"), None, None, None, None, True, 0.1, 1e-5, out=(out, saved[0], saved[1])
    )
    for actual, wanted in zip(results, expected, strict=True):
        assert_close(actual.cpu(), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_float32_weights_beside_half_precision(dtype: torch.dtype) -> None:
    x, w = image(4, 4, 5, 2, dtype=dtype), image(4)
    assert check(with_gradients(lambda a, b: F.batch_norm(a, None, None, b, b, training=True)), x, w)
    assert check(with_gradients(lambda a, b: F.group_norm(a, 2, b, b)), x, w)
    assert check(with_gradients(lambda a, b: F.layer_norm(a, (4,), b, b)), image(3, 4, dtype=dtype), w)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_are_updated_in_stream_order(momentum: float | None) -> None:
    cpu = nn.BatchNorm2d(3, momentum=momentum)
    device = nn.BatchNorm2d(3, momentum=momentum, device="cookbook")
    for step in range(4):
        x = image(4, 3, 5, 2) * (step + 1)
        cpu(x)
        device(x.to("cookbook"))
    for key, expected in cpu.state_dict().items():
        assert_close(device.state_dict()[key].cpu(), expected)
    assert_close(device.eval()(x.to("cookbook")).cpu(), cpu.eval()(x))


POOLS: dict[str, Function] = {
    "max": lambda x: F.max_pool2d(x, 2),
    "max indices": lambda x: F.max_pool2d(x, 3, stride=2, padding=1, return_indices=True),
    "max dilation": lambda x: F.max_pool2d(x, 2, dilation=2, ceil_mode=True),
    "avg": lambda x: F.avg_pool2d(x, 2),
    "avg padding": lambda x: F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    "adaptive one": lambda x: F.adaptive_avg_pool2d(x, 1),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, size=(5, 9), mode="bilinear"),
    "bilinear corners": lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=True),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_pooling_of_every_dtype(name: str, dtype: torch.dtype, last: bool) -> None:
    succeeded = check(POOLS[name], image(2, 3, 7, 6, dtype=dtype, last=last))
    assert succeeded or dtype not in FLOATING


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("last", [False, True])
def test_pooling_gradients(name: str, last: bool) -> None:
    function = POOLS[name]
    first = (lambda x: function(x)[0]) if name == "max indices" else function
    assert check(with_gradients(first), image(2, 3, 7, 6, last=last))
    if "ear" not in name:
        assert check(with_gradients(first), image(3, 7, 6))


REDUCTIONS = ("none", "mean", "sum")
LOSSES: dict[str, Callable[[Tensor, Tensor, str], Tensor]] = {
    "mse": lambda x, y, r: F.mse_loss(x, y, reduction=r),
    "l1": lambda x, y, r: F.l1_loss(x, y, reduction=r),
    "smooth_l1": lambda x, y, r: F.smooth_l1_loss(x, y, reduction=r, beta=0.5),
    "huber": lambda x, y, r: F.huber_loss(x, y, reduction=r, delta=0.5),
    "bce": lambda x, y, r: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), reduction=r),
    "bce_with_logits": lambda x, y, r: F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction=r),
    "kl_div": lambda x, y, r: F.kl_div(x, y.sigmoid(), reduction=r),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [*FLOATING, torch.int64], ids=str)
def test_losses_between_tensors(name: str, reduction: str, dtype: torch.dtype) -> None:
    succeeded = check(
        lambda x, y: LOSSES[name](x, y, reduction), image(3, 4, dtype=dtype), image(4, 3, dtype=dtype).t()
    )
    assert succeeded or dtype == torch.int64 or (name, dtype) == ("bce", torch.float16)
    if dtype in (torch.float32, torch.float64):
        function = with_gradients(lambda x, y: LOSSES[name](x, y.detach(), reduction))
        assert check(function, image(3, 4, dtype=dtype), image(4, 3, dtype=dtype).t())


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(5, 4), (4,), (2, 4, 3, 2)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_cross_entropy(reduction: str, weighted: bool, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    target = torch.arange(torch.Size(shape[:1] + shape[2:] if len(shape) > 1 else ()).numel()).remainder(4)
    target = target.reshape(shape[:1] + shape[2:] if len(shape) > 1 else ())
    weight = [image(4, dtype=dtype).abs()] if weighted else []

    def loss(x: Tensor, t: Tensor, *w: Tensor) -> Tensor:
        return F.cross_entropy(x, t, w[0].detach() if w else None, ignore_index=2, reduction=reduction)

    assert check(loss, image(*shape, dtype=dtype), target, *weight)
    assert check(lambda x, t: with_gradients(lambda y: loss(y, t))(x), image(*shape, dtype=dtype), target)


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("options", [{}, {"padding_idx": 1}, {"scale_grad_by_freq": True}], ids=str)
def test_embedding(dtype: torch.dtype, options: dict[str, Any]) -> None:
    for tokens in (torch.tensor([[0, 1, 4], [4, 4, 1]]), torch.tensor([2, 2], dtype=torch.int32), torch.tensor(3)):
        function = with_gradients(lambda w, t: F.embedding(t, w, **options))
        assert check(function, image(5, 3, dtype=dtype), tokens)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **options: Any) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, None if mask is None else mask.detach(), **options)


ATTENTION: dict[str, tuple[dict[str, Any], list[tuple[int, ...]], str]] = {
    "plain": ({}, [(2, 3, 5, 8)] * 3, "fused"),
    "causal": ({"is_causal": True}, [(2, 3, 5, 8)] * 3, "fused"),
    "scale": ({"scale": 0.5}, [(2, 3, 5, 8)] * 3, "fused"),
    "other lengths": ({}, [(2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)], "fused"),
    "mask": ({}, [(2, 3, 5, 8)] * 3 + [(5, 5)], "fused"),
    "mask per head": ({}, [(2, 3, 5, 8)] * 3 + [(2, 3, 5, 5)], "fused"),
    "mask broadcast": ({}, [(2, 3, 5, 8)] * 3 + [(2, 1, 1, 5)], "fused"),
    "grouped": ({"enable_gqa": True}, [(2, 6, 5, 8), (2, 3, 5, 8), (2, 3, 5, 8)], "fused"),
    "mask of 3 dimensions": ({}, [(2, 3, 5, 8)] * 3 + [(3, 5, 5)], "math"),
    "3 dimensions": ({}, [(3, 5, 8)] * 3, "math"),
    "other width": ({}, [(2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 5, 4)], "math"),
}


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_attention(name: str, dtype: torch.dtype) -> None:
    options, shapes, way = ATTENTION[name]
    arguments = [image(*shape, dtype=dtype) for shape in shapes]
    if name == "grouped":
        arguments = [a.clone() for a in arguments]
    assert check(with_gradients(lambda *a: attend(*a, **options)), *arguments)
    mask = arguments[3].to("cookbook") if len(arguments) > 3 else None
    choice = torch._fused_sdp_choice(*(a.to("cookbook") for a in arguments[:3]), attn_mask=mask, **options)
    assert choice == (SDPBackend.OVERRIDEABLE if way == "fused" else SDPBackend.MATH).value


def test_attention_with_a_boolean_mask() -> None:
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    assert check(lambda q, m: attend(q, q, q, m), image(2, 3, 5, 8), mask)


def test_attention_of_transposed_heads_and_its_launches() -> None:
    q = torch.randn(2, 5, 3, 8)
    assert check(with_gradients(lambda x: attend(*[x.transpose(1, 2)] * 3)), q)
    x = torch.randn(2, 3, 5, 8).to("cookbook")
    with never_waiting() as counters:
        attend(x, x, x)
    assert counters["launches"] == 1


def test_attention_goes_the_way_of_math_when_it_must() -> None:
    x = image(2, 3, 5, 8).to("cookbook")
    choose = torch._fused_sdp_choice
    assert choose(x, x, x, dropout_p=0.5) == SDPBackend.MATH.value
    assert choose(x, x, x, attn_mask=torch.zeros(5, 5, device="cookbook", requires_grad=True)) == SDPBackend.MATH.value
    with sdpa_kernel(SDPBackend.MATH):
        assert choose(x, x, x) == SDPBackend.MATH.value
        cookbook_backend._C.reset_counters(0)
        assert_close(attend(x, x, x).cpu(), attend(x.cpu(), x.cpu(), x.cpu()))
        assert cookbook_backend._C.counters(0)["launches"] > 1
    mask = image(5, 5)
    assert check(with_gradients(lambda q, m: F.scaled_dot_product_attention(q, q, q, m)), image(2, 3, 5, 8), mask)


def test_a_class_out_of_range_is_reported_at_the_next_synchronization(device: torch.device) -> None:
    F.nll_loss(torch.zeros(2, 3, device=device), torch.tensor([0, 9], device=device))
    with pytest.raises(RuntimeError, match=r"nll_loss.*(?s:.*)out of bounds"):
        torch.accelerator.synchronize(device)


def test_launches_of_layers() -> None:
    x = torch.randn(2, 4, 8, 8).to("cookbook")
    layers = [nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.GroupNorm(2, 4), nn.MaxPool2d(2)]
    on_device = [layer.to("cookbook") for layer in layers]
    with never_waiting() as counters:
        for layer in on_device:
            layer(x)
        F.layer_norm(x, (8,))
    assert counters["launches"] == 5


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_an_encoder_layer_in_eval_mode_is_one_launch(norm_first: bool, masked: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first).eval()
    x, mask = torch.randn(2, 5, 8), torch.ones(5, 5, dtype=torch.bool).triu(1) if masked else None
    with torch.inference_mode():
        expected = layer(x, src_mask=mask)
        layer, x, mask = layer.to("cookbook"), x.to("cookbook"), None if mask is None else mask.to("cookbook")
        with never_waiting() as counters:
            actual = layer(x, src_mask=mask)
        assert_close(actual.cpu(), expected)
    assert masked or counters["launches"] == 1


@pytest.mark.parametrize("average", [False, True])
def test_multi_head_attention_in_eval_mode(average: bool) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    with torch.inference_mode():
        expected = attention(x, x, x, average_attn_weights=average)
        x = x.to("cookbook")
        assert_close([t.cpu() for t in attention.to("cookbook")(x, x, x, average_attn_weights=average)], list(expected))
