"""docs/writing-a-backend.md works as it stands: its blocks make a package that is built, installed, tested, used.

A Python of its own gets the package's wheel from pip, and everything else from the Python that runs the tests.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest
from tests.faults.rig import prompt_of
from tests.real_server import real_server
from tests.tiny_models import make_tiny, make_tiny_tokenizer

REPOSITORY: Final = Path(__file__).parents[2]
GUIDE: Final = (REPOSITORY / "docs/writing-a-backend.md").read_text()
EXAMPLE: Final = REPOSITORY / "docs/example-backend"
PROMPT: Final = prompt_of(11, 400)
NUM_STORED_TOKENS: Final = 384  # all whole pages of 16 before the last token
STORE: Final = "pages.db"

pytestmark = pytest.mark.timeout(240)


class Package(NamedTuple):
    """Built from the guide in `folder`, and installed for `python`."""

    folder: Path
    python: Path

    def run(self, *words: str) -> str:
        """What it writes to standard output. It must succeed."""
        done = subprocess.run(
            [self.python, "-m", *words], cwd=self.folder, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def guide_files() -> dict[str, str]:
    """The blocks of each file that the guide names, in its order: a block is of the file that was named last."""
    files: dict[str, str] = {}
    name = ""
    for mention, language, block in re.findall(
        r"`((?:src|tests)/[\w/]+\.py|pyproject\.toml)`|^```(\w+)\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL
    ):
        name = mention or name
        if language in ("python", "toml"):
            files[name] = f"{files[name]}\n\n{block}" if name in files else block
    return files


def guide_commands() -> list[list[str]]:
    blocks = re.findall(r"^```bash\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.replace("\\\n", "").splitlines()]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    folder = tmp_path_factory.mktemp("package")
    for name, text in guide_files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "src/pagefall_sqlite/py.typed").touch()

    pip = [sys.executable, "-m", "pip"]
    alone = ["--no-deps", "--no-index", "--disable-pip-version-check", "--quiet"]
    wheels = folder / "dist"
    build = [*pip, "wheel", *alone, "--no-build-isolation", "--wheel-dir", str(wheels), str(folder)]
    subprocess.run(build, check=True, timeout=120)
    venv.create(folder / ".venv", symlinks=True)
    python = folder / ".venv/bin/python"
    install = [*pip, "--python", str(python), "install", *alone, *map(str, wheels.iterdir())]
    subprocess.run(install, check=True, timeout=120)
    [site_packages] = (folder / ".venv/lib").glob("python*/site-packages")
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    ours = [str(REPOSITORY / "service"), str(REPOSITORY / "storage_backends")]
    (site_packages / "everything_else.pth").write_text("\n".join([*ours, *others]))
    return Package(folder, python)


def without_blank_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def test_the_files_of_the_guide_are_those_of_the_example() -> None:
    files = {
        str(path.relative_to(EXAMPLE)): path.read_text()
        for path in EXAMPLE.rglob("*")
        if path.suffix in (".py", ".toml") and "__pycache__" not in path.parts
    }
    guide = guide_files()
    assert guide.keys() == files.keys()
    for name, text in files.items():
        assert without_blank_lines(guide[name]) == without_blank_lines(text), name


def run_venv(words: Sequence[str], package: Package) -> None:
    assert words == [".venv"]
    assert package.python.exists()


def run_pip_install(words: Sequence[str], package: Package) -> None:
    """The fixture has done it, from what there is without an index."""
    assert words in (["pagefall"], [".[test]"])
    assert '\ntest = ["pytest' in guide_files()["pyproject.toml"]


def run_pytest(words: Sequence[str], package: Package) -> None:
    said = package.run("pytest", "-q", *words)
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None
    assert int(passed[1]) >= 40, said
    assert not re.search("failed|skipped|error", said), said


def run_backends(words: Sequence[str], package: Package) -> None:
    said = package.run("pagefall", "backends", *words)
    assert re.search(r"^sqlite +pagefall-sqlite 1\.0\.0 +durable, shared, last_used$", said, flags=re.MULTILINE), said
    assert ("busy_seconds" in said) == (words == ["sqlite"])


def run_serve(words: Sequence[str], package: Package) -> None:
    """A prompt that was seen before the restart comes from the store, and is answered the same."""
    flags = [word.replace(STORE, str(package.folder / STORE)) for word in words]
    cold, hit = served(package, *flags), served(package, *flags)
    assert hit["choices"] == cold["choices"]
    assert [num_from_storage(answer) for answer in (cold, hit)] == [0, NUM_STORED_TOKENS]


def served(package: Package, *flags: str) -> Any:
    """What a server with these flags, started for it, answers to `PROMPT`."""
    weights = package.folder / "weights"
    if not weights.exists():
        make_tiny_tokenizer(make_tiny("llama", weights))
    tiny = ["--model-path", str(weights), "--dtype", "float32", "--compile", "off", "--max-total-tokens", "8192"]
    patient = ["--hicache-storage-prefetch-policy", "wait_complete"]
    with real_server(package.folder, *flags, *tiny, *patient, python=str(package.python)) as server:
        model = httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"]
        body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "ignore_eos": True, "temperature": 0}
        return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()


def num_from_storage(answer: Any) -> int:
    num_tokens: int = answer["usage"]["prompt_tokens_details"]["cached_tokens_by_tier"]["storage"]
    return num_tokens


def run_cache(words: Sequence[str], package: Package) -> None:
    """On what the servers have left."""
    said = package.run("pagefall", "cache", *words)
    assert "damaged" not in said
    assert ("SQLite file pages.db" if words[0] == "stats" else "sound") in said


RUNNERS: Final[dict[str, Callable[[Sequence[str], Package], None]]] = {
    "python3 -m venv": run_venv,
    ".venv/bin/pip install": run_pip_install,
    ".venv/bin/pytest": run_pytest,
    ".venv/bin/pagefall backends": run_backends,
    ".venv/bin/pagefall serve": run_serve,
    ".venv/bin/pagefall cache": run_cache,
}


def test_every_command_of_the_guide_does_what_it_says(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEFALL_CACHE_DIR", str(tmp_path))
    commands = guide_commands()
    assert len(commands) == 9
    for words in commands:
        [(start, runner)] = [(s.split(), r) for s, r in RUNNERS.items() if words[: len(s.split())] == s.split()]
        runner(words[len(start) :], package)


def test_a_plug_in_can_be_stacked(package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEFALL_CACHE_DIR", str(tmp_path / "cache"))
    on = ["--enable-hierarchical-cache", "--hicache-storage-backend"]
    settings: dict[str, dict[str, object]] = {
        "file": {"path": str(tmp_path / "near"), "min_free_bytes": 0},
        "sqlite": {"path": str(tmp_path / STORE)},
    }
    extra_config = "--hicache-storage-backend-extra-config"
    cold = served(package, *on, "sqlite", extra_config, json.dumps(settings["sqlite"]))
    hit = served(package, *on, "file,sqlite", extra_config, json.dumps(settings))
    assert hit["choices"] == cold["choices"]
    assert num_from_storage(hit) == NUM_STORED_TOKENS
    assert any(len(path.name) == 64 for path in (tmp_path / "near").rglob("*")), "nothing was promoted"
