from __future__ import annotations

import pytest

from pagefall.bench.targets import OwnServer, RunningServer, ServersConfig, Target, targets
from pagefall.errors import ConfigError


def resolve(**given: object) -> tuple[Target, ...]:
    return targets(ServersConfig(**given), serve="--page-size 16", against="--disable-radix-cache")  # type: ignore[arg-type]


def test_without_servers_the_commands_own_pair_is_compared() -> None:
    assert resolve() == (
        OwnServer(label="serve", flags=("--page-size", "16")),
        OwnServer(label="against", flags=("--disable-radix-cache",)),
    )


def test_flags_of_ones_own_are_compared_with_nothing_unless_asked() -> None:
    assert resolve(serve="--port 1") == (OwnServer(label="serve", flags=("--port", "1")),)
    assert [target.label for target in resolve(serve="--port 1", against="--port 2")] == ["serve", "against"]


def test_a_restart_has_the_flags_and_the_store_of_the_first_and_the_last_stays_the_measure() -> None:
    first, second, third = resolve(restart=True)
    assert isinstance(first, OwnServer)
    assert second == OwnServer(label="restarted", flags=first.flags, restarts="serve")
    assert third.label == "against"


def test_quoted_flags_stay_in_one_piece() -> None:
    (target,) = resolve(serve="""--hicache-storage-backend-extra-config '{"path": "/a b"}'""")
    assert isinstance(target, OwnServer)
    assert target.flags[1] == '{"path": "/a b"}'


def test_running_servers_are_asked_by_their_urls() -> None:
    assert resolve(url="http://a", peer_url="http://b/v1", peer_model="m", api_key="k") == (
        RunningServer(label="self", url="http://a", api_key="k"),
        RunningServer(label="peer", url="http://b/v1", model="m", api_key="k"),
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"url": "http://a", "serve": "--port 1"}, "--serve: starts servers"),
        ({"url": "http://a", "restart": True}, "--restart: starts servers"),
        ({"peer_url": "http://b"}, "--peer-url: needs --url"),
        ({"url": "http://a", "peer_model": "m"}, "--peer-model: needs --peer-url"),
        ({"serve": "--chat-template 'unfinished"}, "--serve: No closing quotation"),
    ],
)
def test_a_contradiction_is_a_configuration_error(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(**given)
    assert str(caught.value).startswith(words)
