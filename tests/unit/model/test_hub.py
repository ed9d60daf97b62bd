"""The hub is asked once whether it answers; models and tokenizers that are here need no hub."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.tiny_models import make_tiny, make_tiny_tokenizer

from pagefall.config import ModelConfig
from pagefall.errors import ModelError
from pagefall.model.hub import why_unreachable
from pagefall.model.location import ModelLocation, locate_tokenizer
from pagefall.model.spec import inspect
from pagefall.text.tokenizer import load_tokenizer

HUB_ID = "some-owner/some-model"


class RefusingHub(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def put_hub_at(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `HF_ENDPOINT` would do, had it been set before the import."""
    url = f"http://127.0.0.1:{port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub that answers, and has no model."""
    with HTTPServer(("127.0.0.1", 0), RefusingHub) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        put_hub_at(server.server_port, monkeypatch)
        yield
        server.shutdown()
        thread.join()


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A port that nobody listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        put_hub_at(bound.getsockname()[1], monkeypatch)
        yield


def test_a_hub_that_has_no_such_model_answers(hub: None) -> None:
    assert why_unreachable(HUB_ID, "main") is None


def test_a_hub_that_does_not_answer_is_told_in_one_line(no_hub: None) -> None:
    reason = why_unreachable(HUB_ID, "main")
    assert reason is not None
    assert "refused" in reason
    assert "\n" not in reason


@pytest.mark.timeout(10)
def test_a_model_of_a_hub_that_does_not_answer_is_refused_at_once(
    no_hub: None, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ModelError, match=r"the hub cannot be reached \(.*refused\) and its local cache has no such"):
        inspect(ModelConfig(model_path=HUB_ID, device="cpu"))
    assert "Retrying" not in caplog.text


@pytest.mark.timeout(10)
def test_a_local_model_needs_no_hub(no_hub: None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_tiny_tokenizer(make_tiny("llama", tmp_path))
    location = inspect(ModelConfig(model_path=str(folder), device="cpu")).location
    load_tokenizer(location.path, **location.keywords())
    assert caplog.text == ""


def test_without_an_answer_only_the_hubs_local_cache_is_read(no_hub: None) -> None:
    location = locate_tokenizer(ModelConfig(tokenizer_path=HUB_ID), ModelLocation(path="model"))
    assert location.keywords() == {"local_files_only": True, "revision": "main"}


def test_a_tokenizer_lies_with_its_model_unless_told(hub: None, tmp_path: Path) -> None:
    model = ModelLocation(path="model", revision="v1")
    assert locate_tokenizer(ModelConfig(revision="v1"), model) == model
    assert locate_tokenizer(ModelConfig(tokenizer_path=str(tmp_path)), model) == ModelLocation(path=str(tmp_path))
    at_hub = ModelLocation(path=HUB_ID, revision="main")
    assert locate_tokenizer(ModelConfig(tokenizer_path=HUB_ID, revision="v1"), model) == at_hub
    with pytest.raises(ModelError, match="--tokenizer-path /nowhere/at/all does not exist"):
        locate_tokenizer(ModelConfig(tokenizer_path="/nowhere/at/all"), model)
