// chapter 1
// %% hooks-header
// The hooks: what PyTorch asks of the device outside of any operator, before and while tensors exist.
#pragma once

namespace cookbook {

// Makes this backend the process's accelerator. PyTorch accepts hooks once in a process; called a second time this
// returns without doing anything, and it throws when another backend was first.
void register_hooks();

}  // namespace cookbook
