"""Where the daemons are: run.sh says so."""

import os

import numpy as np
import pytest
import tritonclient.http as triton

from browser import Browser


@pytest.fixture(scope="session")
def address():
    return os.environ["ROPED_INTEROP_ADDRESS"]


@pytest.fixture(scope="session")
def demo_address():
    """A daemon with what the vendor's examples ask for: its name, its models."""
    return os.environ["ROPED_INTEROP_DEMO_ADDRESS"]


@pytest.fixture
def client(address):
    with triton.InferenceServerClient(address) as client:
        yield client


@pytest.fixture
def rng():
    return np.random.default_rng(1)


@pytest.fixture(scope="session")
def started_browser():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def browser(started_browser):
    """An empty page of 1,440 by 900 pixels that has said nothing."""
    started_browser.send("Emulation.clearDeviceMetricsOverride")
    started_browser.send("Emulation.setEmulatedMedia", features=[])
    started_browser.open("about:blank")
    started_browser.complaints.clear()
    return started_browser
