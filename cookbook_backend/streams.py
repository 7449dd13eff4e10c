# chapter 4
# %% streams
"""Streams and events under the names that libraries look for on `torch.<device>`.

`Stream` and `Event` are PyTorch's own: they reach this device through its guard, so nothing has to be derived.
"""

from __future__ import annotations

import torch

from . import _C, _index, current_device

Stream = torch.Stream
Event = torch.Event
_Device = int | str | torch.device | None


def current_stream(device: _Device = None) -> torch.Stream:
    """Return this thread's current stream of a device (default: the current one)."""
    return torch.accelerator.current_stream(_index(device, default=current_device()))


def default_stream(device: _Device = None) -> torch.Stream:
    """Return the stream on which work runs that asked for no other (default: of the current device)."""
    return _C.default_stream(_index(device, default=current_device()))


def set_stream(stream: torch.Stream) -> None:
    """Make a stream this thread's current one, and its device the current device."""
    torch.accelerator.set_stream(stream)


# %% streams-context
class stream:
    """Make a stream and its device current inside a `with` block; `None` changes nothing.

    `with stream:` alone leaves the device as it is when the stream is current on its own device already.
    """

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: list[tuple[int, torch.Stream]] = []  # a stack: one object may be entered again

    def __enter__(self) -> None:
        if self.stream is not None:
            previous = current_device(), current_stream(self.stream.device)
            torch.accelerator.set_stream(self.stream)
            self._previous.append(previous)

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            device, before = self._previous.pop()
            torch.accelerator.set_stream(before)
            _C.set_device(device)


# %% streams-more
def stream_priority_range(device: _Device = None) -> tuple[int, int]:
    """Return the least and the greatest priority of a device's streams: a smaller number is more urgent."""
    return _C.stream_priority_range(_index(device, default=current_device()))


def stream_priority(stream: torch.Stream) -> int:
    """Return the priority that the driver gave a stream; what was asked may have been out of its range."""
    return _C.stream_priority(stream)


def external_stream(handle: int) -> torch.Stream:
    """Return the stream of a driver handle (`cookbookStream_t` as a number) that other code made.

    The way back is `stream.native_handle`.

    The stream stays the property of whoever made it, who keeps it alive while it is in use here.

    Raises:
        ValueError: the handle is 0.
        torch.AcceleratorError: the driver knows no stream with this handle.
    """
    return _C.external_stream(handle)
