// chapter 3
// %% exit-header
// The end of a process whose last act was a backward.
#pragma once

namespace cookbook {

// Makes autograd's device threads drop what they still hold of earlier backwards. Call it at exit, without the GIL,
// while the interpreter is whole. The engine stays usable.
void flush_autograd();

}  // namespace cookbook
