"""No call of roped.Client is lost when a daemon is killed and another drained. The
environment variable ROPED_TEST_CALLS makes it longer: tests/run.sh --release."""

import os

import pytest
from lost_calls import count, program

N_CALLS = int(os.environ.get("ROPED_TEST_CALLS", "1500"))


@pytest.mark.parametrize("way", ["direct", "haproxy", "nginx", "envoy"])
def test_none_is_lost(tmp_path, way):
    if way != "direct" and not program(way):
        assert "ROPED_TEST_CALLS" not in os.environ, f"no {way}: deploy/install-deps.sh deploy installs it"
        pytest.skip(f"no {way}")
    assert not count("roped", way, N_CALLS, None, tmp_path)
