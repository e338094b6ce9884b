"""deploy/kubernetes: every object passes Kubernetes' own schema, or the models
that KServe's package brings, and what the manifests name is there: files, ports,
labels, settings, metrics. The daemon starts with their environment, and answers
their probes. Folders are put together as kustomize does it; no cluster runs them."""

import ast
import json
import os
import re
import socket
import subprocess
import time
from pathlib import Path

import pytest
import requests
import yaml

kubernetes_validate = pytest.importorskip("kubernetes_validate")

ROOT = Path(__file__).resolve().parents[2] / "deploy/kubernetes"
BUILD = Path(os.environ["ROPED_INTEROP_BUILD"])
DAEMON = BUILD / "bin/roped"
MODELS = BUILD / "interop/perf/kserve/models"
VERSIONS = ["1.29", "1.37"]


# ------------------------------------------------------------------ kustomize
def merge(base, patch):
    """A strategic merge: maps by key, lists of named things by name."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return base | {key: merge(base.get(key), value) for key, value in patch.items()}
    named = [isinstance(x, list) and all(isinstance(y, dict) and "name" in y for y in x) for x in (base, patch)]
    if all(named):
        names = {x["name"]: x for x in base}
        return list((names | {x["name"]: merge(names.get(x["name"]), x) for x in patch}).values())
    return patch


def build(folder):
    settings = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(settings) <= {"apiVersion", "kind", "resources", "patches", "labels"}
    out = []
    for name in settings["resources"]:
        path = folder / name
        out += build(path) if path.is_dir() else [x for x in yaml.safe_load_all(path.read_text()) if x]
    for entry in settings.get("patches", []):
        patch = yaml.safe_load((folder / entry["path"]).read_text())
        same = [i for i, x in enumerate(out) if (x["kind"], x["metadata"]["name"]) == (patch["kind"], patch["metadata"]["name"])]
        assert len(same) == 1, f"{entry['path']} patches {len(same)} objects"
        out[same[0]] = merge(out[same[0]], patch)
    return out


FOLDERS = ["base", "gpu", "monitoring", "kserve"]
OBJECTS = {name: build(ROOT / name) for name in FOLDERS}
CORE = [(name, x) for name in FOLDERS for x in OBJECTS[name] if not re.search("kserve|coreos", x["apiVersion"])]


def find(folder, kind, name="roped"):
    return next(x for x in OBJECTS[folder] if (x["kind"], x["metadata"]["name"]) == (kind, name))


def pod(folder):
    return find(folder, "Deployment")["spec"]["template"]["spec"]


CONTAINERS = {
    "base": pod("base")["containers"][0],
    "gpu": pod("gpu")["containers"][0],
    "kserve": find("kserve", "ServingRuntime")["spec"]["containers"][0],
}


def environment(folder):
    return {x["name"]: x["value"] for x in CONTAINERS[folder]["env"]}


def probes(folder):
    return {name: x["httpGet"] for name, x in CONTAINERS[folder].items() if name.endswith("Probe")}


def port_number(container, port):
    return next((x["containerPort"] for x in container["ports"] if x.get("name") == port), port)


# -------------------------------------------------------------------- schemas
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder, item", CORE, ids=lambda x: x if isinstance(x, str) else x["kind"])
def test_kubernetes_takes_it(folder, item, version):
    kubernetes_validate.validate(item, version, strict=True)


def test_a_wrong_object_is_refused():
    wrong = merge(find("base", "Deployment"), {"spec": {"replica": 2}})
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def literals(model):
    """Types and JSON names of a class, out of its source: the package itself wants many others."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", model).lower()
    tree = ast.parse((MODELS / f"{snake}.py").read_text())
    found = {x.targets[0].id: ast.literal_eval(x.value) for x in ast.walk(tree)
             if isinstance(x, ast.Assign) and isinstance(x.targets[0], ast.Name) and isinstance(x.value, ast.Dict)}
    return {key: found["openapi_types"][name] for name, key in found["attribute_map"].items()}


