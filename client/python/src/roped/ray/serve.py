"""Daemons as replicas of a Ray Serve deployment. Serve starts, watches, replaces and
counts them; calls go to them directly.

    from ray import serve
    from roped.ray.serve import Daemons, application

    serve.run(application(num_gpus=0.5, max_replicas=8), name="roped", route_prefix="/roped")

    daemons = Daemons("roped")                # in a driver, task or actor of the cluster
    y = daemons.client().rmsnorm(x)           # a roped.Client over those that there are

Outside of the cluster GET /roped of Serve's proxy has the list: {"urls": [...]}.

A replica is a small Python process beside its daemon. It asks the daemon whether it
is alive and how many calls it has, and says to the list where it is.
"""

import http.client
import math
import re
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from roped._client import Client
from roped._errors import Error

serve: Any = import_module("ray.serve")  # whose types are not whole

_START_SECONDS = 60.0
_ASK_SECONDS = 3.0
_MISSED = 3  # rounds without a word, and a daemon is not in the list any more
_DRAIN = {"drain_delay_seconds": 3, "drain_idle_seconds": 1, "drain_timeout_seconds": 30}
# The daemon drains when its replica ends, however that ends: the pipe closes.
_KEEPER = """exec 3<&0
"$@" </dev/null 3<&- & daemon=$!
(cat <&3 >/dev/null; kill -TERM $daemon) 2>/dev/null & watch=$!
exec 3<&-
wait $daemon; code=$?
kill $watch 2>/dev/null
exit $code"""


class Daemon:
    """A replica: one daemon, on the address of its node and a port that is free."""

    def __init__(
        self, program: str, settings: Mapping[str, Any], token: str | None, period: float, list_name: str
    ) -> None:
        context = serve.get_replica_context()
        self.name, self.token = context.replica_id.unique_id, token
        self.list = serve.get_deployment_handle(list_name, app_name=context.app_name)
        self.folder = tempfile.TemporaryDirectory(prefix="roped-")
        place = Path(self.folder.name)
        host = import_module("ray.util").get_node_ip_address()
        own = {"listen": f"{host}:0", "port_file": place / "port", "admin_listen": f"unix:{place / 'admin'}"}
        flags = [part for key, value in {**settings, **own}.items() for part in (f"--{key}", _text(value))]
        with open(place / "log", "wb") as log:
            self.process = subprocess.Popen(
                ["sh", "-c", _KEEPER, "roped", program, *flags], stdin=subprocess.PIPE, stderr=log
            )
        deadline = time.monotonic() + _START_SECONDS
        while not (place / "port").exists() or not (place / "port").read_text().strip():
            self._check_process()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{program}: has no port after {_START_SECONDS:.0f} s: {self._log()}")
            time.sleep(0.02)
        scheme = "https" if settings.get("tls_cert_file") else "http"
        self.url = f"{scheme}://{host}:{(place / 'port').read_text().strip()}"
        self.busy = (time.monotonic(), 0.0)
        self.is_ending = False
        threading.Thread(target=self._tell, args=(period,), daemon=True).start()

    def _log(self) -> str:
        return (Path(self.folder.name) / "log").read_text(errors="replace")[-2000:].strip()

    def _check_process(self) -> None:
        if self.process.poll() is not None:
            raise RuntimeError(f"the daemon ended with {self.process.returncode}: {self._log()}")

    def _ask(self, path: str) -> str:
        connection = http.client.HTTPConnection("localhost", timeout=_ASK_SECONDS)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(_ASK_SECONDS)
        try:
            connection.sock.connect(str(Path(self.folder.name) / "admin"))
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}"} if self.token else {})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {text.strip()[:200]}")
        return text

    def _tell(self, period: float) -> None:
        while not self.is_ending:
            if self.process.poll() is None:
                self.list.put.remote(self.name, self.url)
            time.sleep(period)

    def check_health(self) -> None:
        """Serve's own: a replica that raises is replaced."""
        self._check_process()
        self._ask("/v2/health/live")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Serve's own: what the policy gets, the calls that run or wait. Of short ones hardly any is seen at one
        moment: how many there were on the average is their seconds by those that have passed."""
        text = self._ask("/metrics?name[]=roped_inflight_requests&name[]=roped_request_duration_seconds")
        now, busy = time.monotonic(), sum(map(float, re.findall(r"^\w+_seconds_sum\S* (\S+)", text, re.MULTILINE)))
        calls = sum(map(float, re.findall(r"^roped_inflight_requests (\S+)", text, re.MULTILINE)))
        before, self.busy = self.busy, (now, busy)
        return {"calls": max(calls, (busy - before[1]) / max(now - before[0], 1e-3))}

    def __del__(self) -> None:
        """Serve's own: out of the list, and then a drain."""
        if not hasattr(self, "is_ending"):
            return
        self.is_ending = True
        self.list.put.remote(self.name, None)
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class List:
    """The one replica that knows where the daemons are, and that others ask. One that Serve starts anew knows all
    again after a round."""

    def __init__(self, daemons: Any, period: float) -> None:
        self.known: dict[str, tuple[str, float]] = {}
        self.period = period

    async def put(self, name: str, url: str | None) -> None:
        self.known.pop(name, None)
        if url is not None:
            self.known[name] = (url, time.monotonic() + _MISSED * self.period)

    async def urls(self) -> list[str]:
        now = time.monotonic()
        self.known = {name: (url, until) for name, (url, until) in self.known.items() if now < until}
        return sorted(url for url, _ in self.known.values())

    async def __call__(self, request: Any) -> dict[str, list[str]]:
        return {"urls": await self.urls()}


