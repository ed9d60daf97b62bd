#!/usr/bin/env python3
"""Tries compose.yaml out on a real Docker engine: prints a line for each check, and exits with the number of failures.

    python3 docker/verify.py [--no-build] [--keep]

It needs Docker with compose (v1.29 or v2), curl, Python 3.11 and, on the first run, a few minutes for the image.
Everything runs in a project of its own, on free ports of loopback, and is removed at the end; the image stays.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from verify_stack import NAME, Stack, breaker_states, prompt, tokens_by_tier

REPOSITORY: Final = Path(__file__).resolve().parents[1]
START_SECONDS: Final = 600.0
"""How long a server may take to become healthy: the first start unpacks the model, on a machine that may be busy."""
PATIENCE_SECONDS: Final = 120.0

Answer = TypeVar("Answer")


def wait_for(what: str, condition: Callable[[], Answer | None], seconds: float = PATIENCE_SECONDS) -> Answer:
    """What `condition` says once that is true; OSErrors on the way count as not yet. Raises `AssertionError`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            answer = condition()
        except OSError as error:
            last: object = error
        else:
            if answer:
                return answer
            last = answer
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s; last: {last}"
        time.sleep(0.5)


def readme_commands(readme: str, address: str) -> list[list[str]]:
    """The words of each curl of the README's first steps, typed as it is there but for the address."""
    block = next(part for part in readme.split("```") if part.startswith("bash\n") and "/v1/chat/completions" in part)
    text = block.removeprefix("bash").replace("\\\n", " ").replace("127.0.0.1:30000", address)
    return [["curl", *shlex.split(command)] for command in text.split("\ncurl ")[1:]]


class Report:
    """Runs checks and prints how they went."""

    def __init__(self) -> None:
        self.num_passed = 0
        self.num_failed = 0

    def check(self, what: str, run: Callable[[], str]) -> None:
        """`run` says what it saw, and raises for a failure, of whatever kind: the next check runs all the same."""
        start = time.monotonic()
        try:
            saw = run()
        except Exception as error:  # noqa: BLE001 - told, and counted
            self.num_failed += 1
            self._line("FAILED", what, f"{type(error).__name__}: {error}", start)
        else:
            self.num_passed += 1
            self._line("ok", what, saw, start)

    def skip(self, what: str, why: str) -> None:
        self._line("skipped", what, why, time.monotonic())

    def _line(self, outcome: str, what: str, saw: str, start: float) -> None:
        sys.stdout.write(f"{outcome:8}{what}: {saw} [{time.monotonic() - start:.1f} s]\n")
        sys.stdout.flush()


