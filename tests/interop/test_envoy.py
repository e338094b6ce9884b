"""deploy/proxy/envoy.yaml: every field is one of Envoy's own API, with and without
the lines for TLS, and it has the daemons of haproxy.cfg. Where there is an Envoy,
it validates the file."""

import importlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).resolve().parents[2] / "deploy/proxy"
TEXT = (FOLDER / "envoy.yaml").read_text()


def with_tls():
    text, n = re.subn(r"^( *)#: ", r"\1", TEXT, flags=re.MULTILINE)
    assert n > 5
    return text


def types_of(value):
    """Names of messages that are written as Any."""
    if isinstance(value, dict):
        yield from [value["@type"].split("/")[1]] if "@type" in value else []
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from types_of(item)


def parse(text):
    bootstrap = pytest.importorskip("envoy.config.bootstrap.v3.bootstrap_pb2")
    from google.protobuf import descriptor_pool, json_format

    settings = yaml.safe_load(text)
    for name in types_of(settings):
        folder, message = name.rsplit(".", 1)
        directory = Path(importlib.import_module(folder).__path__[0])
        for module in directory.glob("*_pb2.py"):
            importlib.import_module(f"{folder}.{module.stem}")
        descriptor_pool.Default().FindMessageTypeByName(name)
    return json_format.ParseDict(settings, bootstrap.Bootstrap())


@pytest.mark.parametrize("text", [TEXT, with_tls()], ids=["plain", "tls"])
def test_the_fields_are_envoys(text):
    from_yaml = parse(text)
    assert len(from_yaml.static_resources.clusters) == 2
    assert from_yaml.static_resources.listeners[0].filter_chains[0].HasField("transport_socket") == (text != TEXT)


def test_a_wrong_field_is_refused():
    with pytest.raises(Exception, match="lb_polici"):
        parse(TEXT.replace("lb_policy: RING_HASH", "lb_polici: RING_HASH"))


def test_it_has_the_daemons_of_haproxy():
    settings = yaml.safe_load(TEXT)["static_resources"]
    there = set(re.findall(r"server \w+ (127\.0\.0\.1:\d+)", (FOLDER / "haproxy.cfg").read_text()))
    routes = re.findall(r"cluster: (\w+)", TEXT)
    assert sorted(routes) == sorted(cluster["name"] for cluster in settings["clusters"])
    for cluster in settings["clusters"]:
        ends = [x["endpoint"]["address"]["socket_address"] for x in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]]
        assert {f"{x['address']}:{x['port_value']}" for x in ends} == there


@pytest.mark.skipif(not shutil.which("envoy"), reason="no envoy: nobody has run the file")
def test_envoy_takes_it():
    result = subprocess.run(["envoy", "--mode", "validate", "-c", FOLDER / "envoy.yaml"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
