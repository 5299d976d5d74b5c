"""Where programs for the browser run in tests: Chromium without a window, or node where there is none."""

import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

import twolayer.live
from tests.conftest import CHROMIUM

FOLDER = Path(twolayer.live.__file__).parent
ENGINE = FOLDER / "engine.js"
NODE = shutil.which("node")
IN_NODE = """
    const E = require(%s).twolayerEngine();
    const given = JSON.parse(require("fs").readFileSync(0));
    const bytes = (text) => Buffer.from(text, "base64");
    %s
    console.log(JSON.stringify(result));
"""
IN_PAGE = """(text) => {
    const E = twolayerEngine();
    const given = JSON.parse(text);
    const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    %s
    return JSON.stringify(result);
}"""


@pytest.fixture(scope="module")
def compute(request):
    """Run a script that computes ``result`` from ``given`` and the engine ``E``."""

    def in_node(script, given):
        text = IN_NODE % (json.dumps(str(ENGINE)), script)
        done = subprocess.run([NODE, "-e", text], input=json.dumps(given), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    if CHROMIUM is None or find_spec("playwright") is None:
        if NODE is None:
            pytest.skip("neither Chromium with Playwright nor node is installed: apt-get install chromium")
        return in_node
    page = request.getfixturevalue("browser").new_page()
    page.add_script_tag(content=ENGINE.read_text())
    return lambda script, given: json.loads(page.evaluate(IN_PAGE % script, json.dumps(given)))
