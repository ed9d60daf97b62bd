"""The flags of everything that listens: `pagefall serve` and `pagefall router`."""

from __future__ import annotations

from pagefall.cli.flags import Flag


def http_flags(*, admin_key_help: str) -> tuple[Flag, ...]:
    """Of `HttpConfig`, those that mean the same everywhere, but for what the admin's key opens."""
    return (
        Flag("host", "address to listen on; 0.0.0.0 is every IPv4 interface", "ADDRESS"),
        Flag("port", "TCP port to listen on; 0 picks a free one", minimum=0, maximum=65535),
        Flag("api-key", "ask every client for this bearer token", "KEY", environ="PAGEFALL_API_KEY"),
        Flag("admin-api-key", admin_key_help, "KEY", environ="PAGEFALL_ADMIN_API_KEY"),
        Flag("log-level", "how much the log says"),
        Flag("max-body-bytes", "largest request body; larger ones are refused with 413", minimum=1),
        Flag(
            "shutdown-grace-seconds",
            "how long requests under way may go on after Ctrl-C or SIGTERM",
            "SECONDS",
            minimum=0,
            maximum=86400,
        ),
    )


def cors_flag(*, listener: str) -> Flag:
    """`listener` is what pages are let use: "server" or "router"."""
    return Flag(
        "cors-origins",
        f"pages that a browser lets use this {listener}, for example https://chat.example; absent: none",
        "ORIGIN[,ORIGIN]|*",
    )
