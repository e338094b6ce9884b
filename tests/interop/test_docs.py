"""The page at GET /docs in a headless Chromium: every operator as it is shown
first, every type, files, tokens, TLS, names that are markup, and the commands
that it offers, which are run. Skipped where there is no Chromium."""

import base64
import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
from multiprocessing import shared_memory
from urllib.parse import quote

import ml_dtypes
import numpy as np
import pytest
import requests
from safetensors.numpy import save

from browser import CHROMIUM
from test_page import Daemon, no_daemon_is_left  # noqa: F401: a fixture for every test

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed: the page is not looked at")
TYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
         "I64": np.int64, "I32": np.int32, "U8": np.uint8, "BOOL": np.bool_, "F64": np.float64}
MARKUP = "<img src=x onerror=document.title='owned'>"
READY = "document.querySelector('#call')?.disabled === false"  # null while the next page comes
REFUSED = "document.querySelector('.refusal') !== null"
NUMBERS = """[...document.querySelectorAll('#results .tensor')].map((one) => ({
    name: one.querySelector('b').innerText, text: one.innerText,
    values: [...one.querySelectorAll('td')].map((cell) => cell.innerText).filter((text) => text)}))"""


@pytest.fixture(autouse=True)
def quiet(browser):
    """Nothing complains, and nothing that was shown became markup."""
    yield
    assert not [complaint for complaint in browser.complaints if "status of 4" not in complaint]
    assert "owned" not in browser.run("document.title")


def show(browser, address, op, scheme="http"):
    browser.open("about:blank")  # else an address with another fragment is the same page
    browser.open(f"{scheme}://{address}/docs#{op}")
    browser.wait(f"{READY} && document.title === 'roped: {op}'")


def call(browser):
    """What the call gave: of each tensor its name, what is said, its numbers."""
    browser.run("document.querySelector('#call').click()")
    browser.wait(f"{READY} && document.querySelector('#said').innerText !== 'Calling'")
    assert browser.text("#said").startswith("Done"), browser.text("#said")
    return {one["name"]: one for one in browser.run(NUMBERS)}


def fill(browser, label, value):
    browser.run(f"""(() => {{ const field = document.querySelector({json.dumps(label)}); field.value = {json.dumps(value)};
        for (const kind of ['input', 'change']) field.dispatchEvent(new Event(kind, {{bubbles: true}})); }})()""")


def drop(browser, name, data, onto="#drop"):
    """A file of these bytes; of 'onto' as dragged there."""
    browser.run(f"""(() => {{ const data = new DataTransfer();
        data.items.add(new File([Uint8Array.from(atob('{base64.b64encode(data).decode()}'), (c) => c.charCodeAt(0))], {json.dumps(name)}));
        document.querySelector({json.dumps(onto)}).dispatchEvent(new DragEvent('drop', {{dataTransfer: data, bubbles: true, cancelable: true}})); }})()""")


def choose(browser, *paths):
    """Files as the dialog gives them: the browser reads them from the disk."""
    document = browser.send("DOM.getDocument")["root"]["nodeId"]
    field = browser.send("DOM.querySelector", nodeId=document, selector="#file")["nodeId"]
    browser.send("DOM.setFileInputFiles", nodeId=field, files=[str(path) for path in paths])


def command(browser, language):
    browser.run(f"document.querySelector('[data-language={language}]').click()")
    time.sleep(0.05)
    browser.wait("document.querySelector('#code').innerText")
    return browser.run("document.querySelector('#code').textContent")


def read(file):
    """safetensors of any type."""
    end = 8 + int.from_bytes(file[:8], "little")
    header = {name: one for name, one in json.loads(file[8:end]).items() if name != "__metadata__"}
    return {name: np.frombuffer(file[end:][slice(*one["data_offsets"])], TYPES[one["dtype"]]) for name, one in header.items()}


