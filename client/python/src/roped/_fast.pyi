from collections.abc import Callable
from typing import Any

class Form:
    def __new__(
        cls, work: Any, n_values: int, given: list[tuple[int, int]],
        made: list[tuple[int, Callable[..., Any], tuple[Any, ...]]], returned: list[int], result: type | None, /,
    ) -> Form: ...  # fmt: skip

def know_torch(
    *, launch_on: int, error: Callable[[int, str], Exception], table: Any, tensor_types: tuple[type, ...],
    watchers: tuple[Callable[[], Any], ...], is_recording: Callable[[], Any], current_device: Callable[[], Any],
) -> None: ...  # fmt: skip
def key(arguments: tuple[Any, ...], out: Any, named: dict[str, Any], /) -> bytes | None: ...
def launch(forms: dict[bytes, Form], arguments: tuple[Any, ...], out: Any, named: dict[str, Any], /) -> Any: ...
