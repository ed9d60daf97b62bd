from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_a_plain_install_of_the_folder_has_both_packages_and_the_command(tmp_path: Path) -> None:
    install = ["pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(tmp_path), "."]
    subprocess.run([sys.executable, "-m", *install], cwd=REPOSITORY, check=True, capture_output=True, timeout=120)
    for package in ("pagefall", "pagefall_storage"):
        assert (tmp_path / package / "py.typed").exists()
        assert (tmp_path / package / "__init__.py").exists()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import pagefall.__main__ as main; print(main.__file__)"
    done = subprocess.run([sys.executable, "-I", "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith(str(tmp_path))
    assert (tmp_path / "bin" / "pagefall").exists()
