"""roped on a Ray cluster: pip install 'roped[ray]'.

roped.ray.data maps the blocks of a dataset with kernels in process.
roped.ray.serve runs daemons as replicas of a Serve deployment, and finds them.
"""

from importlib.util import find_spec

for name in ("ray", "pyarrow"):
    if find_spec(name) is None:
        raise ImportError(f"roped.ray wants {name}: pip install 'roped[ray]'")
