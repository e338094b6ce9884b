#!/usr/bin/env python3
"""The names that programs of others hold on to, a line each: what deploy/STABLE.md
promises. names.txt has those that were ever promised.

    names.py BUILD_DIR             fails where one of names.txt is gone
    names.py BUILD_DIR --complete  also where one is not in names.txt: a release
                                   promises what it has
    names.py BUILD_DIR --write     writes names.txt
"""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIST = HERE / "names.txt"


def read(path):
    return (ROOT / path).read_text()


def said(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def operators(ropectl):
    """Tensors, parameters with their defaults, and the values of choices"""
    for listed in json.loads(said(ropectl, "ops", "--output", "json"))["operators"]:
        op = json.loads(said(ropectl, "describe", listed["name"], "--output", "json"))
        yield f"operator {op['name']}"
        for role in "inputs", "outputs":
            for tensor in op[role]:
                yield f"{role[:-1]} {op['name']} {tensor['name']}"
        for parameter in op["parameters"]:
            name = f"{op['name']} {parameter['name']}"
            yield f"parameter {name} {parameter['kind']} {json.dumps(parameter.get('default'))}"
            for choice in parameter.get("choices", []):
                yield f"choice {name} {choice}"


def tables():
    """What *.def and status.h list"""
    for token, http in re.findall(r'X\(\w+, "(\w+)", (\d+), ', read("kernels/include/roped/status.h")):
        yield f"code {token} {http}"
    labels = dict(re.findall(r"^LABEL\((\w+), (\w+),", read("server/metrics/metric.def"), re.MULTILINE))
    family = r"^(?:METRIC\((\w+), (\w+)|HISTOGRAM\((\w+)), LABELS\(([\w, ]+)\)"
    for name, kind, histogram, ids in re.findall(family, read("server/metrics/metric.def"), re.MULTILINE):
        named = ",".join(labels[id] for id in ids.split(", ") if id != "BY_NOTHING")
        yield f"metric {name or histogram} {kind or 'histogram'} {named}".rstrip()
    for method, path in re.findall(r'ROUTE\((\w+), "(\S+)"', read("server/routes.def")):
        yield f"route {method} {path}"


def programs(binaries):
    """Settings, commands, exit statuses"""
    for key in re.findall(r"^  --(\w+)", said(binaries / "roped", "--help"), re.MULTILINE):
        yield f"setting {key}"
    usage = said(binaries / "ropectl", "help")
    for command in re.findall(r"^  (\w+) ", usage.split("\n\n")[1], re.MULTILINE):
        yield f"command {command}"
    for status in re.findall(r"^  (\d+)  ", usage.split("exit status:\n")[1], re.MULTILINE):
        yield f"exit {status}"


def python():
    """What modules export, and the methods of what they export"""
    package = ROOT / "client/python/src/roped"
    for path in sorted(package.rglob("*.py")):
        module = ".".join(("roped", *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__")
        if path.name.startswith("_") and path.name != "__init__.py":
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__" and isinstance(node.value, ast.List):
                yield from (f"python {module}.{name}" for name in ast.literal_eval(node.value))
    for node in ast.parse((package / "_client.py").read_text()).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for method in node.body:
                if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) and not method.name.startswith("_"):
                    yield f"python roped.{node.name}.{method.name}"


def main(build, mode=""):
    binaries = Path(build) / "bin"
    parts = operators(binaries / "ropectl"), tables(), programs(binaries), python()
    names = sorted({name for part in parts for name in part})
    if mode == "--write":
        LIST.write_text("\n".join(names) + "\n")
        return 0
    promised = LIST.read_text().splitlines()
    gone = sorted(set(promised) - set(names))
    new = sorted(set(names) - set(promised)) if mode == "--complete" else []
    for name in gone:
        print(f"FAILED gone, or not as it was promised: {name}")
    for name in new:
        print(f"FAILED not in names.txt (names.py BUILD_DIR --write): {name}")
    if not gone and not new:
        print(f"ok     {len(promised)} names are as they were promised")
    return 1 if gone or new else 0


sys.exit(main(*sys.argv[1:]))