def check_kserve(value, model, path):
    """Raises where a field is unknown or of another type; containers are Kubernetes' own."""
    if many := re.fullmatch(r"list\[(.*)\]", model):
        assert isinstance(value, list), f"{path}: a list is expected"
        for i, item in enumerate(value):
            check_kserve(item, many[1], f"{path}[{i}]")
    elif plain := {"str": str, "int": int, "bool": bool, "dict(str, str)": dict}.get(model):
        assert type(value) is plain, f"{path}: {value!r} is not {model}"
    elif model == "V1Container":
        item = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [value]}}
        kubernetes_validate.validate(item, VERSIONS[-1], strict=True)
    elif model != "V1ObjectMeta":
        types = literals(model)
        for key, item in value.items():
            assert key in types, f"{path} has no {key}"
            check_kserve(item, types[key], f"{path}.{key}")


needs_kserve = pytest.mark.skipif(not MODELS.is_dir(), reason="pip could not install kserve")


@needs_kserve
@pytest.mark.parametrize("item, model", [
    (find("kserve", "ServingRuntime"), "V1alpha1ServingRuntime"),
    (find("kserve", "InferenceService"), "V1beta1InferenceService"),
], ids=lambda x: x if isinstance(x, str) else "")
def test_kserve_takes_it(item, model):
    check_kserve(item, model, item["kind"])
    wrong = merge(item, {"spec": {"protocolVersion": "v2"}})
    with pytest.raises(AssertionError, match="has no protocolVersion"):
        check_kserve(wrong, model, item["kind"])


def test_kserve_knows_the_runtime():
    runtime = find("kserve", "ServingRuntime")
    model = find("kserve", "InferenceService")["spec"]["predictor"]["model"]
    assert CONTAINERS["kserve"]["name"] == "kserve-container"
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"] in [{k: x[k] for k in ("name", "version")} for x in runtime["spec"]["supportedModelFormats"]]
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]


