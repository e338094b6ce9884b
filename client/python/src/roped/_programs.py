"""Programs: chains of operators that a daemon runs in one request."""

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from roped import _safetensors
from roped._errors import Error
from roped._functions import text_of
from roped._tensors import as_array, dtype_name, from_bytes, host_bytes, is_torch


class Program:
    """A program of a server. Call it with its inputs and parameters by name.

    name: on the server. inputs, outputs, parameters, regions: what its document says; parameters with their defaults.
    etag: of its document. Calls are refused (error.code "mismatch") once another document has its place.
    step_seconds: how long each step of the last call with timing="steps" took.
    """

    def __init__(self, client: Any, description: Mapping[str, Any]) -> None:
        try:
            self.name = str(description["name"])
            self.etag = str(description["etag"])
            self.inputs = [str(row["name"]) for row in description["inputs"]]
            self.outputs = [str(name) for name in description["outputs"]]
            self.parameters = {str(name): value for name, value in description["parameters"].items()}
            self.regions = [str(name) for name in description["regions"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise Error(f"the answer describes no program: {type(error).__name__}: {error}") from error
        if any(character < " " or character > "~" for character in self.etag):
            raise Error("the program has an ETag that is not printable")
        self.step_seconds: list[float] = []
        self._client = client

    def __repr__(self) -> str:
        return f"<Program {self.name}: {', '.join(self.inputs)} -> {', '.join(self.outputs)}>"

    def __call__(self, *, out: Mapping[str, Any] | None = None, **named: Any) -> dict[str, Any]:
        """Runs it, and returns its outputs by name: tensors of the kind that was given, and regions.

        named: inputs (tensors or regions) and parameters. out: regions for outputs, which are not sent then.
        timing="steps" runs its steps one by one, and says in step_seconds how long each took."""
        query: list[tuple[str, str]] = []
        sent: dict[str, tuple[str, tuple[int, ...], Any]] = {}
        like = None
        is_safe = not self.regions and not out
        for name, value in named.items():
            if name not in self.inputs:
                query.append((name, text_of(value)))
            elif hasattr(value, "_as_input"):
                query += value._as_input(name, self._client._there(value.name))
                is_safe = False  # a step may update it
            else:
                array = as_array(value, name)
                like = array if like is None or is_torch(array) else like
                sent[name] = (dtype_name(array.dtype), tuple(array.shape), host_bytes(array))
        made: dict[str, Any] = dict(out or {})
        for name, region in made.items():
            query.append((f"into.{name}", region._place(self._client._there(region.name))))
        for name, (kind, data) in self._send(query, sent, is_safe).items():
            made[name] = from_bytes(data, kind[0], kind[1], like)
        return made

    def _send(self, query: list[tuple[str, str]], sent: dict[str, Any], is_safe: bool) -> dict[str, Any]:
        path = f"/v1/programs/{quote(self.name, safe='')}" + (f"?{urlencode(query)}" if query else "")
        start = time.perf_counter()
        answer = self._client._servers.request(
            "POST", path, _safetensors.pieces(sent) if sent else (), is_safe=is_safe, is_kept=True,
            header=f"If-Match: {self.etag}\r\n",
        )  # fmt: skip
        self._client._timing = (answer.headers.get("server-timing", ""), time.perf_counter() - start)
        if not len(answer.body):
            return {}
        made = _safetensors.read(answer.body)
        times = _safetensors.metadata(answer.body).get("step_us")
        if times is not None:
            self.step_seconds = [_seconds(text) for text in str(times).split(",")]
        return made

    def delete(self) -> None:
        """Forgets it on the server."""
        self._client.delete_program(self.name)


def _seconds(text: str) -> float:
    try:
        return float(text) * 1e-6
    except ValueError as error:
        raise Error(f"the answer has no time of a step: {text[:32]!r}") from error


class AsyncProgram:
    """The same of an AsyncClient: calls and delete are awaited; names and etag are the program's."""

    def __init__(self, client: Any, program: Program) -> None:
        self._client, self._program = client, program

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def __repr__(self) -> str:
        return repr(self._program)

    async def __call__(self, *, out: Mapping[str, Any] | None = None, **named: Any) -> dict[str, Any]:
        return dict(await self._client._run(self._program, out=out, **named))

    async def delete(self) -> None:
        await self._client._run(self._program.delete)
