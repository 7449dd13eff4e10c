# chapter 4
# %% random-generators
"""The random number generators of the devices: `torch.cookbook.manual_seed` and what else PyTorch expects by name.

A generator's state is a CPU tensor of 16 bytes: seed and offset, both unsigned 64-bit integers, as CUDA's generator has
it. None of these functions touches a device; they may be called before its first use.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Generator, Tensor

from . import _C, _index, current_device, device_count

default_generators: tuple[Generator, ...] = tuple(_C.default_generator(i) for i in range(device_count()))
"""The generator of each device, by index: operators draw from it when no `generator` is given."""


def _default(device: int | str | torch.device | None = None) -> Generator:
    return _C.default_generator(_index(device, default=current_device()))


# %% random-states
def get_rng_state(device: int | str | torch.device | None = None) -> Tensor:
    """Return the state of a device's default generator (default: the current device): uint8, shape (16,), on the CPU.

    Raises:
        RuntimeError: there is no such device.
    """
    return _default(device).get_state()


def set_rng_state(new_state: Tensor, device: int | str | torch.device | None = None) -> None:
    """Set the state of a device's default generator (default: the current device).

    Args:
        new_state: what `get_rng_state` returned; it is copied.
        device: the device whose generator continues there.

    Raises:
        TypeError: the state is no uint8 tensor on the CPU.
        RuntimeError: it has not 16 bytes, or its offset is no multiple of 4, or there is no such device.
    """
    _default(device).set_state(new_state.contiguous())


def get_rng_state_all() -> list[Tensor]:
    """Return the states of all devices' default generators, by index."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    """Set the states of the devices' default generators, in the order of `get_rng_state_all`."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


# %% random-seeds
def manual_seed(seed: int) -> None:
    """Seed the current device's default generator. Does nothing on a machine without a device.

    Args:
        seed: in [-2**63, 2**64), as `torch.manual_seed` takes it. `torch.manual_seed` seeds all devices itself.
    """
    if device_count() > 0:
        _default().manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the default generators of all devices alike. `torch.manual_seed` calls this."""
    for generator in default_generators:
        generator.manual_seed(seed)


def seed() -> None:
    """Seed the current device's default generator with an unpredictable number."""
    if device_count() > 0:
        _default().seed()


def seed_all() -> None:
    """Seed the default generators of all devices with one unpredictable number."""
    if device_count() > 0:
        manual_seed_all(default_generators[0].seed())


def initial_seed() -> int:
    """Return the seed of the current device's default generator."""
    return _default().initial_seed()


# if COOKBOOK_CHAPTER >= 6


# %% random-by-name
def _get_generator(device: torch.device) -> Generator:
    """Return a device's default generator. Compiled functions that draw random numbers ask for it by this name."""
    return _default(device)


# endif