class Policy:
    """As many daemons as it takes for each to have so many calls. Serve adds its delays and bounds."""

    def __init__(self, calls: float) -> None:
        self.calls = calls

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        counts = (context.aggregated_metrics or {}).get("calls", {})
        wanted = math.ceil(sum(counts.values()) / self.calls) if counts else context.target_num_replicas
        low, high = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
        return min(max(wanted, low), high), {}


def application(
    program: str = "roped", settings: Mapping[str, Any] | None = None, *, num_cpus: float = 1, num_gpus: float = 0,
    min_replicas: int = 1, max_replicas: int | None = None, calls: float = 8, autoscaling: Mapping[str, Any] | None = None,
    token: str | None = None, period: float = 2, ray_actor_options: Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    """For serve.run: daemons, and the list of where they are.

    program: on every node. settings: of roped.conf: {"host_bytes": "2g"}. Daemons that share a GPU (num_gpus below 1)
        share its memory: device_bytes, region_memory and table_budget_bytes of all together must fit.
    min_replicas, max_replicas: with more than min, Serve has a daemon for each so many calls that run or wait.
    autoscaling: more of Serve's AutoscalingConfig: {"upscale_delay_s": 5, "downscale_delay_s": 600}.
    token: with which a replica reads its daemon's metrics, where it needs one.
    period: seconds between two health checks, and between two messages to the list.
    """
    most = max_replicas or min_replicas
    if not 1 <= min_replicas <= most:
        raise ValueError(f"min_replicas: {min_replicas}, expected 1 to max_replicas, {most}")
    if calls <= 0 or period <= 0:
        raise ValueError(f"calls is {calls} and period {period}, expected numbers above 0")
    cores: dict[str, Any] = {"cpu_threads": math.ceil(num_cpus)} if num_cpus else {}
    whole = {**_DRAIN, **cores, **({"backend": "cuda"} if num_gpus else {}), **(settings or {})}
    options: dict[str, Any] = {"num_replicas": min_replicas}
    if most > min_replicas:
        policy = serve.config.AutoscalingPolicy(policy_function=Policy, policy_kwargs={"calls": calls})
        scaling = {"min_replicas": min_replicas, "max_replicas": most, "policy": policy, **(autoscaling or {})}
        options = {"autoscaling_config": scaling}
    daemons = serve.deployment(Daemon).options(
        name="Daemon",
        ray_actor_options={"num_cpus": num_cpus, "num_gpus": num_gpus, **(ray_actor_options or {})},
        health_check_period_s=period,
        health_check_timeout_s=_MISSED * _ASK_SECONDS,
        graceful_shutdown_timeout_s=sum(float(whole[key]) for key in _DRAIN) + 5,
        **options,
    )
    places = serve.deployment(List).options(
        name="List", num_replicas=1, max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0}
    )
    return places.bind(daemons.bind(program, whole, token, period, "List"), period)


class Daemons:
    """Where an application's daemons are. options: of roped.Client. Threads may share it."""

    def __init__(self, app: str = "roped", *, refresh: float = 5, timeout: float = 60, **options: Any) -> None:
        self._handle = serve.get_app_handle(app)
        self._app, self._refresh, self._timeout, self._options = app, refresh, timeout, options
        self._lock, self._next = threading.Lock(), 0.0
        self._urls: list[str] = []
        self._client: Client | None = None

    def urls(self) -> list[str]:
        """Those of now; waits until there is one."""
        deadline = time.monotonic() + self._timeout
        while True:
            found: list[str] = self._handle.urls.remote().result(timeout_s=self._timeout)
            if found:
                return found
            if time.monotonic() > deadline:
                raise Error(f"application '{self._app}' has no daemon after {self._timeout:g} s")
            time.sleep(0.1)

    def client(self) -> Client:
        """Of all that there are: the same one until others are there, which is asked every `refresh` seconds. It also
        goes on with the others where one of them has gone."""
        with self._lock:
            if self._client is None or time.monotonic() >= self._next:
                urls = self.urls()
                if urls != self._urls:
                    self._client, self._urls = Client(urls, **self._options), urls
                self._next = time.monotonic() + self._refresh
            assert self._client
            return self._client
