# chapter 4
# %% gpu-trace
"""Who wants to hear of every block that the program gets and gives back.

PyTorch looks for these two by name, `torch.<device>._gpu_trace`, once `torch._C._activate_gpu_trace()` has been called.
A callback gets the block's address, may allocate itself, and is called with the GIL and without a lock.
"""

from torch._utils import CallbackRegistry

MemoryAllocationCallbacks: CallbackRegistry[[int]] = CallbackRegistry("cookbook memory allocation")
MemoryDeallocationCallbacks: CallbackRegistry[[int]] = CallbackRegistry("cookbook memory deallocation")