def run_curl(text, folder, environment):
    answer = subprocess.run(["sh", "-ec", text], cwd=folder, env=environment, capture_output=True, timeout=30)
    assert answer.returncode == 0, answer
    if "out.safetensors" in text:
        return read((folder / "out.safetensors").read_bytes())
    document = json.loads(answer.stdout)
    kinds = {"FP32": np.float32, "INT64": np.int64, "INT32": np.int32, "UINT8": np.uint8}
    return {one["name"]: np.ravel(one["data"]).astype(kinds[one["datatype"]]) for one in document["outputs"]}


def run_python(text, folder, environment):
    (folder / "call.py").write_text(text + "\nimport sys\nsys.stderr.buffer.write(response.content)\n")
    answer = subprocess.run([sys.executable, "call.py"], cwd=folder, env=environment, capture_output=True, timeout=60)
    assert answer.returncode == 0, answer
    found = read(answer.stderr)
    with contextlib.redirect_stdout(io.StringIO()) as expected:
        for name, value in found.items():
            print(name, value.dtype)
    assert all(line in answer.stdout.decode() for line in expected.getvalue().splitlines())
    return found


def run_javascript(text, folder, environment):
    (folder / "call.mjs").write_text(text.replace("console.log(", "print("))
    (folder / "run.mjs").write_text("globalThis.print = (name, dtype, shape, values) => "
                                    "console.log(JSON.stringify([name, dtype, Array.from(values, String)]));\nawait import('./call.mjs');\n")
    answer = subprocess.run(["node", "run.mjs"], cwd=folder, env=environment, capture_output=True, timeout=60)
    assert answer.returncode == 0, answer
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    return {name: numbers(values, TYPES[dtype]) for name, dtype, values in lines}


def numbers(texts, dtype):
    if np.dtype(dtype).kind in "iub":
        return np.array([int(text) for text in texts]).astype(dtype)
    return np.array([float(text) for text in texts]).astype(dtype)


RUN = {"curl": run_curl, "python": run_python, "javascript": run_javascript}


def check_commands(browser, folder, **environment):
    """Each command of the page, run, gives the page's numbers, bit for bit."""
    shown = call(browser)
    for language, run in RUN.items():
        if language == "javascript" and not shutil.which("node"):
            continue
        text = command(browser, language)
        assert "secret" not in text
        (folder / "out.safetensors").unlink(missing_ok=True)
        found = run(text, folder, {**os.environ, **environment})
        assert set(found) == set(shown), language
        for name, values in found.items():
            expected = numbers(shown[name]["values"], values.dtype)
            np.testing.assert_array_equal(values.astype(np.float64), expected.astype(np.float64), err_msg=f"{language} {name}: {text}")


def test_every_operator_is_described_and_can_be_called(browser, address):
    for op in requests.get(f"http://{address}/v1").json()["operators"]:
        show(browser, address, op["name"])
        about = requests.get(f"http://{address}/v1/{op['name']}").json()
        said = browser.run("document.querySelector('main').textContent")
        for port in about["inputs"] + about["outputs"]:
            assert port["name"] in said and port["doc"] in said
        for parameter in about["parameters"]:
            field = f"document.querySelector('#parameters [name={parameter['name']}]')"
            label = browser.run(f"{field}.labels[0].textContent")
            assert parameter["doc"] in label
            for value in parameter.get("choices", []):
                assert browser.run(f"[...{field}.options].some((option) => option.value === '{value}')")
            for bound in ("min", "max", "above"):
                if bound in parameter and parameter[bound] >= 1e-6:
                    assert str(parameter[bound]) in label
            if "default" in parameter and not isinstance(parameter["default"], bool):
                assert browser.run(f"parseFloat({field}.placeholder) === {parameter['default']}") if parameter["kind"] in ("float", "int") \
                    else f"default: {parameter['default']}" in label
        shown = call(browser)
        assert shown and all(one["values"] for one in shown.values()), op


def test_is_found_with_a_slash_behind_it(browser, address):
    browser.open(f"http://{address}/docs/#rope_quantize")
    browser.wait(f"{READY} && document.title === 'roped: rope_quantize'")
    assert browser.run("[...document.querySelectorAll('header a')].map((one) => one.href)") == \
        [f"http://{address}/{path}" for path in ("", "openapi.json", "metrics")]


