"""`pagefall`: which command, and how its failures end. Imports wait until a command needs them: help is instant."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pagefall.errors import ConfigError, PagefallError

USAGE = """\
usage: pagefall COMMAND [flags]

An OpenAI-compatible LLM server whose prefix cache does not end at the GPU.

commands:
  serve                serve a model; without flags the embedded one, on port 30000
  router               many workers behind one address, each request where its prompt is cached
  demo                 one document from each tier: a table and a chart, in a minute or two
  explain              why a request's prompt was not cached, or not all of it, and the last requests
  doctor               why a running server's hit rate is what it is, and what to do about it
  doctor prompts       the same for a log of requests, without a server
  doctor template      whether a model's chat template lets the next turn reuse the last one
  backends             the stores that are installed, and their settings
  cache stats          what a store of pages holds, without a server
  cache verify         read every page of a store and check it
  cache clear          remove pages from a store
  cache copy           copy what a store has to another
  cache diff           what differs between the settings behind two sets of pages
  bench load           put load on any OpenAI-compatible server, or on two in turns
  bench engine         time a running server, alone or against a peer
  bench multi-turn     conversations that grow: latency, throughput and hit rate, tiers on against off
  bench shared-prefix  questions under few system prompts: the same, cache on against off
  bench storage-hit    a hit in a store against none, one in host memory against the device
  bench control-plane  time the scheduler and the prefix cache, without a model
  bench router         time what the router adds to the first token
  bench copies         time copies between device and host pages against memcpy
  bench transfers      time pages between host memory and a store, and how late the event loop is meanwhile

  pagefall COMMAND --help   the flags of a command
  pagefall --version        the version
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (the program's own arguments when None) and return its exit status.

    An error that Pagefall names is one line on standard error: 2 for the configuration's fault, 1 for any other.
    """
    try:
        return _dispatch(list(sys.argv[1:] if argv is None else argv))
    except PagefallError as error:
        sys.stderr.write(f"pagefall: error: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130


def _dispatch(argv: list[str]) -> int:
    match argv:
        case [] | ["-h" | "--help", *_] | ["bench" | "cache"] | ["bench" | "cache", "-h" | "--help"]:
            sys.stdout.write(USAGE)
            return 0
        case ["--version", *_]:
            from importlib.metadata import version

            sys.stdout.write(f"pagefall {version('pagefall')}\n")
            return 0
        case ["serve", *flags]:
            from pagefall.cli.serve import parse_serve

            config = parse_serve(flags, os.environ)
            if config.parallel.dp_size > 1:
                from pagefall.cli.torchless import leave_torch_out

                leave_torch_out()

                from pagefall.cli.data_parallel import serve_data_parallel
                from pagefall.cli.router_tokenizer import load_encoder

                return serve_data_parallel(flags, config, os.environ, load_encoder)

            from pagefall.app import serve

            return serve(config)
        case ["router", *flags]:
            from pagefall.cli.router import parse_router

            router_config = parse_router(flags, os.environ)

            from pagefall.cli.torchless import leave_torch_out
            from pagefall.router.serve import serve as serve_router

            leave_torch_out()
            if router_config.routing.disable_tokenizer:
                return serve_router(router_config, None)

            from pagefall.cli.router_tokenizer import load_encoder

            return serve_router(router_config, load_encoder)
        case ["demo", *flags]:
            from pagefall.bench.demo import demo
            from pagefall.cli.demo import parse_demo

            return demo(parse_demo(flags, os.environ))
        case ["explain", *rest]:
            from pagefall.cli.explain import explain

            return explain(rest)
        case ["doctor", "prompts", *rest]:
            from pagefall.cli.torchless import leave_torch_out

            leave_torch_out()

            from pagefall.cli.doctor_prompts import doctor_prompts

            return doctor_prompts(rest)
        case ["doctor", "template", *rest]:
            from pagefall.cli.torchless import leave_torch_out

            leave_torch_out()

            from pagefall.cli.doctor_template import doctor_template

            return doctor_template(rest)
        case ["doctor", *flags]:
            from pagefall.cli.doctor import doctor

            return doctor(flags)
        case ["backends", *rest]:
            from pagefall.cli.backends import backends

            return backends(rest)
        case ["cache", *rest]:
            from pagefall.cli.cache_command import cache

            return cache(rest)
        case ["bench", "copies", *flags]:
            from pagefall.bench.copies import bench_copies
            from pagefall.cli.copies import parse_copies

            return bench_copies(parse_copies(flags, os.environ))
        case ["bench", "transfers", *flags]:
            from pagefall.bench.store_transfers import bench_transfers
            from pagefall.cli.transfers import parse_transfers

            return bench_transfers(parse_transfers(flags, os.environ))
        case ["bench", *rest]:
            from pagefall.cli.bench import bench

            return bench(rest)
        case [unknown, *_]:
            from pagefall.cli.flags import nearest

            alike = nearest(
                unknown, ["serve", "router", "demo", "explain", "backends", "bench", "cache", "--version", "--help"]
            )
            raise ConfigError(f"{unknown}: unknown command; " + (f"did you mean {alike}?" if alike else "see --help"))
    raise AssertionError(argv)
