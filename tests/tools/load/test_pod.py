"""A pod gets all that its program imports."""

import subprocess
import sys

from tools.testbed.load_pod import code

IMPORTS = """
import sys
import aiohttp, click
before = set(sys.modules)
from tools.load import ask, driver, greedy, storm
new = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
assert new <= {"tools", "inflight_kubectl", "inflight_base"}, new
for name, module in sys.modules.items():
    if name.startswith(("tools", "inflight_kubectl")):
        assert "code.zip" in module.__file__, module.__file__
"""


def test_the_code_for_pods_needs_only_aiohttp_click_and_the_base_of_their_image(tmp_path):
    (tmp_path / "code.zip").write_bytes(code())
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        env={"PYTHONPATH": str(tmp_path / "code.zip")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
