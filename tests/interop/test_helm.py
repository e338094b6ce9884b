"""deploy/helm: the chart, rendered and linted by Helm's own code with the twelve
profiles and with pairs of all values. Every object passes the schemas of
Kubernetes, KEDA, the Prometheus operator and KServe; what objects say of each
other is there; the daemon accepts each environment, and answers the probes. No
cluster runs any of it."""

import functools
import importlib
import itertools
import json
import lzma
import os
import re
import socket
import subprocess
import time
from pathlib import Path

import jsonschema
import kubernetes_validate
import kubernetes_validate.utils
import pytest
import requests
import yaml
from test_hosts import DAEMON, ROOT

MUST = "ROPED_TEST_MUST" in os.environ  # tests/run.sh --release

helm = importlib.import_module("helm_python") if MUST else pytest.importorskip("helm_python")
CHART = ROOT / "deploy/helm/roped"
PROFILES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "deploy/helm/profiles").glob("*.yaml"))}
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
VERSIONS = ["1.29", "1.33", "1.37"]
SCHEMAS = Path(__file__).parent / "schemas"

# what each value may be, besides its default, which is of pairs as well
OTHERS = {
    "image.repository": ["registry.example:5000/team/roped"], "image.tag": ["0.9@sha256:" + "0" * 64],
    "image.pullPolicy": ["Always"], "image.pullSecrets": [["mine", "yours"]], "backend": ["cuda"], "replicas": [0, 5],
    "cpu": ["500m", "1.5"], "gpu.resource": ["nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"], "gpu.count": [8],
    "gpu.runtimeClass": ["nvidia"], "memory.host": ["64m"], "memory.device": ["80g"], "memory.regions": ["3g"],
    "memory.tables": ["1m"], "settings": [{"queue_depth": 64, "inline_bytes": "1m", "compress_answers": True},
                                          {"log_format": "logfmt", "queue_timeout_seconds": 0.5}],
    "drain.delay": [60], "drain.idle": [0], "drain.timeout": [3600], "token.secret": ["", "mine"], "token.key": ["a.b"],
    "tls.secret": ["mine"], "tls.clientCa": [True], "service.type": ["LoadBalancer", "NodePort"], "service.port": [443],
    "service.annotations": [{"a.example/b": "true"}], "podLabels": [{"team": "7"}], "podAnnotations": [{"c": "1"}],
    "priorityClass": ["high"], "nodeSelector": [{"kind": "h100"}],
    "affinity": [PROFILES["gpu-host"]["affinity"]], "tolerations": [[{"key": "mine", "operator": "Exists"}]],
    "spread": [False], "disruption.enabled": [False], "disruption.maxUnavailable": ["25%"],
    "networkPolicy.enabled": [False], "networkPolicy.clientLabels": [{"may": "call", "x": "y"}],
    "networkPolicy.monitoringNamespace": ["watch"], "serviceMonitor.enabled": [True], "serviceMonitor.interval": ["1m"],
    "serviceMonitor.labels": [{"release": "prometheus"}], "serviceMonitor.secret": ["watcher"], "serviceMonitor.key": ["t"],
    "autoscaling.kind": ["hpa", "keda"], "autoscaling.min": [1], "autoscaling.max": [2], "autoscaling.inflight": [64],
    "autoscaling.queued": [1], "autoscaling.slowdown": [0], "autoscaling.prometheus": ["https://prometheus.example/a"],
    "kserve.enabled": [True],
}  # fmt: skip


def leaves(values, prefix=""):
    """PATH: default. A map that is empty, or that holds what Kubernetes has names for, is one value."""
    for name, value in values.items():
        if isinstance(value, dict) and value and name != "clientLabels":
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def put(values, path, value):
    *way, last = path.split(".")
    for name in way:
        values = values.setdefault(name, {})
    values[last] = value


def nested(flat):
    made = {}
    for path, value in flat.items():
        put(made, path, value)
    return made


NAMES = [path for path, _ in leaves(DEFAULTS)]
CHOICES = {path: [value, *OTHERS.get(path, [])] for path, value in leaves(DEFAULTS)}


CONSTRAINED = {"tls.clientCa", "tls.secret", "kserve.enabled", "autoscaling.kind", "serviceMonitor.enabled"}


def is_sound(v):
    """Not what the chart refuses with a reason of its own: test_contradictions. v may have some of the values."""
    of_kserve = v.get("tls.secret") or v.get("serviceMonitor.enabled") or v.get("autoscaling.kind", "none") != "none"
    return not (v.get("tls.clientCa") and v.get("tls.secret") == "") and not (v.get("kserve.enabled") and of_kserve)


