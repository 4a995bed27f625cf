"""The dashboards in the chart."""

from __future__ import annotations

import sys

from deploy.dashboards.documents import FOLDER, documents
from tools import generated

if __name__ == "__main__":
    files = {FOLDER / f"{name}.json": text for name, text in documents().items()}
    sys.exit(generated.run("deploy.dashboards", __doc__, files))
