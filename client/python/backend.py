"""scikit-build-core's hooks, but for the sdist, which has all it is built of.

The package is built from the whole repository, whose root is two folders up,
and an sdist can hold nothing from above its own root. So it is made in a copy
of what the build reads, with pyproject.toml at the root of that, and the paths
in it begin there.
"""

import os
import shutil
import tempfile
from pathlib import Path

from scikit_build_core import build
from scikit_build_core.build import *  # noqa: F403 # what a front end calls

HERE = Path(__file__).parent
ROOT = HERE / "../.."
AT_THE_ROOT = ["pyproject.toml", "README.md", "LICENSE", "backend.py"]
OF_THE_REPOSITORY = ["CMakeLists.txt", "kernels", "deploy/cmake", "client/python"]


def _copy(folder):
    left_out = shutil.ignore_patterns("__pycache__", *AT_THE_ROOT)
    for name in OF_THE_REPOSITORY:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=left_out)
        else:
            shutil.copy2(ROOT / name, folder)
    for name in AT_THE_ROOT:
        shutil.copy2(HERE / name, folder)
    project = folder / "pyproject.toml"
    project.write_text(project.read_text().replace('"../../', '"').replace('"../.."', '"."'))


def build_sdist(sdist_directory, config_settings=None):
    if (HERE / "kernels").is_dir():  # this is an sdist, unpacked
        return build.build_sdist(sdist_directory, config_settings)
    target, before = os.path.abspath(sdist_directory), os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        _copy(Path(folder))
        os.chdir(folder)
        try:
            return build.build_sdist(target, config_settings)
        finally:
            os.chdir(before)