def pairs_in(row):
    return set(itertools.combinations(((name, CHOICES[name].index(row[name])) for name in NAMES), 2))


def all_pairs():
    """Rows of values in which each pair of values is, greedily; and the pairs that no sound row has."""
    left = {
        ((a, i), (b, j)) for a, b in itertools.combinations(NAMES, 2)
        for i in range(len(CHOICES[a])) for j in range(len(CHOICES[b]))
    }  # fmt: skip
    rows, impossible = [], set()
    while left:
        pair = min(left)
        row = {name: CHOICES[name][i] for name, i in pair}
        for name in sorted(NAMES, key=lambda name: name not in CONSTRAINED):  # while there is a choice
            if name in row:
                continue
            sound = [i for i, value in enumerate(CHOICES[name]) if is_sound(row | {name: value})]
            have = [(other, CHOICES[other].index(value)) for other, value in row.items()]
            news = {i: sum(p in left for x in have for p in (((name, i), x), (x, (name, i)))) for i in sound}
            row |= {name: CHOICES[name][max(news, key=news.get)]} if news else {}
        if is_sound(row) and len(row) == len(NAMES):
            rows.append(row)
            left -= pairs_in(row)
        else:
            impossible.add(pair)
            left.remove(pair)
    return rows, impossible


ROWS, IMPOSSIBLE = all_pairs()
PAIRS = [nested(row) for row in ROWS]
CASES = PROFILES | {f"pairs-{i}": values for i, values in enumerate(PAIRS)} | {"defaults": {}}


@functools.cache
def chart():
    return helm.Chart.load(CHART)


def render(values):
    files = chart().render(values, name="mine", namespace="team")
    return [x for name, text in files.items() if name.endswith(".yaml") for x in yaml.safe_load_all(text) if x]


@functools.cache
def rendered(case):
    return render(CASES[case])


def find(case, kind, name="mine-roped"):
    return next((x for x in rendered(case) if (x["kind"], x["metadata"]["name"]) == (kind, name)), None)


def values_of(case):
    return chart().merge_values(CASES[case])


def pod(case):
    found = find(case, "Deployment")
    return found["spec"]["template"]["spec"] if found else find(case, "ServingRuntime")["spec"]


def container(case):
    return pod(case)["containers"][0]


def environment(case):
    return {x["name"]: x["value"] for x in container(case)["env"]}


# ------------------------------------------------------------------ the values
def test_all_values_are_paired():
    assert set(OTHERS) == set(NAMES)
    met = set.union(*map(pairs_in, ROWS))
    for (a, i), (b, j) in IMPOSSIBLE:
        assert {a, b} <= CONSTRAINED
        assert not is_sound({"tls.secret": "mine" if "tls.clientCa" in (a, b) else "", a: CHOICES[a][i], b: CHOICES[b][j]})
    n = [len(CHOICES[name]) for name in NAMES]
    assert len(met | IMPOSSIBLE) == sum(x * y for x, y in itertools.combinations(n, 2)) and not met & IMPOSSIBLE


def test_twelve_profiles():
    assert len(PROFILES) == 12


@pytest.mark.parametrize("path", [*NAMES, "new"])
def test_unknown_keys_are_refused(path):
    free = {"settings", "podLabels", "podAnnotations", "nodeSelector"}
    parent = path.rpartition(".")[0]
    wrong = {}
    put(wrong, f"{parent}.unknwon" if parent else "unknwon", 1)
    with pytest.raises(helm.HelmValuesError, match="unknwon"):
        render(wrong)
    if path not in free | {"new", "service.annotations", "serviceMonitor.labels", "networkPolicy.clientLabels", "tolerations"}:
        wrong = {}
        put(wrong, path, {"unknwon": 1})  # neither a value of another type
        with pytest.raises(helm.HelmValuesError):
            render(wrong)


def test_settings_are_those_of_the_daemon():
    keys = set(re.findall(r"^  --(\w+)", subprocess.check_output([DAEMON, "--help"], text=True), re.MULTILINE))
    named = set(chart().schema["properties"]["settings"]["propertyNames"]["enum"])
    set_by_chart = {name.removeprefix("ROPED_").lower() for name in {*environment("mutual-tls"), *environment("tls")}}
    assert named | set_by_chart | {"socket_mode", "socket_group", "port_file", "device", "devices", "programs"} == keys
    assert named & set_by_chart == {"log_format"}
    with pytest.raises(helm.HelmValuesError, match="queue_dept"):
        render({"settings": {"queue_dept": 1}})


