"""Files for several hosts without Kubernetes: deploy/compose.yaml, and the addresses
of deploy/prometheus/hosts.yml."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "deploy/compose.yaml"
SERVICE = yaml.safe_load(COMPOSE.read_text())["services"]["roped"]
DAEMON = Path(os.environ["ROPED_INTEROP_BUILD"]) / "bin/roped"


def plain(value):
    """${NAME:-DEFAULT} as its default."""
    return value.partition(":-")[2].rstrip("}") if value.startswith("${") else value


def checked():
    """What a daemon in this container has set."""
    settings = {name: plain(value) for name, value in SERVICE["environment"].items()}
    done = subprocess.run([DAEMON, "--check-config"], env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_daemon_takes_its_settings():
    said = checked()
    for value in ("0.0.0.0:8001", "json"):
        assert value in said, said


def test_it_is_not_killed_while_it_drains():
    seconds = dict(line.split(" = ", 1) for line in checked().splitlines() if line.startswith("drain_"))
    assert len(seconds) == 3, seconds
    assert sum(float(value.split()[0]) for value in seconds.values()) < float(SERVICE["stop_grace_period"].rstrip("s"))


def test_docker_compose_takes_it():
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("no docker-compose")
    done = subprocess.run([program, "-f", COMPOSE, "config"], capture_output=True, text=True)
    assert done.returncode == 0 and "read_only: true" in done.stdout, done.stderr


def test_prometheus_asks_the_port_that_compose_publishes():
    hosts = yaml.safe_load((ROOT / "deploy/prometheus/hosts.yml").read_text())
    targets = hosts["scrape_configs"][0]["static_configs"][0]["targets"]
    port = SERVICE["environment"]["ROPED_ADMIN_LISTEN"].rpartition(":")[2]
    assert len(targets) == 4 and all(target.endswith(f":{port}") for target in targets)