def test_labels_and_keyboard(browser, address):
    show(browser, address, "rope")
    assert browser.run("""[...document.querySelectorAll('main input, main select')].every((field) =>
        field.labels.length || field.getAttribute('aria-label'))""")
    assert browser.run("[...document.querySelectorAll('[role=img]')].every((one) => one.getAttribute('aria-label'))")
    fill(browser, "#parameters [name=theta]", "-1")
    assert browser.run("document.querySelector('[name=theta]').getAttribute('aria-invalid')") == "true"
    browser.run("document.querySelector('[name=theta]').focus()")
    browser.send("Input.dispatchKeyEvent", type="keyDown", key="Enter", modifiers=2, windowsVirtualKeyCode=13)
    browser.wait(REFUSED)
    assert "bad_parameter HTTP 400: parameter 'theta': -1, expected above 0" in browser.text("#said")
    assert browser.run("document.querySelectorAll('#results *').length") == 0


@pytest.mark.parametrize("width", (390, 800, 1280))
def test_fits(browser, address, width):
    show(browser, address, "rmsnorm_quantize")
    call(browser)
    for scheme in ("light", "dark"):
        browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        browser.screenshot(os.path.join(os.environ["ROPED_INTEROP_BUILD"], "interop", f"docs-{width}-{scheme}.png"))


def test_commands_give_the_numbers_of_the_page(browser, address, tmp_path):
    show(browser, address, "rope")
    fill(browser, "[aria-label='q [0, 1, 2]']", "0.1")
    fill(browser, "#parameters [name=theta]", "+5e5")  # no number of JSON
    fill(browser, "#parameters [name=offset]", "7")
    fill(browser, "#parameters [name=inverse]", "true")
    assert "/v2/models/rope/infer" in command(browser, "curl")
    check_commands(browser, tmp_path)
    show(browser, address, "rope_quantize_append")
    check_commands(browser, tmp_path)


@pytest.mark.parametrize("dtype", ("F32", "F16", "BF16"))
def test_values_of_each_type(browser, address, tmp_path, dtype):
    show(browser, address, "add_rmsnorm")
    for tensor in ("x", "residual"):
        fill(browser, f"[aria-label={tensor}] label:nth-of-type(2) select", dtype)
    for i, text in enumerate(("nan", "-inf", "1e-40", "-0")):
        fill(browser, f"[aria-label='x [0, {i}]']", text)
    fill(browser, "[aria-label='residual [1, 0]']", "3.14159265")
    value = browser.run("document.querySelector(\"[aria-label='residual [1, 0]']\").value")
    assert TYPES[dtype](float(value)) == TYPES[dtype](3.14159265)
    check_commands(browser, tmp_path)
    shown = call(browser)
    assert "NaN" in shown["y"]["values"] and "-Inf" in shown["residual"]["values"]
    assert "violet" in shown["y"]["text"]


@pytest.mark.parametrize("dtype", ("e4m3", "e5m2"))
def test_fp8(browser, address, tmp_path, dtype):
    """All 256 codes are shown as ml_dtypes has them; the nearest is written."""
    show(browser, address, "rmsnorm_quantize")
    kind = TYPES["F8_" + dtype.upper()]
    values = np.arange(256, dtype=np.uint8).view(kind).astype(np.float64)
    decoded = browser.run(f"Array.from(decode('F8_{dtype.upper()}', Uint8Array.from({{length: 256}}, (_, i) => i).buffer), String)")
    np.testing.assert_array_equal(numbers(decoded, np.float64), values)
    tried = np.concatenate([np.linspace(-500, 500, 401), np.geomspace(1e-7, 1e5, 400), [0.0, 2.0 ** -10, 464, 465, 61439, 61440]])
    codes = browser.run(f"Array.from(encode('F8_{dtype.upper()}', {tried.tolist()}))")
    np.testing.assert_array_equal(codes, tried.astype(np.float32).astype(kind).view(np.uint8))
    fill(browser, "#parameters [name=output_dtype]", dtype)
    fill(browser, "#parameters [name=dynamic]", "true")
    assert "F8_" + dtype.upper() in call(browser)["y"]["text"]
    check_commands(browser, tmp_path)


