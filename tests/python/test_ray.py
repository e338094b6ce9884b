"""roped.ray on a cluster of three nodes of this machine, two of which have a CPU each
and die: what a dataset becomes, how long it takes, and daemons in Serve replicas.
With ROPED_TEST_RAY, which tests/run.sh --release sets, and not otherwise."""

import json
import os
import signal
import socket
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT  # noqa: F401 # finds reference.py

import roped

if "ROPED_TEST_RAY" not in os.environ:
    pytest.skip("without ROPED_TEST_RAY", allow_module_level=True)

import ml_dtypes
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data
import ray.data.extensions
from ray import serve
from ray.cluster_utils import Cluster
from reference import assert_rounded_to, rmsnorm

from roped.ray.data import map_batches, to_arrow, to_numpy
from roped.ray.serve import Daemons, application

N_ROWS = int(os.environ.get("ROPED_TEST_ROWS", "10000000"))
N_FILES, WIDTH = 20, 64
WEIGHT = np.linspace(0.5, 2, WIDTH, dtype=np.float32)
X = np.random.default_rng(2).standard_normal((4, 64), np.float32)
DAEMON = os.environ["ROPED_TEST_BIN"]


class Nodes:
    """A head without a CPU, and nodes with one each, at 127.0.0.N: Ray takes 127.0.0.1 for the machine's name."""

    def __init__(self, n):
        # Ray's driver has too much to say
        head = {"num_cpus": 0, "node_ip_address": "127.0.0.2", "object_store_memory": 200 << 20, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.n, self.nodes = 2, []
        for _ in range(n):
            self.add()
        ray.init(address=self.cluster.address, _node_ip_address="127.0.0.2", log_to_driver=False)

    def add(self):
        self.n += 1
        node = self.cluster.add_node(
            num_cpus=1, num_gpus=1, node_ip_address=f"127.0.0.{self.n}", object_store_memory=300 << 20
        )
        self.nodes.append(node)

    def kill(self):
        """The newest; its processes get SIGKILL. Its address."""
        node = self.nodes.pop()
        self.cluster.remove_node(node, allow_graceful=False)
        return node.node_ip_address

    def close(self):
        serve.shutdown()
        ray.shutdown()
        self.cluster.shutdown()


@pytest.fixture
def nodes():
    made = []

    def make(n):
        made.append(Nodes(n))
        return made[-1]

    yield make
    for one in made:
        one.close()


def until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, condition
        time.sleep(0.1)
    return value


# ------------------------------------------------------------------- columns
@pytest.mark.parametrize("array", [
    np.arange(6, dtype=np.int64), np.arange(6, dtype=np.float16).reshape(3, 2),
    np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.zeros((0, 4), np.float32),
], ids=str)  # fmt: skip
def test_columns(array, tmp_path):
    column = to_arrow(array)
    pq.write_table(pa.table({"x": column}), tmp_path / "x")
    read = pq.read_table(tmp_path / "x").column("x")
    for value in (column, pa.chunked_array([column, column[:1]]).slice(0, len(column)), read):
        back = to_numpy(value, "x")
        assert back.dtype == array.dtype and back.shape == array.shape
        np.testing.assert_array_equal(back, array)


def test_columns_of_others():
    wanted = np.arange(6, dtype=np.float32).reshape(3, 2)
    lists = pa.array(wanted.tolist(), pa.list_(pa.float32()))
    ours = ray.data.extensions.ArrowTensorArray.from_numpy(wanted)
    arrows = pa.FixedShapeTensorArray.from_numpy_ndarray(wanted)
    for column in (lists, lists.cast(pa.large_list(pa.float32())), lists[1:], ours, arrows, pa.chunked_array([arrows])):
        np.testing.assert_array_equal(to_numpy(column, "x"), wanted[3 - len(column) :])
    fp8 = np.array([[1, 448], [-2, 0.5]], ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(to_numpy(to_arrow(fp8), "x").view(fp8.dtype), fp8)


@pytest.mark.parametrize("column, words", [
    (pa.array([[1.0], [1.0, 2.0]]), "column 'x': rows of 1 to 2 values, expected one length"),
    (pa.array([1.0, None]), "column 'x': 1 nulls"), (pa.array([[1.0], None]), "column 'x': 1 nulls"),
    (pa.array([[1.0], [None]]), "column 'x': 1 nulls"), (pa.array(["a"]), "column 'x': string, expected numbers"),
], ids=str)  # fmt: skip
def test_bad_columns(column, words):
    with pytest.raises((ValueError, TypeError), match=words):
        to_numpy(column, "x")


@pytest.mark.parametrize("op, tensors, more, words", [
    ("rmsnom", {"x": "a"}, {}, "no operator 'rmsnom'"), ("rmsnorm", {"weight": "a"}, {}, "misses tensor 'x'"),
    ("rmsnorm", {"x": X}, {}, "no column"), ("rmsnorm", {"x": "a", "wait": "b"}, {}, "did you mean 'weight'"),
    ("rmsnorm", {"x": "a"}, {"epsilon": 1}, "unexpected argument 'epsilon'"),
    ("rmsnorm", {"x": "a"}, {"outputs": {"z": "b"}}, "outputs: 'z', expected one of y"),
    ("rmsnorm", {"x": "a"}, {"types": {"x": "BF15"}}, "types: 'x' is BF15"),
    ("rope_append", {"q": "a", "k": "b", "v": "c", "k_cache": "d", "v_cache": "e", "slots": "f", "positions": "g"}, {}, "in place"),
], ids=str)  # fmt: skip
def test_bad_calls(op, tensors, more, words):
    with pytest.raises((ValueError, TypeError), match=words):
        map_batches(None, op, tensors, **more)


# --------------------------------------------------------------------- rows
@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """N_FILES of Parquet: the number of each row, and what is to be normalised."""
    folder = tmp_path_factory.mktemp("rows")
    for i, ids in enumerate(np.array_split(np.arange(N_ROWS), N_FILES)):
        x = np.random.default_rng(i).standard_normal((len(ids), WIDTH), np.float32).astype(np.float16)
        pq.write_table(pa.table({"id": ids, "hidden": to_arrow(x)}), folder / f"{i}.parquet", compression="none")
    return folder


def quantize(rows, out):
    dataset = ray.data.read_parquet(str(rows), override_num_blocks=N_FILES)
    tensors = {"x": "hidden", "weight": WEIGHT}
    dataset = map_batches(dataset, "rmsnorm_quantize", tensors, outputs={"y": "fp8"}, dynamic=True, eps=1e-5)
    dataset.write_parquet(str(out))


def check(rows, out):
    """Every row once, and right by numpy."""
    found = pq.read_table(out)
    ids = found.column("id").to_numpy()
    assert len(ids) == N_ROWS
    order = np.argsort(ids, kind="stable")
    np.testing.assert_array_equal(ids[order], np.arange(N_ROWS))
    codes = to_numpy(found.column("fp8"), "fp8")[order].view(ml_dtypes.float8_e4m3fn)
    scales = to_numpy(found.column("scales"), "scales")[order].astype(np.float64)
    start = 0
    for i in range(N_FILES):
        x = to_numpy(pq.read_table(rows / f"{i}.parquet").column("hidden"), "x")
        part = slice(start, start := start + len(x))
        exact = rmsnorm(x, WEIGHT, eps=1e-5)
        np.testing.assert_allclose(scales[part], np.abs(exact).max(axis=1) / 448, rtol=1e-6)
        assert_rounded_to(codes[part], exact / scales[part, None])


@pytest.fixture(autouse=True)
def settings():
    """A task for each file: its newer reader would take these small ones together."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.use_datasource_v2 = False


def test_a_node_dies_amid_ten_million_rows(nodes, rows, tmp_path):
    cluster, out = nodes(2), tmp_path / "out"
    when = []

    def kill():
        until(lambda: out.is_dir() and len([*out.iterdir()]) >= N_FILES // 5, 300)
        when.append(len([*out.iterdir()]))
        cluster.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    start = time.monotonic()
    quantize(rows, out)
    seconds = time.monotonic() - start
    killer.join()
    n_files = len([*out.iterdir()])
    assert n_files >= N_FILES and when[0] < n_files / 2  # it was not done
    check(rows, out)
    print(f"\n{N_ROWS} rows, a node killed after {when[0]} of {n_files} files: {seconds:.1f} s")


def test_two_nodes_beside_one(nodes, rows, tmp_path):
    cluster = nodes(1)
    seconds = {}
    for n in (1, 2):
        if n == 2:
            cluster.add()
        for turn in range(3):  # the first has workers to start
            start = time.monotonic()
            quantize(rows, tmp_path / f"{n}-{turn}")
            took = time.monotonic() - start
            if turn:
                seconds[n] = min(took, seconds.get(n, took))
    check(rows, tmp_path / "2-2")
    print(f"\n{N_ROWS} rows: one node {seconds[1]:.1f} s, two {seconds[2]:.1f} s, {seconds[2] / seconds[1]:.2f} of it")
    assert seconds[2] <= 0.65 * seconds[1], "on a quiet machine of two cores at least"


def test_more_operators(nodes):
    nodes(1)
    x = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    narrow = x.astype(ml_dtypes.bfloat16)
    table = pa.table({"x": to_arrow(x), "bits": to_arrow(narrow), "at": np.arange(1000)})
    made = map_batches(ray.data.from_arrow(table), "add_rmsnorm", {"x": "x", "residual": "x"}, ray_options={"batch_size": 300})
    found = pa.concat_tables(ray.get(made.to_arrow_refs()))
    assert set(found.column_names) == {"bits", "at", "y", "residual"}
    wanted = roped.ops.add_rmsnorm(x, x)
    order = np.argsort(found.column("at").to_numpy())
    for name in ("y", "residual"):
        np.testing.assert_array_equal(to_numpy(found.column(name), name)[order], getattr(wanted, name))
    made = map_batches(ray.data.from_arrow(table), "rmsnorm", {"x": "bits"}, types={"x": "BF16"})
    found = pa.concat_tables(ray.get(made.to_arrow_refs()))
    np.testing.assert_array_equal(to_numpy(found.column("y"), "y").view(narrow.dtype), roped.ops.rmsnorm(narrow))
    with pytest.raises(Exception, match="no column 'z', expected one of x, bits, at"):
        map_batches(ray.data.from_arrow(table), "rmsnorm", {"x": "z"}).materialize()
    assert map_batches(ray.data.from_arrow(table).filter(lambda row: False), "rmsnorm", {"x": "x"}).count() == 0


# ------------------------------------------------------------------- daemons
SETTINGS = {"backend": "cpu", "host_bytes": "256m", "device_bytes": "128m", "region_memory": "64m", "drain_delay_seconds": 1}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def deploy(**options):
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port}, proxy_location="HeadOnly")
    serve.run(application(DAEMON, **{"settings": SETTINGS, **options}), name="roped", route_prefix="/roped")
    return Daemons("roped", refresh=1), port


def processes():
    """Of daemons that replicas started, by their URL."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode().split("\0")
            if words[0] == DAEMON and "--port_file" in words:
                flags = dict(zip(words[1::2], words[2::2]))
                port = Path(flags["--port_file"]).read_text().strip()
                found[f"http://{flags['--listen'].removesuffix('0')}{port}"] = int(path.parent.name)
        except OSError:
            pass  # it has ended
    return found


def is_there(pid):
    return Path(f"/proc/{pid}").exists()


class Callers:
    """Threads that call until they are stopped; every answer is compared."""

    def __init__(self, daemons, x=X, n=4):
        self.x, self.daemons, self.n_calls, self.failures, self.is_over = x, daemons, 0, [], False
        self.threads = [threading.Thread(target=self.run) for _ in range(n)]
        for thread in self.threads:
            thread.start()

    def run(self):
        wanted = roped.ops.rmsnorm(self.x)
        while not self.is_over:
            try:
                np.testing.assert_array_equal(self.daemons.client().rmsnorm(self.x), wanted)
                self.n_calls += 1
            except Exception as error:
                self.failures.append(error)

    def go_on(self, n=200):
        seen = self.n_calls
        until(lambda: self.n_calls >= seen + n or self.failures)

    def stop(self):
        self.is_over = True
        for thread in self.threads:
            thread.join()
        assert not self.failures, self.failures[:3]
        return self.n_calls


@pytest.fixture
def call():
    made = []

    def start(daemons, x=X):
        made.append(Callers(daemons, x))
        return made[-1]

    yield start
    for one in made:
        one.is_over = True


def test_a_node_with_daemons_dies(nodes, call):
    """Half a GPU for each of four; the one node's two go amid calls, and none of these is lost."""
    cluster = nodes(2)
    daemons, port = deploy(num_cpus=0.2, num_gpus=0.5, min_replicas=4)
    before = until(lambda: len(found := daemons.urls()) == 4 and found)
    hosts = [url.rpartition(":")[0] for url in before]
    assert sorted(map(hosts.count, {*hosts})) == [2, 2]
    pids = processes()
    assert {*before} <= {*pids}
    for url in before:
        assert b"CUDA_VISIBLE_DEVICES=0" in Path(f"/proc/{pids[url]}/environ").read_bytes().split(b"\0")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/roped", timeout=10) as answer:
        assert json.load(answer) == {"urls": before}
    callers = call(daemons)
    callers.go_on()
    gone = cluster.kill()
    lost = [url for url in before if gone in url]
    assert len(lost) == 2
    for url in lost:  # at once, as with a host: here the processes of a node live on for a moment
        os.kill(pids[url], signal.SIGKILL)
    callers.go_on()
    until(lambda: not {*lost} & {*daemons.urls()})
    cluster.add()
    after = until(lambda: len(found := daemons.urls()) == 4 and found)
    callers.go_on()
    print(f"\n{callers.stop()} calls, two of four daemons killed with their node: none lost")
    left = [processes()[url] for url in after]
    serve.delete("roped")
    until(lambda: not any(map(is_there, left)))


def test_a_daemon_dies_and_a_replica(nodes, call):
    nodes(2)
    daemons, _ = deploy(num_cpus=0.4, min_replicas=2)
    before = until(lambda: len(found := daemons.urls()) == 2 and found)
    callers = call(daemons)
    callers.go_on()
    os.kill(processes()[before[0]], signal.SIGKILL)
    after = until(lambda: len(found := daemons.urls()) == 2 and before[0] not in found and found)
    callers.go_on()
    # the replica's own process: its daemon drains, and ends
    daemon = processes()[after[0]]
    keeper = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    replica = int(Path(f"/proc/{keeper}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(replica, signal.SIGKILL)
    until(lambda: not is_there(daemon))
    until(lambda: len(found := daemons.urls()) == 2 and after[0] not in found)
    callers.go_on()
    print(f"\n{callers.stop()} calls, a daemon killed and a replica: none lost")


def test_as_many_daemons_as_calls_want(nodes, call):
    nodes(2)
    scaling = {"upscale_delay_s": 0.5, "downscale_delay_s": 1, "metrics_interval_s": 0.5, "look_back_period_s": 2}
    daemons, _ = deploy(num_cpus=0.4, max_replicas=2, calls=0.2, autoscaling=scaling)
    assert len(daemons.urls()) == 1
    callers = call(daemons, np.ones((2048, 256), np.float32))
    both = until(lambda: len(found := daemons.urls()) == 2 and found)
    callers.go_on()
    callers.stop()
    until(lambda: len(daemons.urls()) == 1)
    until(lambda: len({*both} & {*processes()}) == 1)


def test_a_daemon_that_cannot_start(nodes):
    nodes(1)
    with pytest.raises(RuntimeError, match="failed"):
        deploy(settings={"queue_dept": 4})
    assert "queue_dept" in str(serve.status().applications["roped"].deployments["Daemon"].message)


@pytest.mark.parametrize("options, words", [
    ({"min_replicas": 0}, "min_replicas: 0"), ({"min_replicas": 3, "max_replicas": 2}, "expected 1 to max_replicas, 2"),
    ({"calls": 0}, "expected numbers above 0"),
], ids=str)  # fmt: skip
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        application(**options)
