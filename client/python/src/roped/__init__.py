"""roped for Python: transformer kernels of a daemon, and of this process.

    import roped

    client = roped.Client("http://127.0.0.1:8000")   # remote
    q, k = client.rope(q, k, positions=positions, theta=500000.0)

    from roped import ops                            # in this process
    y = ops.rmsnorm(x, weight, eps=1e-5)

Tensors are numpy's or torch's, and results are of the same kind.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from roped._client import AsyncClient, Client, Region, Timing
from roped._errors import Error
from roped._operators import CODES
from roped._operators import VERSION as __version__
from roped._programs import AsyncProgram, Program
from roped._recorder import Recorder, Value

if TYPE_CHECKING:
    from roped import ops as ops

__all__ = ["CODES", "AsyncClient", "AsyncProgram", "Client", "Error", "Program", "Recorder", "Region", "Timing", "Value", "__version__"]


def __getattr__(name: str) -> Any:
    """roped.ops where it is first asked for: a program that only calls servers does not load the kernels."""
    if name != "ops":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return import_module("roped.ops")


def __dir__() -> list[str]:
    return sorted({*globals(), "ops"})