def test_narrow_floats_are_those_of_numpy(browser, address):
    show(browser, address, "rmsnorm")
    rng = np.random.default_rng(1)
    tried = np.concatenate([rng.standard_normal(500), 10 ** rng.uniform(-9, 6, 500), 2.0 ** np.arange(-30, 20) * (1 + 2.0 ** -11)])
    for name in ("BF16", "F16"):
        codes = browser.run(f"Array.from(encode('{name}', {tried.tolist()}))")
        with np.errstate(over="ignore"):
            expected = tried.astype(np.float32).astype(TYPES[name]) if name == "BF16" else tried.astype(np.float16)
        near = np.abs(np.array(codes) - expected.view(np.uint16).astype(int))
        assert near.max() <= (name == "BF16") and (near == 0).mean() > 0.99  # ml_dtypes rounds twice, by way of float32
        every = np.arange(65536, dtype=np.uint16)
        decoded = browser.run(f"Array.from(decode('{name}', Uint16Array.from({{length: 65536}}, (_, i) => i).buffer), String)")
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(numbers(decoded, np.float64), every.view(TYPES[name]).astype(np.float64))


def test_integers_of_64_bits(browser, address, tmp_path):
    show(browser, address, "rope")
    browser.run("document.querySelector('#more').open = true")
    fill(browser, "[aria-label=positions] select", "values")
    fill(browser, "[aria-label='positions [1]']", "9007199254740993")
    assert browser.run("document.querySelector(\"[aria-label='positions [1]']\").value") == "9007199254740993"
    assert "9007199254740993" in command(browser, "curl") and "9007199254740993n" in command(browser, "javascript")
    browser.run("document.querySelector('#call').click()")
    browser.wait(REFUSED)
    assert "9007199254740993" in browser.text(".refusal")
    fill(browser, "[aria-label='positions [1]']", "12.5")
    assert "positions [1] is '12.5', expected an integer" in browser.text("#problem")
    assert browser.run("document.querySelector('#call').disabled")
    fill(browser, "[aria-label='positions [1]']", "9223372036854775808")
    assert "expected -9223372036854775808 to 9223372036854775807" in browser.text("#problem")
    fill(browser, "[aria-label='positions [1]']", "12")
    check_commands(browser, tmp_path)
    fill(browser, "[aria-label=positions] label:nth-of-type(2) select", "I32")
    check_commands(browser, tmp_path)


def test_empty_tensors(browser, address, tmp_path):
    show(browser, address, "rmsnorm")
    fill(browser, "[aria-label=x] .shape", "0, 8")
    assert "No elements." in browser.text("#required")
    assert "no elements" in call(browser)["y"]["text"]
    check_commands(browser, tmp_path)
    fill(browser, "[aria-label=x] .shape", "two")
    assert "shape 'two', expected" in browser.text("#problem")