@pytest.mark.parametrize("wrong, words", [
    ({"autoscaling": {"min": 9}}, "autoscaling.min: 9, expected at most autoscaling.max, 8"),
    ({"tls": {"clientCa": True}}, "expected tls.secret"),
    ({"tls": {"secret": "x"}, "kserve": {"enabled": True}}, "expected none with kserve.enabled"),
    ({"autoscaling": {"kind": "hpa"}, "kserve": {"enabled": True}}, "expected 'none' with kserve.enabled"),
    ({"serviceMonitor": {"enabled": True}, "kserve": {"enabled": True}}, "expected false with kserve.enabled"),
], ids=str)  # fmt: skip
def test_contradictions(wrong, words):
    with pytest.raises(helm.HelmRenderError, match=re.escape(words)):
        render(wrong)


@pytest.mark.parametrize("case", [*PROFILES, "defaults"])
def test_helm_lints_it(case):
    report = helm.lint(CHART, CASES[case], strict=True, kube_version="v1.33.0")
    assert not report["errors"] and all(x["error"] == "icon is recommended" for x in report["messages"]), report


def test_lint_finds_something(tmp_path):
    subprocess.run(["cp", "-r", CHART, tmp_path], check=True)
    (tmp_path / "roped/templates/wrong.yaml").write_text("{{ .Values.nowhere.at }}\n")
    assert helm.lint(tmp_path / "roped", {}, strict=True)["errors"]


# ----------------------------------------------------------------- the schemas
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)


