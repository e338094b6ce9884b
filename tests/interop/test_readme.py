"""The pages for users. Every example of every page is run as it stands there, but
for the address of the server, unless the page itself says why not (pages.py). The
lists of README.md are compared with what the server says of itself."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from pages import ROOT, all_blocks, is_printed, modules_of, printed_by, section

BUILD = Path(os.environ["ROPED_INTEROP_BUILD"])
README = (ROOT / "README.md").read_text()
BLOCKS = all_blocks()


def is_elsewhere(block):
    """tests/python runs these: they need the package."""
    return block.page == "client/python/README.md" or block.page == "deploy/SCALING.md" and block.language == "python"


# ---------------------------------------------------------------- examples


def folder_of(page, folders={}, make=None):
    """The blocks of a page share a folder, as its reader would; it looks like the
    root of the repository after a build."""
    if page not in folders:
        folders[page] = folder = make.mktemp(re.sub(r"\W", "_", page))
        for name in ["client", "deploy", "kernels", "server", "tests"]:
            (folder / name).symlink_to(ROOT / name)
        (folder / "build").mkdir()
        (folder / "build/cpu").symlink_to(BUILD)
    return folders[page]


def run(command, folder, address):
    """With the programs of the build and of this environment."""
    programs = [str(BUILD / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = dict(os.environ, ROPED_URL=f"http://{address}", PATH=":".join(programs))
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.is_run and not is_elsewhere(b)], ids=str)
def test_example(block, tmp_path_factory, demo_address):
    """Those of one page in their order. The server lets clients register memory."""
    folder = folder_of(block.page, make=tmp_path_factory)
    text = block.text.replace("127.0.0.1:8000", demo_address)
    if block.language == "c":  # the next block compiles it
        name = re.match(r"/\* (\w+\.c)\b", text)
        assert name, "the first line names the file: /* name.c */"
        (folder / name[1]).write_text(text)
    elif block.language == "python":
        for module in modules_of(block):
            pytest.importorskip(module, reason=f"no {module} (torch: ROPED_INTEROP_TORCH=1 installs it)")
        run([sys.executable, "-c", text], folder, demo_address)
    else:
        stop = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"  # what a failure leaves running
        found = run(["bash", "-euo", "pipefail", "-c", stop + text], folder, demo_address)
        shown = printed_by(block, BLOCKS)
        assert shown is None or is_printed(found.rstrip("\n") + "\n", shown), f"{found}\nexpected\n{shown}"


def test_the_c_example_is_cxx_too(tmp_path_factory, address):
    """client/README.md says so."""
    page = "client/README.md"
    folder = folder_of(page, make=tmp_path_factory)
    [source] = [block for block in BLOCKS if block.page == page and block.language == "c"]
    [build] = [block.text for block in BLOCKS if block.page == page and block.text.startswith("cc norm.c ")]
    (folder / "norm.c").write_text(source.text)
    build = "c++ -x c++" + build.removeprefix("cc")
    assert run(["bash", "-euc", build], folder, address).startswith("0.365148, kernel")


def test_the_first_call(tmp_path, address):
    """It prints what the page shows below it, whose numbers end in dots."""
    [call] = [block for block in BLOCKS if block.page == "README.md" and "/infer" in block.text and block.is_run]
    [answer] = [block for block in BLOCKS if block.page == "README.md" and "model_version" in block.text]
    found = run(["bash", "-euc", call.text.replace("127.0.0.1:8000", address)], tmp_path, address)
    assert found.startswith(answer.text.split("...")[0])


# ------------------------------------------------------------------- lists


def test_operators(address):
    listed = re.findall(r"^\| `(\w+)` \|", section(README, "Operators"), re.MULTILINE)
    assert listed == [op["name"] for op in requests.get(f"http://{address}/v1").json()["operators"]]


def spelled_out(path):
    """a[/b,/c]/{d,e}: a/b/d, a/b/e, a/c/d, a/c/e, a/d, a/e"""
    option = re.search(r"\[([^\[\]]*)\]", path)
    choice = re.search(r"\{([^{}]*,[^{}]*)\}", path)
    if not option and not choice:
        return [path]
    found = option or choice
    parts = found[1].split(",") + [""] * bool(option)
    return [whole for part in parts for whole in spelled_out(path[: found.start()] + part + path[found.end() :])]


def plain(path):
    return re.sub(r"\{\w+\}", "*", path.replace("/versions/1", "/versions/*"))


def test_routes(address):
    document = requests.get(f"http://{address}/openapi.json").json()
    operators = {op["name"] for op in requests.get(f"http://{address}/v1").json()["operators"]}
    served = {plain("/v1/{op}" if path[4:] in operators else path) for path in document["paths"]}
    listed = set()
    for first in re.findall(r"^\| (`.*?) \|", section(README, "Routes"), re.MULTILINE):
        for path in re.findall(r"(?<=[` ])/[^` ]*", first):
            listed.update(plain(whole) for whole in spelled_out(path))
    # written as if each kind of shared memory had each verb for one and for all
    listed -= {f"/v2/{kind}sharedmemory/register" for kind in ["system", "cuda"]}
    assert listed == served
