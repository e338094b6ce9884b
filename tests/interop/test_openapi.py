"""schemathesis reads /openapi.json and tries what it promises: every
operation, with what fits its schema and with what does not. No answer may be
undocumented, and no request may end in a 5xx that is not documented."""

import os

import numpy as np
import requests
import safetensors.numpy
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

# the daemon with everything switched on: what is off answers 501
URL = f"http://{os.environ['ROPED_INTEROP_DEMO_ADDRESS']}"

NAMES = ["x", "weight", "q", "k", "positions", "q_rope", "k_rope"]
SHAPES = st.lists(st.integers(0, 8), max_size=4).map(tuple)
TENSORS = st.dictionaries(
    st.sampled_from(NAMES),
    st.tuples(SHAPES, st.sampled_from([np.float32, np.float16, np.int32])).map(lambda t: np.ones(*t)),
    max_size=4,
)

# files of tensors, whole ones and such that break off, and any bytes at all
FILES = TENSORS.map(safetensors.numpy.save)
schemathesis.openapi.media_type(
    "application/x-safetensors",
    st.one_of(FILES, st.tuples(FILES, st.integers(0, 200)).map(lambda t: t[0][: t[1]]), st.binary(max_size=64)),
)

schema = schemathesis.openapi.from_url(f"{URL}/openapi.json")


@schema.parametrize()
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_operation(case):
    # a schema cannot say which shapes go together, so what fits it may be wrong
    case.call_and_validate(excluded_checks=[positive_data_acceptance])


def test_the_document_lists_every_operator():
    paths = requests.get(f"{URL}/openapi.json").json()["paths"]
    for operator in requests.get(f"{URL}/v1").json()["operators"]:
        assert {"get", "post"} <= set(paths[f"/v1/{operator['name']}"])
