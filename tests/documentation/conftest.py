"""The site, built once for all that look at it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from docs.generator import site


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=site.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder
