"""deploy/proxy/envoy.yaml: Envoy takes it, with and without the lines for TLS, and it
has the daemons of haproxy.cfg. tests/attack/test_proxy.c runs it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).resolve().parents[2] / "deploy/proxy"
TEXT = (FOLDER / "envoy.yaml").read_text()
ENVOY = shutil.which("envoy")
needs_envoy = pytest.mark.skipif(not ENVOY, reason="no envoy: deploy/install-deps.sh deploy installs one")


def validate(text, folder):
    (folder / "envoy.yaml").write_text(text)
    command = [ENVOY, "--mode", "validate", "-l", "error", "-c", folder / "envoy.yaml"]
    return subprocess.run(command, capture_output=True, text=True)


@needs_envoy
def test_envoy_takes_it(tmp_path):
    result = validate(TEXT, tmp_path)
    assert result.returncode == 0, result.stderr


@needs_envoy
def test_envoy_takes_it_with_tls(tmp_path):
    certificate, key = tmp_path / "roped.pem", tmp_path / "roped.key"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=roped"
    subprocess.run([*make.split(), "-out", certificate, "-keyout", key], check=True, capture_output=True)
    text, n = re.subn(r"^( *)#: ", r"\1", TEXT, flags=re.MULTILINE)
    assert n > 5
    result = validate(text.replace("/etc/envoy", str(tmp_path)), tmp_path)
    assert result.returncode == 0, result.stderr
    key.unlink()
    assert "roped.key" in validate(text.replace("/etc/envoy", str(tmp_path)), tmp_path).stderr


def test_it_has_the_daemons_of_haproxy():
    settings = yaml.safe_load(TEXT)["static_resources"]
    there = set(re.findall(r"server \w+ (127\.0\.0\.1:\d+)", (FOLDER / "haproxy.cfg").read_text()))
    routes = re.findall(r"cluster: (\w+)", TEXT)
    assert set(routes) == {cluster["name"] for cluster in settings["clusters"]}
    for cluster in settings["clusters"]:
        ends = [x["endpoint"]["address"]["socket_address"] for x in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]]
        assert {f"{x['address']}:{x['port_value']}" for x in ends} == there