def test_files(browser, address, tmp_path):
    """Each type in a .safetensors, each that numpy has in a .npy."""
    show(browser, address, "rmsnorm")
    arrays = {name: np.array([[0, 1], [1, 0]]).astype(kind) for name, kind in TYPES.items()}
    arrays["half"], arrays["none"] = np.array([np.nan, np.inf], np.float16), np.zeros((2, 0), np.float32)
    drop(browser, "all.safetensors", save({f"{name}.{MARKUP}": value for name, value in arrays.items()}))
    browser.wait("document.querySelectorAll('#files .tensor').length >= 12 && document.querySelector('#files').innerText.includes('0 to 1')")
    said = browser.text("#files")
    for name in TYPES:
        assert f"{name}.{MARKUP} {name} [2, 2]" in said
    assert "[2, 0]" in said and "no elements" in said and "nothing finite, 1 NaN, 1 infinite" in said
    assert browser.run("document.querySelectorAll('img').length") == 0
    x = np.arange(8, dtype=np.float16).reshape(2, 4)
    with io.BytesIO() as file:
        np.save(file, x)
        drop(browser, MARKUP + ".npy", file.getvalue(), "[aria-label=x]")
    browser.wait("document.querySelector('[aria-label=x]').innerText.includes('F16 [2, 4]')")
    browser.run("document.querySelector('#save').click()")  # what in.safetensors would be
    (tmp_path / "in.safetensors").write_bytes(bytes(browser.run("callOf().body.arrayBuffer().then((all) => [...new Uint8Array(all)])")))
    check_commands(browser, tmp_path)
    with io.BytesIO() as file:
        np.save(file, x.T)
        drop(browser, "fortran.npy", file.getvalue())
    drop(browser, "x.npz", b"PK\3\4" + bytes(60))
    drop(browser, "text.safetensors", b"{\"inputs\": []}")
    browser.wait("document.querySelector('#files').innerText.includes('text.safetensors is no')")
    assert "fortran.npy is in Fortran order" in browser.text("#files") and "x.npz is a zip archive" in browser.text("#files")


def test_a_file_of_100_mb(browser, address, tmp_path):
    x = np.random.default_rng(1).standard_normal((25600, 1024), np.float32)
    (tmp_path / "in.safetensors").write_bytes(save({"x": x}))
    show(browser, address, "rmsnorm")
    start = time.monotonic()
    choose(browser, tmp_path / "in.safetensors")
    browser.wait("document.querySelector('[aria-label=x]').innerText.includes('elements looked at')")
    taken = time.monotonic() - start
    print(f"summary of 100 MB after {taken:.2f} s")
    assert taken < 2
    assert "F32 [25600, 1024]" in browser.text("[aria-label=x]")
    shown = call(browser)["y"]
    assert "100.0 MiB" in shown["text"] and "64 of 25,600 rows, 128 of 1,024 columns" in shown["text"]
    expected = (x[0, :4] / np.sqrt((x[0].astype(np.float64) ** 2).mean() + 1e-6)).astype(np.float32)
    np.testing.assert_allclose(numbers(shown["values"][:4], np.float32), expected, 1e-6)
    assert "@in.safetensors" in command(browser, "curl")
    subprocess.run(["sh", "-ec", command(browser, "curl")], cwd=tmp_path, check=True, timeout=60)
    assert read((tmp_path / "out.safetensors").read_bytes())["y"].size == x.size


def test_copy_paste_and_cancel(browser, address):
    show(browser, address, "rmsnorm")
    browser.run("""(() => { const data = new DataTransfer(); data.setData('text', '[[3, 4, nan]\\n [1, 1e-3');
        document.querySelector("[aria-label='x [0, 1]']").dispatchEvent(new ClipboardEvent('paste', {clipboardData: data, bubbles: true, cancelable: true})); })()""")
    assert browser.run("[...document.querySelectorAll('[aria-label=x] td input')].map((cell) => cell.value)")[:6] == ["-0.75", "3", "4", "NaN", "1", "0.001"]
    browser.send("Emulation.setFocusEmulationEnabled", enabled=True)
    browser.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    text = command(browser, "python")
    browser.run("document.querySelector('#copy').click()")
    browser.wait("document.querySelector('#copied').innerText === 'Copied.'")
    assert browser.run("navigator.clipboard.readText()") == text
    browser.run("navigator.clipboard.writeText = () => Promise.reject(new Error('not here')), document.querySelector('[data-language=curl]').click()")
    text = command(browser, "curl")
    browser.run("document.querySelector('#copy').click()")  # as over plain HTTP from elsewhere
    browser.wait("['Copied.', 'It is selected: press Ctrl+C.'].includes(document.querySelector('#copied').innerText)")
    assert browser.run("getSelection().toString()").strip() == text.strip()
    browser.run("""window.fetch = (path, {signal}) => new Promise((_, fail) => signal.addEventListener('abort', () => fail(signal.reason))),
        document.querySelector('#call').click()""")
    browser.wait("document.querySelector('#said').innerText === 'Calling' && !document.querySelector('#cancel').hidden")
    browser.run("document.querySelector('#cancel').click()")
    browser.wait(f"document.querySelector('#said').innerText === 'Cancelled.' && {READY}")
    browser.run("window.fetch = () => Promise.reject(new TypeError('Failed to fetch')), document.querySelector('#call').click()")
    browser.wait(REFUSED)
    assert browser.text(".refusal") == "no answer: Failed to fetch"