def closed(schema):
    """A CustomResourceDefinition's schema that refuses what it does not name: Kubernetes would drop it."""
    if isinstance(schema, list):
        return [closed(x) for x in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


@functools.cache
def definition(api_version, kind):
    for path in SCHEMAS.glob("*/*s.yaml*"):
        text = lzma.open(path).read() if path.suffix == ".xz" else path.read_bytes()
        spec = yaml.load(text, yaml.CSafeLoader)["spec"]
        for version in spec["versions"]:
            if (f"{spec['group']}/{version['name']}", spec["names"]["kind"]) == (api_version, kind):
                schema = closed(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {"type": "object"}
                return jsonschema.Draft7Validator(schema)
    return None


def check(item, version):
    own = definition(item["apiVersion"], item["kind"])
    if own:
        own.validate(item)
    else:
        kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES)
def test_every_object_passes_its_schema(case, version):
    for item in rendered(case):
        check(item, version)


@pytest.mark.parametrize("case, kind, path", [
    ("cpu", "Deployment", "spec"), ("cpu-hpa", "HorizontalPodAutoscaler", "spec"), ("cpu", "NetworkPolicy", "spec"),
    ("cpu", "PodDisruptionBudget", "spec"), ("cpu-keda", "ScaledObject", "spec.triggers.0"),
    ("cpu-keda", "ServiceMonitor", "spec.endpoints.0"), ("kserve", "ServingRuntime", "spec.containers.0"),
    ("kserve", "InferenceService", "spec.predictor.model"),
])  # fmt: skip
def test_a_wrong_object_is_refused(case, kind, path):
    item = at = json.loads(json.dumps(find(case, kind)))
    for part in path.split("."):
        at = at[int(part)] if part.isdigit() else at[part]
    at["unknwon"] = 1
    with pytest.raises(jsonschema.ValidationError):
        check(item, VERSIONS[-1])


# ---------------------------------------------------- what one says of another
@pytest.mark.parametrize("case", CASES)
def test_objects_find_each_other(case):
    values = values_of(case)
    if values["kserve"]["enabled"]:
        assert {x["kind"] for x in rendered(case)} == {"ServingRuntime", "InferenceService"}
        runtime, model = find(case, "ServingRuntime"), find(case, "InferenceService")["spec"]["predictor"]["model"]
        assert container(case)["name"] == "kserve-container" and model["runtime"] == runtime["metadata"]["name"]
        assert model["modelFormat"] in [{k: x[k] for k in ("name", "version")} for x in runtime["spec"]["supportedModelFormats"]]
        assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
        return
    labels = find(case, "Deployment")["spec"]["template"]["metadata"]["labels"]
    wanted = find(case, "Deployment")["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= labels.items() and values["podLabels"].items() <= labels.items()
    names = {x["name"]: x["containerPort"] for x in container(case)["ports"]}
    for name in ["mine-roped", "mine-roped-pods"]:
        spec = find(case, "Service", name)["spec"]
        assert spec["selector"] == wanted and {x["targetPort"] for x in spec["ports"]} <= set(names)
    is_there = {kind: find(case, kind) for kind in (
        "PodDisruptionBudget", "NetworkPolicy", "ServiceMonitor", "HorizontalPodAutoscaler", "ScaledObject")}
    assert {kind for kind, x in is_there.items() if x} == {kind for kind, is_wanted in {
        "PodDisruptionBudget": values["disruption"]["enabled"], "NetworkPolicy": values["networkPolicy"]["enabled"],
        "ServiceMonitor": values["serviceMonitor"]["enabled"], "HorizontalPodAutoscaler": values["autoscaling"]["kind"] == "hpa",
        "ScaledObject": values["autoscaling"]["kind"] == "keda"}.items() if is_wanted}
    if budget := is_there["PodDisruptionBudget"]:
        assert budget["spec"]["selector"]["matchLabels"] == wanted
    if policy := is_there["NetworkPolicy"]:
        assert policy["spec"]["podSelector"]["matchLabels"] == wanted
        assert {p["port"] for rule in policy["spec"]["ingress"] for p in rule["ports"]} == set(names.values())
    if monitor := is_there["ServiceMonitor"]:
        service, chosen = find(case, "Service", "mine-roped-pods"), monitor["spec"]["selector"]["matchLabels"]
        assert chosen.items() <= service["metadata"]["labels"].items()
        assert not chosen.items() <= find(case, "Service")["metadata"]["labels"].items()
        assert monitor["spec"]["endpoints"][0]["port"] in {x["name"] for x in service["spec"]["ports"]}
        own = values["serviceMonitor"]
        source = own if own["secret"] else values["token"]
        said = monitor["spec"]["endpoints"][0].get("authorization", {}).get("credentials")
        assert said == ({"name": source["secret"], "key": source["key"]} if source["secret"] else None)
    scaler = is_there["HorizontalPodAutoscaler"] or is_there["ScaledObject"]
    assert ("replicas" in find(case, "Deployment")["spec"]) == (scaler is None)
    if scaler:
        assert scaler["spec"]["scaleTargetRef"]["name"] == find(case, "Deployment")["metadata"]["name"]
        for metric in ("roped_inflight_requests", "roped_queue_depth"):
            assert json.dumps(scaler).count(metric) == 1


def test_gpus_by_name():
    for case, resource, count in [("gpu", "nvidia.com/gpu", 1), ("gpu-host", "nvidia.com/gpu", 8),
                                  ("gpu-mig", "nvidia.com/mig-1g.10gb", 1), ("gpu-time-sliced", "nvidia.com/gpu.shared", 1),
                                  ("kserve-gpu", "nvidia.com/gpu", 1)]:  # fmt: skip
        assert container(case)["resources"]["limits"][resource] == count
        assert environment(case)["ROPED_BACKEND"] == "cuda"
        assert {"nvidia.com/gpu", resource} == {x["key"] for x in pod(case)["tolerations"]}
    assert set(container("cpu")["resources"]["limits"]) == {"memory"}


def test_names_stay_short():
    for name in ("roped", "my-roped", "x" * 53):
        made = [yaml.safe_load(text)["metadata"]["name"] for path, text in chart().render({}, name=name, namespace="n").items()
                if path.endswith(("deployment.yaml", "disruption.yaml"))]
        assert set(map(len, made)) <= {len(name) if "roped" in name else 50} and len({*made}) == 1


# ------------------------------------------------------------------ the daemon
@functools.cache
def checked(case):
    """What is in force with this environment; the daemon refuses a key that it does not know."""
    done = subprocess.run([DAEMON, "--check-config"], env=environment(case), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(line.split(" = ", 1) for line in done.stdout.splitlines() if " = " in line)


def in_bytes(text):
    number, unit = re.fullmatch(r"([\d.]+)\s*([kmgtKMGT]?)i?[bB]?", text).groups()
    return float(number) * 1024 ** " kmgt".index(unit.lower() or " ")


@pytest.mark.parametrize("case", CASES)
def test_the_daemon_accepts_it(case):
    found = checked(case)
    for name, value in environment(case).items():
        shown = found[name.removeprefix("ROPED_").lower()]
        assert shown == value or in_bytes(shown) == in_bytes(value), name
    mounts = {x["mountPath"] for x in container(case).get("volumeMounts", [])}
    files = {value.rpartition("/")[0] for value in environment(case).values() if value.startswith("/run/")}
    assert files == mounts
    assert {x["name"] for x in container(case).get("volumeMounts", [])} == {x["name"] for x in pod(case).get("volumes", [])}


@pytest.mark.parametrize("case", CASES)
def test_the_limit_holds_the_memory(case):
    found = checked(case)
    keys = ["host_bytes"]
    if found["backend"] != "cuda":
        keys += ["device_bytes", "region_memory", "table_budget_bytes"]
    limit = in_bytes(container(case)["resources"]["limits"]["memory"])
    assert sum(in_bytes(found[key]) for key in keys) + (200 << 20) <= limit


@pytest.mark.parametrize("case", CASES)
def test_nobody_kills_a_drain(case):
    found = checked(case)
    steps = [float(found[f"drain_{step}_seconds"]) for step in ("delay", "idle", "timeout")] + [1]
    service = find(case, "InferenceService")
    owner = service["spec"]["predictor"] if service else pod(case)
    assert sum(steps) < owner["terminationGracePeriodSeconds"]
    readiness = container(case)["readinessProbe"]
    assert steps[0] > 2 * readiness["periodSeconds"] * readiness["failureThreshold"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory):
    """What the Secrets hold, in place of /run/secrets."""
    folder = tmp_path_factory.mktemp("secrets")
    for name in ("roped", "roped-tls"):
        (folder / name).mkdir()
    (folder / "roped/token").write_text(f"{TOKEN}\n")
    tls = folder / "roped-tls"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", tls / "tls.key",
                    "-out", tls / "tls.crt"], check=True, capture_output=True)  # fmt: skip
    (tls / "ca.crt").write_bytes((tls / "tls.crt").read_bytes())
    return folder


@pytest.mark.parametrize("case", ["defaults", "cpu", "tls", "mutual-tls", "kserve"])
def test_the_daemon_runs_with_it(case, tmp_path, secrets):
    """But for addresses, which are loopback's, and the secrets' paths."""
    values = {name: value.replace("/run/secrets", str(secrets)) for name, value in environment(case).items()}
    ports = {int(values[name].rsplit(":")[-1]): free_port() for name in ("ROPED_LISTEN", "ROPED_ADMIN_LISTEN")}
    assert {x["containerPort"] for x in container(case)["ports"]} <= set(ports)
    for name in ("ROPED_LISTEN", "ROPED_ADMIN_LISTEN"):
        host, number = values[name].rsplit(":", 1)
        assert host == "0.0.0.0"  # kubelet and Service ask the pod's address
        values[name] = f"127.0.0.1:{ports[int(number)]}"
    headers = {"Authorization": f"Bearer {TOKEN}"} if "ROPED_BEARER_TOKEN_FILE" in values else {}
    daemon = subprocess.Popen([DAEMON], env=values | {"ROPED_DRAIN_DELAY_SECONDS": "0"}, stderr=subprocess.PIPE, text=True)
    try:
        probes = [x["httpGet"] for name, x in container(case).items() if name.endswith("Probe")]
        assert len(probes) == 3
        deadline = time.monotonic() + 20
        for probe in probes:
            while True:
                assert daemon.poll() is None, daemon.stderr.read()
                try:
                    assert requests.get(f"http://127.0.0.1:{ports[probe['port']]}{probe['path']}", timeout=5).status_code == 200
                    break
                except requests.ConnectionError:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
        metrics = requests.get(f"http://127.0.0.1:{ports[8001]}/metrics", headers=headers, timeout=5).text
        for metric in ("roped_inflight_requests", "roped_queue_depth"):
            assert re.search(rf"^{metric} \d", metrics, re.MULTILINE)
        has_tls = "ROPED_TLS_CERT_FILE" in values
        port = next(n for p, n in ports.items() if p != 8001)
        url = f"{'https' if has_tls else 'http'}://127.0.0.1:{port}/v2/models/rmsnorm/infer"
        body = json.dumps({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [3, 4]}]})
        tls = secrets / "roped-tls"
        ask = functools.partial(requests.post, url, data=body, verify=str(tls / "tls.crt"), timeout=5)
        named = {"cert": (tls / "tls.crt", tls / "tls.key")} if "ROPED_TLS_CLIENT_CA_FILE" in values else {}
        assert ask(headers=headers, **named).status_code == 200
        if headers:
            assert ask(**named).status_code == 401
        if named:
            with pytest.raises(requests.ConnectionError):
                ask(headers=headers)
    finally:
        daemon.terminate()
        assert daemon.wait(20) == 0
