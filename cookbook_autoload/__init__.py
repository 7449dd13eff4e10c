# chapter 1
# %% autoload
"""What `import torch` calls so that nobody has to import the backend by name. A backend that does not load is a warning.

It is a package of its own because PyTorch turns whatever the entry point raises into an error of `import torch`, and a
package that fails while it is imported cannot do anything about that itself.
"""

from __future__ import annotations

import warnings
from importlib.metadata import entry_points


def autoload() -> None:
    """Import the backend. PyTorch's entry point: it runs in the last lines of `import torch`.

    A program that has imported `cookbook_backend` first comes here while that module is half made: then the import
    below finds it, and there is nothing to do.
    """
    try:
        import cookbook_backend  # noqa: F401
    except Exception as error:
        warnings.warn(f"torch has no device 'cookbook': {_advice(error)}", RuntimeWarning, stacklevel=2)


# %% autoload-advice
def _advice(error: Exception) -> str:
    """Return what failed and what the user can do: the message may be all that is seen of it."""
    text = (
        f"{type(error).__name__}: {str(error).rstrip('.')}. `import cookbook_backend` shows where it fails, "
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0 leaves it out"
    )
    others = sorted(p.value.split(":")[0] for p in entry_points(group="torch.backends") if p.name != "cookbook")
    if others:
        text += (
            f". Also installed: {', '.join(others)}; a process has room for one such backend. To choose one, set that variable "
            "and import it by name"
        )
    return text