def test_heat_map_says_what_is_under_the_pointer(browser, address):
    show(browser, address, "rmsnorm")
    values = call(browser)["y"]["values"]
    box = browser.run("(() => { const one = document.querySelector('#results canvas'); one.scrollIntoView(); return JSON.parse(JSON.stringify(one.getBoundingClientRect())); })()")
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=box["left"] + box["width"] * 0.9, y=box["top"] + 2)
    assert f"[0, 3] is {values[3]}" in browser.text("#results .scale")


def test_regions_and_tables(browser, address, tmp_path):
    requests.put(f"http://{address}/v1/regions/docs.x", data=save({"x": np.ones((3, 4), np.float32)})).raise_for_status()
    requests.put(f"http://{address}/v1/tables/docs.table", json={"theta": 100, "rows": 16}).raise_for_status()
    show(browser, address, "rmsnorm")
    fill(browser, "[aria-label=x] select", "region docs.x")
    assert call(browser)["y"]["values"] == ["0.9999995"] * 12
    check_commands(browser, tmp_path)
    show(browser, address, "rope")
    assert browser.run("[...document.querySelectorAll('#table-names option')].some((option) => option.value === 'docs.table')")
    fill(browser, "#parameters [name=table]", "docs.table")
    check_commands(browser, tmp_path)
    fill(browser, "#parameters [name=table]", MARKUP)
    browser.run("document.querySelector('#call').click()")
    browser.wait(REFUSED)
    assert "onerror" in browser.text(".refusal")
    requests.delete(f"http://{address}/v1/regions/docs.x")
    requests.delete(f"http://{address}/v1/tables/docs.table")


def test_names_that_are_markup_are_text(browser, address):
    """A daemon that lies, or a proxy: every string of its JSON is markup."""
    script = browser.send("Page.addScriptToEvaluateOnNewDocument", source="""
        const real = window.fetch, owned = %s;
        const spoil = (one, key) => typeof one === 'string' ? (['kind', 'datatypes', 'shape', 'type'].includes(key) ? one : owned + one)
          : Array.isArray(one) ? one.map((item) => spoil(item, key)) : one && typeof one === 'object'
          ? Object.fromEntries(Object.entries(one).map(([name, value]) => [name, spoil(value, name)])) : one;
        window.fetch = async (path, options) => {
          if (options && options.method === 'POST') return new Response(JSON.stringify({error: owned, code: owned}), {status: 400});
          const name = decodeURIComponent(String(path)).replaceAll(owned, '');
          const answer = await (await real(name, options)).json();
          if (name.endsWith('v1/regions')) answer.regions = [{name: 'region', kind: 'resident', bytes: 4}];
          if (name.endsWith('v1/tables')) answer.tables = [{name: 'table'}];
          return new Response(JSON.stringify(spoil(answer)));
        };""" % json.dumps(MARKUP))["identifier"]
    try:
        browser.open("about:blank")
        browser.open(f"http://{address}/docs#rope")
        browser.wait(READY)
        assert MARKUP + "rope" in browser.text("nav") and MARKUP + "region" in browser.run("document.querySelector('fieldset').textContent")
        browser.run("document.querySelector('#call').click()")
        browser.wait(REFUSED)
        assert browser.text(".refusal") == f"{MARKUP} HTTP 400: {MARKUP}"
        for language in RUN:
            command(browser, language)
        assert browser.run("document.querySelectorAll('img').length") == 0
        browser.run("document.title = 'roped'")
    finally:
        browser.send("Page.removeScriptToEvaluateOnNewDocument", identifier=script)


