"""Train and generate with Hugging Face transformers
=================================================

A small Llama with random weights trains for some steps and then writes tokens, on the CPU and on your device. Nothing in
`transformers <https://github.com/huggingface/transformers>`_ knows your device; what it needs is that the operators are
there and that they agree with the CPU's.
"""

# %%
# The model
# ---------
# From a configuration, so nothing is downloaded. Grouped attention heads, rotary positions and RMS norm are what current
# language models are made of.

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

import cookbook_backend

logging.disable_progress_bar()
torch.set_num_threads(1)
VOCABULARY = 64
config = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)

# %%
# The training
# ------------
# The model learns to count: each token is the one before plus 3. The policy ``"error"`` proves that no operator of the
# training step leaves the device.


def batch(seed: int) -> torch.Tensor:
    """Sequences that count in threes, (16, 12)."""
    start = torch.randint(3, VOCABULARY, (16, 1), generator=torch.Generator().manual_seed(seed))
    return 3 + (start + 3 * torch.arange(12)) % (VOCABULARY - 3)


def train(device: str, steps: int = 40) -> tuple[LlamaForCausalLM, torch.Tensor]:
    """Return the model and the loss of each step, on the CPU."""
    torch.default_generator.manual_seed(0)
    model = LlamaForCausalLM(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    losses = []
    for step in range(steps):
        tokens = batch(step).to(device)
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return model.eval(), torch.stack(losses).cpu()


_, on_cpu = train("cpu")
with cookbook_backend.fallback.policy("error"):
    model, on_device = train("cookbook")
print(f"loss {on_device[0]:.3f} -> {on_device[-1]:.3f}, on the CPU {on_cpu[0]:.3f} -> {on_cpu[-1]:.3f}")
torch.testing.assert_close(on_device, on_cpu, rtol=2e-2, atol=1e-2)

# %%
# Generating
# ----------
# Greedy, with the cache of keys and values. The tokens must be *equal* to those that the CPU makes of the same weights.

prompt = batch(1000)[:4, :4]
on_host = LlamaForCausalLM(config).eval()
on_host.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
options = {"max_new_tokens": 12, "do_sample": False}
expected = on_host.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
cookbook_backend.fallback.reset()
tokens = model.generate(prompt.to("cookbook"), attention_mask=torch.ones_like(prompt, device="cookbook"), **options)
print(tokens[0].tolist())
assert torch.equal(tokens.cpu(), expected)

# %%
# One operator runs on the CPU: ``isin``, by which ``generate`` asks after each token whether a sequence has ended. It moves
# some bytes, but it also waits for the device once a token; so would the answer itself, which Python has to know.

print(cookbook_backend.fallback.format_report())

# %%
# In bfloat16
# -----------

with torch.no_grad(), torch.autocast("cookbook", dtype=torch.bfloat16):
    logits = model(prompt.to("cookbook")).logits
print(logits.dtype, logits.argmax(-1)[0].tolist())

# %%
# Tied weights
# ------------
# Many models use one matrix for the embedding and for the last layer. It must be one matrix after the move as well, or the
# model trains two. PyTorch leaves a parameter its identity on a fixed list of devices only; your backend adds itself to
# it (``csrc/operators/set_data.cpp``).

tied_config = LlamaConfig(**{**config.to_dict(), "tie_word_embeddings": True})
tied = LlamaForCausalLM(tied_config).to("cookbook")
print(f"one matrix after the move: {tied.lm_head.weight is tied.model.embed_tokens.weight}")
assert tied.lm_head.weight is tied.model.embed_tokens.weight

# %%
# Saving and loading
# ------------------
# ``device_map`` takes your device by name, or a dictionary of names. ``"auto"`` does not know it: the memory it may plan
# with comes from a closed list of devices in ``accelerate`` (``get_max_memory`` in ``accelerate/utils/modeling.py``), and
# the model stays on the CPU.

with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    for device_map in ("cookbook", {"": "cookbook:1"}, "auto"):
        loaded = LlamaForCausalLM.from_pretrained(folder, device_map=device_map)
        print(f"{device_map!r}: {loaded.device}")
    tied.save_pretrained(folder)
    loaded = LlamaForCausalLM.from_pretrained(folder, device_map="cookbook")
    print(f"one matrix after loading: {loaded.lm_head.weight is loaded.model.embed_tokens.weight}")
