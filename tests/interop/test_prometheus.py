"""deploy/grafana and deploy/prometheus: a real Prometheus scrapes a daemon with
named tokens under load; each query of the dashboard, and each alert without its
threshold, returns numbers. promtool tests what the alerts say. Skipped where
Prometheus is not installed, or unpacked by deploy/install-deps.sh."""

import hashlib
import json
import math
import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
import requests
import yaml

from calls_beside import repeat

ROOT = Path(__file__).resolve().parents[2]
DAEMON = Path(os.environ["ROPED_INTEROP_BUILD"]) / "bin/roped"
PATH = f"{os.environ['PATH']}:{ROOT / 'build/tools/bin'}"
PROMETHEUS, PROMTOOL = shutil.which("prometheus", path=PATH), shutil.which("promtool", path=PATH)
RULES = ROOT / "deploy/prometheus/roped.rules.yml"
CONFIG = ROOT / "deploy/prometheus/prometheus.yml"
DASHBOARDS = [json.loads((ROOT / "deploy/grafana" / name).read_text()) for name in ("roped.json", "roped-hosts.json")]

pytestmark = pytest.mark.skipif(not PROMETHEUS or not PROMTOOL,
                                reason="no prometheus (deploy/install-deps.sh deploy)")

PANELS = [panel for dashboard in DASHBOARDS for panel in dashboard["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
ALERTS = [(rule["alert"], rule["expr"]) for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def promtool(*arguments, text=None):
    result = subprocess.run([PROMTOOL, *arguments], input=text, capture_output=True, text=True, cwd=RULES.parent)
    assert result.returncode == 0, result.stdout + result.stderr


def test_promtool_checks_the_rules():
    promtool("check", "rules", RULES.name)


@pytest.mark.parametrize("name", [CONFIG.name, "hosts.yml"])
def test_promtool_checks_the_configuration(name):
    promtool("check", "config", name)


def test_promtool_tests_the_rules():
    promtool("test", "rules", "roped.rules.test.yml")


def test_the_rules_test_has_every_alert():
    text = RULES.with_name("roped.rules.test.yml").read_text()
    assert set(re.findall(r"'\{alertname=\"(\w+)\"\}'", text)) == {name for name, _ in ALERTS}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard["uid"])
def test_the_dashboard_is_whole(dashboard):
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids)) and dashboard["schemaVersion"] and dashboard["uid"]
    cells = [(x, y) for p in dashboard["panels"] for x in range(p["gridPos"]["x"], p["gridPos"]["x"] + p["gridPos"]["w"])
             for y in range(p["gridPos"]["y"], p["gridPos"]["y"] + p["gridPos"]["h"])]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    variables = {x["name"] for x in dashboard["templating"]["list"]}
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}"
    for _, query in QUERIES:
        assert 'job=~"$job",instance=~"$instance"' in query
        assert set(re.findall(r"\$(\w+)", query)) <= variables | {"__rate_interval", "__interval"}


# ------------------------------------------------------------- a real Prometheus
def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def token_line(name, scopes):
    return f"{name} sha256:{hashlib.sha256(name.encode()).hexdigest()} {scopes}\n"


def wait_for(url, process, headers=None):
    deadline = time.monotonic() + 30
    while True:
        assert process.poll() is None, f"{process.args[0]} ended"
        try:
            if requests.get(url, headers=headers, timeout=5).status_code == 200:
                return
        except requests.ConnectionError:
            pass
        assert time.monotonic() < deadline, url
        time.sleep(0.05)


