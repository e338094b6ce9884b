"""What the package knows of operators is what the daemon says."""

import inspect

import pytest

import roped
from roped import ops
from roped._functions import TABLE
from roped._operators import OPERATORS, VERSION


def test_version_and_operators(client):
    about = client._object("GET", "/v2")
    assert about["version"] == VERSION == roped.__version__
    listed = [row["name"] for row in client._object("GET", "/v1")["operators"]]
    assert listed == list(OPERATORS) == ops.__all__


@pytest.mark.parametrize("name", OPERATORS)
def test_rows(client, name):
    said, known = client.describe(name), OPERATORS[name]
    for key in ["name", "since", "summary", "rule"]:
        assert said.get(key) == known.get(key)
    assert [form["name"] for form in said["forms"]] == [form["name"] for form in known["forms"]]
    for kind in ["inputs", "outputs"]:
        for one, other in zip(said[kind], known[kind], strict=True):
            assert sorted(one.pop("datatypes").split(",")) == sorted(other["dtypes"])
            assert one.pop("optional", False) == other.get("optional", False)
            one.pop("below", None)
            assert one.items() <= other.items()
    for one, other in zip(said["parameters"], known["parameters"], strict=True):
        for key in ["name", "kind", "default", "choices", "doc", "above"]:
            assert one.get(key) == other.get(key)


@pytest.mark.parametrize("name", OPERATORS)
def test_functions(name):
    op = TABLE[name]
    for function in [getattr(ops, name), getattr(roped.Client, name), getattr(roped.AsyncClient, name)]:
        assert function.__name__ == name and function.__doc__ == OPERATORS[name]["help"]
        arguments = inspect.signature(function).parameters
        for param in op.params.values():
            assert arguments[param["name"]].default == param.get("default")
        assert [n for n in arguments if n in op.positional] == op.positional
    assert ("table" in inspect.signature(getattr(roped.Client, name)).parameters) == op.has_angles


def test_the_asynchronous_client_has_the_same_methods():
    for name, function in inspect.getmembers(roped.Client, inspect.isfunction):
        if not name.startswith("_"):
            other = getattr(roped.AsyncClient, name)
            assert inspect.iscoroutinefunction(other), name
            assert list(inspect.signature(other).parameters) == list(inspect.signature(function).parameters), name
