# chapter 6
"""A program full of mistakes. Behind each stands the kind of error that mypy must report there; it never runs."""

import torch

import cookbook_backend as cookbook

cookbook.set_device(1.5)  # arg-type
cookbook.synchronize(device=["cookbook:1"])  # arg-type
count: str = cookbook.device_count()  # assignment
memory: int = cookbook.get_device_properties().memory  # attr-defined
cookbook.get_device_properties().name = "mine"  # misc
cookbook.manual_seed("42")  # arg-type
cookbook.manual_seed()  # call-arg
cookbook.set_metadata(torch.ones(2), {"scale": 0.5})  # dict-item
cookbook.fallback.set_policy("never")  # arg-type
cookbook.set_rng_state(b"state")  # arg-type
cookbook.stream(1)  # arg-type
cookbook.is_bf16_suported()  # attr-defined
cookbook.memory_snapshot()[0]["sise"]  # typeddict-item
torch.cookbook.device_count()  # attr-defined
torch.ones(2).cookbook()  # attr-defined