def load(port):
    """Calls, a named table, a region, refusals: what the panels show."""
    url, of_worker = f"http://127.0.0.1:{port}", {"Authorization": "Bearer worker"}
    requests.put(f"{url}/v1/regions/x?bytes=4096", headers=of_worker).raise_for_status()

    def calls(session):
        session.headers.update(of_worker)
        norm = {"inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [1.0] * 64}]}
        q = {"inputs": [{"name": "q", "shape": [4, 2, 64], "datatype": "FP32", "data": [1.0] * 512}]}
        assert session.post(f"{url}/v2/models/rmsnorm/infer", json=norm).status_code == 200
        assert session.post(f"{url}/v2/models/rope:q/infer", json=q).status_code == 200
        assert session.post(f"{url}/v2/models/rmsnorm/infer", json={}).status_code == 400
        assert session.get(f"{url}/metrics").status_code == 403

    return repeat(calls)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prometheus")
    port, admin, web = free_port(), free_port(), free_port()
    (folder / "tokens").write_text(token_line("worker", "call,regions") + token_line("scraper", "metrics"))
    config = yaml.safe_load(CONFIG.read_text())  # as it is shipped, but for the address, the token, and patience
    [job] = config["scrape_configs"]
    config["global"] = {name: "1s" for name in [*config["global"], "scrape_timeout"]}
    config["rule_files"] = [str(CONFIG.parent / name) for name in config["rule_files"]]
    job["static_configs"][0]["targets"] = [f"127.0.0.1:{admin}"]
    job["authorization"] = {"credentials": "scraper"}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    log = (folder / "log").open("w")
    daemon = subprocess.Popen([DAEMON, "--backend", "cpu", "--listen", f"127.0.0.1:{port}", "--admin_listen",
                               f"127.0.0.1:{admin}", "--bearer_token_file", folder / "tokens"], stderr=log)
    server = subprocess.Popen([PROMETHEUS, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
                               f"--web.listen-address=127.0.0.1:{web}"], stdout=log, stderr=log)
    try:
        wait_for(f"http://127.0.0.1:{admin}/v2/health/ready", daemon)
        with load(port) as is_calling:
            wait_for(f"http://127.0.0.1:{web}/-/ready", server)
            ask = Asker(f"http://127.0.0.1:{web}")
            deadline = time.monotonic() + 60
            while not (ask("count_over_time(roped_build_info[1m]) >= 6") and ask.rules_are_ok()):
                assert time.monotonic() < deadline, (folder / "log").read_text()[-4000:]
                assert is_calling()
                time.sleep(0.2)
            yield ask
    finally:
        for process in (server, daemon):
            process.terminate()
        server.wait(30)
        assert daemon.wait(30) == 0


class Asker:
    def __init__(self, url):
        self.url = url

    def __call__(self, query):
        answer = requests.post(f"{self.url}/api/v1/query", data={"query": query}, timeout=10).json()
        assert answer["status"] == "success", answer
        return [float(x["value"][1]) for x in answer["data"]["result"]]

    def rules_are_ok(self):
        groups = requests.get(f"{self.url}/api/v1/rules", timeout=10).json()["data"]["groups"]
        return [rule["health"] for group in groups for rule in group["rules"]] == ["ok"] * len(ALERTS)


def as_grafana(query):
    for name, value in [("__rate_interval", "5s"), ("__interval", "5s"), ("job", "roped"), ("instance", ".*")]:
        query = query.replace(f"${name}", value)
    return query


@pytest.mark.parametrize("title, query", QUERIES, ids=[f"{title}-{i}" for i, (title, _) in enumerate(QUERIES)])
def test_a_panel_has_data(prometheus, title, query):
    values = prometheus(as_grafana(query))
    assert any(math.isfinite(x) for x in values), f"{query}: {values}"


@pytest.mark.parametrize("title", ["Calls per second", "Not ok", "Duration, 99 of 100 calls", "Bytes of bodies",
                                   "Regions beside their limit", "Rotary tables per second",
                                   "Requests, by name of the token", "Busy lanes", "Processors"])
def test_a_panel_shows_the_load(prometheus, title):
    query = next(query for name, query in QUERIES if name == title)
    assert any(x > 0 for x in prometheus(as_grafana(query)))


@pytest.mark.parametrize("name, query", ALERTS, ids=[name for name, _ in ALERTS])
def test_an_alert_has_data_and_is_quiet(prometheus, name, query):
    measured, _, number = re.fullmatch(r"(.*) (>|==) ([\d.]+)\n?", query, re.DOTALL).groups()
    values = prometheus(measured)
    assert any(math.isfinite(x) for x in values), f"{measured}: {values}"
    assert prometheus(query) == [], f"{name} is raised: {values}, limit {number}"


@pytest.mark.parametrize("name", [x["name"] for x in DASHBOARDS[0]["templating"]["list"] if x["type"] == "query"])
def test_a_variable_has_values(prometheus, name):
    query = next(x["definition"] for x in DASHBOARDS[0]["templating"]["list"] if x["name"] == name)
    series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups()
    answer = requests.get(f"{prometheus.url}/api/v1/label/{label}/values", params={"match[]": as_grafana(series)}, timeout=10)
    assert answer.json()["data"]