# ---------------------------------------------------- what one says of another
def test_labels_and_ports_lead_somewhere():
    labels = find("base", "Deployment")["spec"]["template"]["metadata"]["labels"]
    for kind in ["Deployment", "PodDisruptionBudget"]:
        assert find("base", kind)["spec"]["selector"]["matchLabels"] == labels
    assert find("base", "NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    names = {x["name"]: x["containerPort"] for x in CONTAINERS["base"]["ports"]}
    for name in ["roped", "roped-admin"]:
        spec = find("base", "Service", name)["spec"]
        assert spec["selector"] == labels
        assert [names[x["targetPort"]] for x in spec["ports"]] == [x["port"] for x in spec["ports"]]
    allowed = {p["port"] for rule in find("base", "NetworkPolicy")["spec"]["ingress"] for p in rule["ports"]}
    assert allowed == set(names.values())


def test_the_monitor_finds_the_admin_service():
    # no schema of it is at hand: fields as the operator's documentation has them
    spec = find("monitoring", "ServiceMonitor")["spec"]
    endpoint = spec["endpoints"][0]
    assert set(spec) == {"selector", "endpoints"} and set(endpoint) == {"port", "path", "interval", "authorization"}
    volume = pod("base")["volumes"][0]
    assert endpoint["authorization"] == {"credentials": {"name": volume["secret"]["secretName"], "key": "token"}}
    service = find("base", "Service", "roped-admin")
    assert spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert endpoint["port"] == service["spec"]["ports"][0]["name"]
    assert not spec["selector"]["matchLabels"].items() <= find("base", "Service")["metadata"]["labels"].items()
    target = find("monitoring", "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", find("base", "Deployment")["metadata"]["name"])


# ------------------------------------------------------------------ the daemon
def settings(folder):
    """What is in force with this environment; the daemon refuses a key that it does not know."""
    result = subprocess.run([DAEMON, "--check-config"], env=environment(folder), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return dict(line.split(" = ", 1) for line in result.stdout.splitlines() if " = " in line)


def in_bytes(text):
    number, unit = re.fullmatch(r"(\d+)\s*([kmgtKMGT]?)i?[bB]?", text).groups()
    return int(number) << 10 * " kmgt".index(unit.lower() or " ")


@pytest.mark.parametrize("folder", CONTAINERS)
def test_settings_are_known(folder):
    keys = set(re.findall(r"^  --(\w+)", subprocess.check_output([DAEMON, "--help"], text=True), re.MULTILINE))
    assert {name.removeprefix("ROPED_").lower() for name in environment(folder)} <= keys
    found = settings(folder)
    for name, value in environment(folder).items():
        shown = found[name.removeprefix("ROPED_").lower()]
        assert shown == value or in_bytes(shown) == in_bytes(value), name


@pytest.mark.parametrize("folder", CONTAINERS)
def test_the_limit_holds_the_memory(folder):
    found = settings(folder)
    keys = ["host_bytes"]
    if found["backend"] != "cuda":
        keys += ["device_bytes", "region_memory", "table_budget_bytes"]
    limit = in_bytes(CONTAINERS[folder]["resources"]["limits"]["memory"])
    assert sum(in_bytes(found[key]) for key in keys) + (200 << 20) <= limit


@pytest.mark.parametrize("folder", ["base", "gpu"])
def test_nobody_kills_a_drain(folder):
    found = settings(folder)
    steps = [float(found[f"drain_{step}_seconds"]) for step in ("delay", "idle", "timeout")] + [1]
    assert sum(steps) < pod(folder)["terminationGracePeriodSeconds"]
    readiness = CONTAINERS[folder]["readinessProbe"]
    assert steps[0] > 2 * readiness["periodSeconds"] * readiness["failureThreshold"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.parametrize("folder", ["base", "kserve"])
def test_the_daemon_runs_with_it(folder, tmp_path):
    """But for addresses, which are loopback's, and the secret's path."""
    values = environment(folder)
    container = CONTAINERS[folder]
    ports = {int(values[name].rsplit(":")[-1]): free_port() for name in ("ROPED_LISTEN", "ROPED_ADMIN_LISTEN")}
    assert {x["containerPort"] for x in container["ports"]} <= set(ports)
    for name in ("ROPED_LISTEN", "ROPED_ADMIN_LISTEN"):
        host, number = values[name].rsplit(":", 1)
        assert host == "0.0.0.0"  # kubelet and Service ask the pod's address
        values[name] = f"127.0.0.1:{ports[int(number)]}"
    headers = {}
    if "ROPED_BEARER_TOKEN_FILE" in values:
        mount = container["volumeMounts"][0]["mountPath"]
        assert values["ROPED_BEARER_TOKEN_FILE"] == f"{mount}/token"
        (tmp_path / "token").write_text("0123456789abcdef0123456789abcdef\n")
        values["ROPED_BEARER_TOKEN_FILE"] = str(tmp_path / "token")
        headers["Authorization"] = "Bearer 0123456789abcdef0123456789abcdef"
    values["ROPED_DRAIN_DELAY_SECONDS"] = "0"
    daemon = subprocess.Popen([DAEMON, "--backend", "cpu"], env=values, stderr=subprocess.PIPE, text=True)
    try:
        urls = {name: f"http://127.0.0.1:{ports[port_number(container, x['port'])]}{x['path']}"
                for name, x in probes(folder).items()}
        assert {"readinessProbe", "livenessProbe"} <= set(urls)
        deadline = time.monotonic() + 20
        for url in urls.values():
            while True:
                assert daemon.poll() is None, daemon.stderr.read()
                try:
                    assert requests.get(url, timeout=5).status_code == 200
                    break
                except requests.ConnectionError:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
        admin = f"http://127.0.0.1:{ports[8001]}"
        path = find("monitoring", "ServiceMonitor")["spec"]["endpoints"][0]["path"]
        metrics = requests.get(admin + path, headers=headers, timeout=5).text
        wanted = find("monitoring", "HorizontalPodAutoscaler")["spec"]["metrics"][0]["pods"]["metric"]["name"]
        assert re.search(rf"^{wanted} \d", metrics, re.MULTILINE)
        clients = f"http://127.0.0.1:{next(n for p, n in ports.items() if p != 8001)}"
        body = json.dumps({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [3, 4]}]})
        assert requests.post(f"{clients}/v2/models/rmsnorm/infer", data=body, headers=headers, timeout=5).status_code == 200
        if headers:
            assert requests.post(f"{clients}/v2/models/rmsnorm/infer", data=body, timeout=5).status_code == 401
    finally:
        daemon.terminate()
        assert daemon.wait(20) == 0
