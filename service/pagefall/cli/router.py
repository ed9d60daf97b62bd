"""`pagefall router`: its flags, and from them and the environment to a `RouterConfig`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pagefall.cli.config_file import read_config_file
from pagefall.cli.flags import Flag, FlagTable, Group
from pagefall.cli.http_flags import cors_flag, http_flags
from pagefall.cli.parser import build_config, contradiction, parse_arguments
from pagefall.cli.template import template_text
from pagefall.config import HttpConfig
from pagefall.errors import ConfigError
from pagefall.router.config import ForwardConfig, RouterConfig, RoutingConfig, TellingConfig, WorkersConfig
from pagefall.router.worker_urls import worker_spec

ROUTER_FLAGS: Final = FlagTable(
    program="pagefall router",
    summary="Many workers behind one address, each request where most of its prompt is cached and least is to do.",
    command_flags=(Flag("config", "read flags from a TOML file; keys are flag names, flags given here win", "FILE"),),
    groups=(
        Group(
            "Workers",
            "workers",
            WorkersConfig,
            (
                Flag("worker-urls", "the workers, with commas; more may join while it runs", "URL,URL"),
                Flag("workers-file", "a file of workers, one URL a line or a JSON list; its changes apply", "FILE"),
                Flag(
                    "worker-api-key",
                    "bearer token for the workers; absent: each client's own is passed on",
                    "KEY",
                    environ="PAGEFALL_WORKER_API_KEY",
                ),
                Flag("health-path", "what probes ask a worker for", "PATH"),
                Flag("health-interval", "between two probes of a worker", "SECONDS", above=0, maximum=3600),
                Flag("health-timeout", "how long a probe may take", "SECONDS", above=0, maximum=3600),
                Flag("health-failures", "failed probes in a row that make a worker unhealthy", minimum=1),
                Flag("health-successes", "good ones in a row that make it healthy again", minimum=1),
                Flag("breaker-failures", "failed requests in a row until a worker is left alone", minimum=1),
                Flag(
                    "breaker-open-seconds",
                    "for how long at first; doubled each time, up to a minute",
                    "SECONDS",
                    above=0,
                    maximum=60,
                ),
            ),
        ),
        Group(
            "Routing",
            "routing",
            RoutingConfig,
            (
                Flag("policy", "which worker gets a request"),
                Flag("model-path", "the served model, for its tokenizer; absent: the embedded one", "PATH"),
                Flag("tokenizer-path", "where the tokenizer lies, if not with the model", "PATH"),
                Flag("served-model-name", "the one model of several that the tokenizer is for", "NAME"),
                Flag("revision", "branch, tag or commit of a hub model", "REV"),
                Flag("trust-remote-code", "run the Python code that a model folder or hub model brings along"),
                Flag("chat-template", "a Jinja template, or a file with one, in place of the model's own", "FILE|TEXT"),
                Flag("disable-tokenizer", "route prompts as text"),
            ),
        ),
        Group(
            "Forwarding",
            "forward",
            ForwardConfig,
            (
                Flag("max-concurrent-requests", "requests under way at all workers together", minimum=1),
                Flag("max-queued-requests", "requests waiting for their turn; more are refused with 503", minimum=0),
                Flag("queue-timeout", "how long one waits for its turn, or for a healthy worker", "SECONDS", above=0),
                Flag("max-attempts", "workers that are asked at most, one after the other", minimum=1, maximum=100),
                Flag("retry-deadline", "so long after its arrival a request may go to another", "SECONDS", minimum=0),
                Flag("connect-timeout", "for a connection to a worker", "SECONDS", above=0),
                Flag(
                    "first-byte-timeout",
                    "until an answer begins, which of one that does not stream is its end too",
                    "SECONDS",
                    above=0,
                ),
                Flag("idle-timeout", "between two pieces of an answer", "SECONDS", above=0),
                Flag("disable-worker-header", "leave x-pagefall-worker out of answers"),
            ),
        ),
        Group(
            "HTTP",
            "http",
            HttpConfig,
            (
                *http_flags(
                    admin_key_help="the token that /router/workers, /cache/ and flushing the store ask for; with "
                    "--api-key alone nobody reaches the first",
                ),
                cors_flag(listener="router"),
            ),
        ),
        Group(
            "Insight",
            "telling",
            TellingConfig,
            (
                Flag("explain-max-requests", "requests whose routing can be explained; 0: none", minimum=0),
                Flag("request-log", "write a line of JSON for each request; - is standard output", "FILE|-"),
            ),
        ),
    ),
)


def parse_router(argv: Sequence[str], environ: Mapping[str, str]) -> RouterConfig:
    """As `parse_serve`. Raises `ConfigError` naming the value and the fix."""
    given = parse_arguments(ROUTER_FLAGS, argv, environ)
    if "config" in given:
        given = {**read_config_file(ROUTER_FLAGS, Path(given["config"].value)), **given}
    if "chat-template" in given:
        given = {**given, "chat-template": template_text(given["chat-template"])}
    if "worker-urls" in given:
        for url in given["worker-urls"].value:
            try:
                worker_spec(url)
            except ValueError as error:
                raise ConfigError(f"{given['worker-urls'].source}: {error}") from error
    if "disable-tokenizer" in given and given["disable-tokenizer"].value:
        for name in ("model-path", "tokenizer-path", "chat-template", "served-model-name"):
            if name in given:
                raise contradiction(given, name, "disable-tokenizer", "nothing is tokenised")
    config: RouterConfig = build_config(ROUTER_FLAGS, RouterConfig, given)
    if not config.workers.health_path.startswith("/"):
        raise ConfigError(f"{given['health-path'].source}: {config.workers.health_path!r} has to begin with '/'")
    return config
