# chapter 4
"""PyTorch's helpers for tests of any device: classes made per device, and the decorators that choose tests for it."""

# PyTorch's TestCase compares tensors in its own assertEqual, which is one of the helpers under test.
# ruff: noqa: PT009, PT027

from __future__ import annotations

from collections import Counter

import torch
from torch.testing import make_tensor
from torch.testing._internal import common_device_type as types
from torch.testing._internal.common_utils import (
    DeterministicGuard,
    TestCase,
    freeze_rng_state,
    gradcheck,
    gradgradcheck,
    noncontiguous_like,
    parametrize,
)


class TestHelpers(TestCase):
    def test_equality_sees_values(self, device: str) -> None:
        self.assertEqual(torch.ones(2, device=device) + 1, torch.full((2,), 2.0, device=device))
        with self.assertRaises(AssertionError):
            self.assertEqual(torch.ones(2, device=device), torch.zeros(2, device=device))

    @types.deviceCountAtLeast(2)
    def test_all_devices(self, devices: list[str]) -> None:
        self.assertEqual([torch.ones(1, device=device).device.index for device in devices], [0, 1])

    @types.deviceCountAtLeast(3)
    def test_more_devices(self, devices: list[str]) -> None:
        raise AssertionError(f"there are two, got {devices}")

    @types.onlyNativeDeviceTypes
    def test_native(self, device: str) -> None:
        self.assertEqual(torch.ones(2, device=device).sum().item(), 2)

    @types.onlyAccelerator
    def test_accelerator(self, device: str) -> None:
        self.assertEqual(torch.ones(2, device=device).sum().item(), 2)

    @types.onlyCUDA
    def test_cuda(self, device: str) -> None:
        raise AssertionError(device)

    @types.skipMeta
    @types.dtypes(torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
    def test_each_dtype(self, device: str, dtype: torch.dtype) -> None:
        made = make_tensor((3, 4), dtype=dtype, device=device)
        self.assertEqual(made.dtype, dtype)
        self.assertEqual(noncontiguous_like(made), made)
        self.assertFalse(noncontiguous_like(made).is_contiguous())

    @types.precisionOverride({torch.float32: 1.0})
    @types.dtypes(torch.float32)
    def test_precision(self, device: str, dtype: torch.dtype) -> None:
        self.assertEqual(torch.ones(2, device=device), torch.full((2,), 1.5, device=device, dtype=dtype))

    @parametrize("count", [1, 2])
    def test_parameters(self, device: str, count: int) -> None:
        self.assertEqual(torch.ones(count, device=device).numel(), count)

    def test_random_state_is_put_back(self, device: str) -> None:
        state = torch.cookbook.get_rng_state()
        with freeze_rng_state():
            torch.rand(5, device=device)
            self.assertNotEqual(torch.cookbook.get_rng_state(), state)
        self.assertEqual(torch.cookbook.get_rng_state(), state)

    def test_finite_differences(self, device: str) -> None:
        x = torch.randn(3, device=device, dtype=torch.double, requires_grad=True)
        self.assertTrue(gradcheck(torch.sin, (x,)))
        self.assertTrue(gradgradcheck(torch.sin, (x,)))
        # It must be able to fail.
        wrong = lambda value: value * value.detach()  # noqa: E731
        self.assertFalse(gradcheck(wrong, (x,), raise_exception=False))

    def test_deterministic_mode(self, device: str) -> None:
        with DeterministicGuard(True):
            self.assertTrue(torch.empty(3, device=device).isnan().all())
            with self.assertRaisesRegex(RuntimeError, "does not have a deterministic implementation"):
                torch.ones(3, device=device).put_(torch.tensor([0], device=device), torch.ones(1, device=device))


types.instantiate_device_type_tests(TestHelpers, globals(), only_for="cookbook")


def test_each_was_made() -> None:  # B88: an empty run must be red
    assert {base.device_type for base in types.device_type_test_bases} >= {"cpu", "cookbook"}
    made = [value for name, value in globals().items() if name.startswith("TestHelpers")]
    assert [value.device_type for value in made] == ["cookbook"]
    names = Counter(name.rpartition("_cookbook")[0] for name in dir(made[0]) if "_cookbook" in name)
    assert names == {
        "test_equality_sees_values": 1,
        "test_all_devices": 1,
        "test_more_devices": 1,  # skipped
        "test_native": 1,
        "test_accelerator": 1,
        "test_cuda": 1,  # skipped, too
        "test_each_dtype": 5,
        "test_precision": 1,
        "test_parameters_count_1": 1,
        "test_parameters_count_2": 1,
        "test_random_state_is_put_back": 1,
        "test_finite_differences": 1,
        "test_deterministic_mode": 1,
    }
