"""Calls that go on in a thread while a test, or several, run."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import requests


@contextlib.contextmanager
def repeat(calls):
    """calls(session), again and again, until the block ends; what it raised is raised there.

    The block gets a function that says whether the thread still calls.

    requests looks for proxies in os.environ at each call. pytest writes there between the phases of a test, and a loop
    over os.environ in another thread then fails, so the session does not look.
    """
    has_ended = threading.Event()

    def run():
        with requests.Session() as session:
            session.trust_env = False
            while not has_ended.wait(0.01):
                calls(session)

    with ThreadPoolExecutor(1) as pool:
        thread = pool.submit(run)
        try:
            yield lambda: not thread.done()
        finally:
            has_ended.set()
            thread.result()