def test_a_region_whose_name_is_markup(browser, demo_address):
    """Memory of a client may have any name; both pages show it."""
    memory = shared_memory.SharedMemory(create=True, size=64)
    url = f"http://{demo_address}/v2/systemsharedmemory"
    try:
        requests.post(f"{url}/region/{quote(MARKUP)}/register", json={"key": "/" + memory.name.lstrip("/"), "byte_size": 64}).raise_for_status()
        show(browser, demo_address, "rmsnorm")
        assert f"region {MARKUP}" in browser.run("[...document.querySelectorAll('option')].map((option) => option.value)")
        browser.open(f"http://{demo_address}/")
        browser.wait(f"document.querySelector('#regions').innerText.includes({json.dumps(MARKUP)})")
        assert browser.run("document.querySelectorAll('img').length") == 0
    finally:
        requests.post(f"{url}/region/{quote(MARKUP)}/unregister")
        memory.close()
        memory.unlink()


def give(browser, token):
    browser.run(f"document.querySelector('#token').value = {json.dumps(token)}, document.querySelector('#login button').click()")


def test_tokens(browser, tmp_path):
    lines = [f"{name} sha256:{hashlib.sha256(secret.encode()).hexdigest()} {scope}\n"
             for name, secret, scope in (("caller", "secret-of-caller", "call"), ("watcher", "secret-of-watcher", "metrics"))]
    (tmp_path / "tokens").write_text("".join(lines))
    daemon = Daemon(tmp_path, "--bearer_token_file", tmp_path / "tokens")
    browser.open(daemon.url + "docs#rmsnorm")
    browser.wait("document.querySelector('#login')?.hidden === false")
    assert browser.run("document.querySelector('main').hidden && document.activeElement.id") == "token"
    give(browser, "two words")
    assert "no spaces" in browser.text("#refusal")
    give(browser, MARKUP.replace(" ", "/"))
    browser.wait("document.querySelector('#refusal').innerText.startsWith('It was refused: ')")
    give(browser, "secret-of-watcher")
    browser.wait(READY)
    browser.run("document.querySelector('#call').click()")
    browser.wait(REFUSED)
    assert "forbidden HTTP 403: token 'watcher' has scopes metrics, expected 'call'" in browser.text(".refusal")
    browser.run("document.querySelector('#forget').click()")
    browser.wait("document.readyState === 'complete' && document.querySelector('#login')?.hidden === false")
    give(browser, "secret-of-caller")
    browser.wait(READY)
    for language in RUN:
        assert "ROPED_TOKEN" in command(browser, language)
    check_commands(browser, tmp_path, ROPED_TOKEN="secret-of-caller")
    assert browser.run("sessionStorage.length + localStorage.length + document.cookie.length") == 0
    assert "secret-of" not in browser.run("document.documentElement.outerHTML")
    daemon.stop()


def test_tls(browser, tmp_path):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-keyout", tmp_path / "key",
                    "-out", tmp_path / "cert", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    (tmp_path / "tokens").write_text(f"caller sha256:{hashlib.sha256(b'secret-of-caller').hexdigest()} call\n")
    daemon = Daemon(tmp_path, "--bearer_token_file", tmp_path / "tokens", "--tls_cert_file", tmp_path / "cert", "--tls_key_file", tmp_path / "key")
    browser.send("Security.setIgnoreCertificateErrors", ignore=True)
    browser.open(daemon.url.replace("http", "https") + "docs#rmsnorm")
    browser.wait("document.querySelector('#login')?.hidden === false")
    give(browser, "secret-of-caller")
    browser.wait(READY)
    certificate = str(tmp_path / "cert")
    check_commands(browser, tmp_path, ROPED_TOKEN="secret-of-caller", CURL_CA_BUNDLE=certificate, REQUESTS_CA_BUNDLE=certificate, NODE_EXTRA_CA_CERTS=certificate)
    assert "https" in command(browser, "curl")
    browser.open("about:blank")
    browser.send("Security.setIgnoreCertificateErrors", ignore=False)
    daemon.stop()