class Checks:
    """The checks, in the order in which they are made. Each returns what it saw."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack

    def builds(self) -> str:
        self._stack.compose("build", "pagefall")
        return f"{int(self._stack.inspect_image('pagefall:cpu', '{{.Size}}')) / 1e6:,.0f} MB"

    def comes_up(self) -> str:
        self._stack.compose("up", "-d")
        return self._all_healthy("redis", "prometheus", "pagefall")

    def is_locked_down(self) -> str:
        user = self._stack.execute("pagefall", "id", "-u").strip()
        assert user == "10001", f"runs as user {user}"
        found = self._stack.execute("pagefall", "sh", "-c", "command -v gcc g++ make git curl; touch /x 2>&1 || true")
        assert "/bin/" not in found, f"in the image: {found}"
        assert "Read-only" in found, f"the file system can be written: {found}"
        return "user 10001, no build tools, read-only"

    def answers_the_readme(self) -> str:
        for command in readme_commands((REPOSITORY / "README.md").read_text(), self._stack.address):
            said = subprocess.run([*command, "-sS", "--fail"], check=True, capture_output=True, text=True).stdout
        return repr(json.loads(said)["choices"][0]["message"]["content"])[:60]

    def hits_at_once(self) -> str:
        body = prompt("device")
        self._stack.ask(body)
        return self._hit("device", self._stack.ask(body))

    def hits_from_the_store(self) -> str:
        body = prompt(f"store {time.monotonic()}")
        cold = self._stack.ask(body)
        warm = wait_for("a hit in the store", lambda: self._after_flush(body))
        assert warm["choices"][0]["text"] == cold["choices"][0]["text"], "another answer than the cold one"
        return self._hit("storage", warm)

    def has_targets(self) -> str:
        def up() -> list[str] | None:
            targets = self._stack.prometheus("targets")["activeTargets"]
            names = [target["labels"]["instance"] for target in targets if target["health"] == "up"]
            return names if names and len(names) == len(targets) else None

        names = wait_for("every target up", up)
        groups = [group["name"] for group in self._stack.prometheus("rules")["groups"]]
        assert groups, "Prometheus has no rules"
        value = self._stack.prometheus("query?query=pagefall_info")["result"]
        assert value, "Prometheus has nothing of the server"
        return f"{', '.join(sorted(names))}; {len(groups)} groups of rules"

    def survives_redis(self) -> str:
        """SIGKILL under load; the breaker opens; every request is answered; it comes back, the breaker closes."""
        stack, ended = self._stack, threading.Event()
        num_answers, faults = [0], list[str]()

        def load(number: int) -> None:
            while not ended.is_set():
                try:
                    stack.ask(prompt(f"load {number} {time.monotonic()}"))
                    num_answers[0] += 1
                except Exception as error:  # noqa: BLE001 - any is a request that was not served
                    faults.append(f"{type(error).__name__}: {error}")
                    ended.wait(1)

        def more_answers(than: int) -> None:
            wait_for("answers", lambda: num_answers[0] >= than)

        body = prompt("redis")
        cold = stack.ask(body)
        threads = [threading.Thread(target=load, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        try:
            more_answers(2)
            stack.docker("kill", stack.container("redis"))
            wait_for("the breaker opens", lambda: "closed" not in breaker_states(stack))
            stack.flush()
            again, before = stack.ask(body), num_answers[0]
            assert again["choices"][0]["text"] == cold["choices"][0]["text"], "another answer without the store"
            more_answers(before + 2)
            without = num_answers[0]
            stack.docker("start", stack.container("redis"))
            back = time.monotonic()
            wait_for("the breaker closes", lambda: breaker_states(stack) == ["closed"])
            seconds = time.monotonic() - back
            more_answers(without + 2)
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        assert not faults, f"{len(faults)} requests failed: {faults[0]}"
        return f"{num_answers[0]} requests answered, none failed; breaker open, closed {seconds:.1f} s after the return"

    def drains(self) -> str:
        """SIGTERM while an answer is being streamed: it comes to its end, and the status is 0."""
        stream = self._stack.stream(prompt("drain") | {"max_tokens": 40, "ignore_eos": True})
        next(stream)
        stopping = threading.Thread(target=self._stack.compose, args=("stop", "pagefall"))
        start = time.monotonic()
        stopping.start()
        num_events = 1 + sum(1 for _ in stream)
        stopping.join()
        seconds = time.monotonic() - start
        status = self._stack.inspect("pagefall", "{{.State.ExitCode}}")
        assert status == "0", f"exit status {status}"
        assert num_events >= 40, f"the stream ended after {num_events} events"
        return f"the stream got its {num_events} events, status 0 after {seconds:.1f} s"

    def hits_after_a_restart(self) -> str:
        body = prompt(f"restart {time.monotonic()}")
        self._stack.compose("start", "pagefall")
        self._all_healthy("pagefall")
        cold = self._stack.ask(body)
        self._stack.compose("restart", "pagefall")
        self._all_healthy("pagefall")
        # A server that has computed nothing yet cannot tell whether loading pays, and may not wait for it.
        self._stack.ask(prompt(f"warm up {time.monotonic()}"))
        warm = self._stack.ask(body)
        assert warm["choices"][0]["text"] == cold["choices"][0]["text"], "another answer after the restart"
        return self._hit("storage", warm)

    def shows_a_dashboard(self) -> str:
        return wait_for("Grafana's dashboard", self._stack.dashboard_title)

    def serves_from_s3(self) -> str:
        self._stack.environment["PAGEFALL_STORE"] = "s3"
        try:
            self._stack.compose("--profile", "s3", "up", "-d", "pagefall", "seaweedfs", "bucket")
            self._all_healthy("seaweedfs", "pagefall")
            return self.hits_from_the_store()
        finally:
            self._stack.environment["PAGEFALL_STORE"] = "redis"
            self._stack.compose("--profile", "s3", "rm", "-sfv", "pagefall", "seaweedfs", "bucket")

    def cluster_comes_up(self) -> str:
        self._stack.compose("--profile", "cluster", "up", "-d", "router")
        return self._all_healthy("worker-a", "worker-b", "router")

    def shares_between_workers(self) -> str:
        body = prompt(f"shared {time.monotonic()}")
        cold = self._stack.ask_inside("worker-a", body)
        warm = wait_for("worker B has it", lambda: self._other_worker(body), 60)
        assert warm["choices"][0]["text"] == cold["choices"][0]["text"], "worker B gives another answer"
        return self._hit("storage", warm)

    def routes(self) -> str:
        body = prompt(f"routed {time.monotonic()}")
        first, second = (self._stack.ask_router(body) for _ in range(2))
        assert first[1] == second[1], f"one prompt went to {first[1]}, then to {second[1]}"
        return f"both to {second[1]}, {self._hit('device', second[0])}"

    def _other_worker(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """Worker B's answer, if it is from the store. What it had before is dropped, so that nothing else can help."""
        self._stack.flush_inside("worker-b")
        answer = self._stack.ask_inside("worker-b", body)
        return answer if tokens_by_tier(answer)["storage"] else None

    def _after_flush(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """The answer once device and host have forgotten all, if any of its prompt is from the store."""
        self._stack.flush()
        answer = self._stack.ask(body)
        return answer if tokens_by_tier(answer)["storage"] else None

    def _all_healthy(self, *services: str) -> str:
        for service in services:
            wait_for(f"{service} is healthy", partial(self._stack.is_healthy, service), START_SECONDS)
        return ", ".join(services)

    def _why(self) -> str:
        """For which reasons the published server has missed tokens, all its prompts together."""
        try:
            metrics = self._stack.get("/metrics").decode()
        except OSError as error:
            return str(error)
        counts = re.findall(r'pagefall_missed_tokens_total\{reason="(\w+)"\} (\d+)', metrics)
        return "missed: " + ", ".join(f"{reason} {count}" for reason, count in counts if int(count))

    def _hit(self, tier: str, answer: dict[str, Any]) -> str:
        num_tokens, num_prompt = tokens_by_tier(answer)[tier], answer["usage"]["prompt_tokens"]
        assert num_tokens > 0, f"no token from the {tier}: {answer['usage']['prompt_tokens_details']}; {self._why()}"
        return f"{num_tokens} of {num_prompt} prompt tokens from the {tier}"


def run(stack: Stack, *, build: bool) -> int:
    """Every check; returns how many failed."""
    report, checks = Report(), Checks(stack)
    if build:
        report.check("docker build", checks.builds)
    report.check("docker compose up, healthy", checks.comes_up)
    report.check("not root, small, read-only", checks.is_locked_down)
    report.check("the README's curl", checks.answers_the_readme)
    report.check("the same prompt again", checks.hits_at_once)
    report.check("a hit in Redis", checks.hits_from_the_store)
    report.check("Prometheus has its targets", checks.has_targets)
    if stack.try_compose("--profile", "grafana", "up", "-d", "grafana"):
        report.check("Grafana has its dashboard", checks.shows_a_dashboard)
    else:
        report.skip("Grafana has its dashboard", "its image cannot be had here")
    report.check("docker kill of Redis under load, and its return", checks.survives_redis)
    report.check("hits come back", checks.hits_from_the_store)
    report.check("SIGTERM drains", checks.drains)
    report.check("a hit after a restart", checks.hits_after_a_restart)
    report.check("--profile s3: a hit in S3", checks.serves_from_s3)
    report.check("--profile cluster, healthy", checks.cluster_comes_up)
    report.check("worker B serves what worker A stored", checks.shares_between_workers)
    report.check("the router sends a prompt where it is cached", checks.routes)
    report.check("Prometheus has the cluster", checks.has_targets)
    sys.stdout.write(f"{report.num_passed} passed, {report.num_failed} failed\n")
    return report.num_failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-build", action="store_true", help="take the image pagefall:cpu as it is")
    parser.add_argument("--keep", action="store_true", help=f"leave the containers of project {NAME} running")
    options = parser.parse_args()
    stack = Stack(REPOSITORY)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that it cleans up then too
    try:
        return run(stack, build=not options.no_build)
    finally:
        if not options.keep:
            stack.remove()


if __name__ == "__main__":
    sys.exit(main())
