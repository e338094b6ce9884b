"""schemathesis reads /openapi.json and tries what it promises: every
operation, with what fits its schema and with what does not. No answer may be
undocumented, and no request may end in a 5xx that is not documented. What fits its
schema is taken, or refused for what no schema can say."""

import os
import re

import numpy as np
import requests
import safetensors.numpy
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from schemathesis.core.failures import Failure
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


# Errors about what a schema cannot say, or leaves to the document's descriptions.
NO_SCHEMA = [
    r"^safetensors: |ends before its header does$",
    r"^(missing |unknown )?tensor '|^region '",  # what is in a file; shapes that go together
    r"^parameter '[\w.]+'|^unknown parameter '",  # format: float; rules of an operator, of a table
    r"(control character in a name|NUL in a string) at \d+$",
    r"^log settings contradict each other|errors are always logged$|^setting '.*' cannot be changed: tracing",
    r"no program has this name$|forgets a program$",
    r"^no program: |^(a )?program '?|^step \d+|^'(inputs|steps|outputs|parameters)'|^an? (input|output|program)|^(in|out)put '",
    r"^Unable to open shared memory region|device_id is \d+, expected 0$",
]


def taken_or_explained(context, response, case):
    try:
        return positive_data_acceptance(context, response, case)
    except Failure:
        if not any(re.search(reason, response.json()["error"]) for reason in NO_SCHEMA):
            raise


@schema.parametrize()
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_operation(case):
    response = case.call()
    if response.status_code == 501:
        assert response.json()["error"].endswith("GPUs not supported by the cpu backend")
    else:
        case.validate_response(response, excluded_checks=[positive_data_acceptance], additional_checks=[taken_or_explained])


def test_the_document_lists_every_operator():
    paths = requests.get(f"{URL}/openapi.json").json()["paths"]
    for operator in requests.get(f"{URL}/v1").json()["operators"]:
        assert {"get", "post"} <= set(paths[f"/v1/{operator['name']}"])
