"""roped on a Ray cluster: pip install 'roped[ray]'.

roped.ray.data maps the blocks of a dataset with kernels in process.
roped.ray.serve runs daemons as replicas of a Serve deployment, and finds them.
"""
