"""A process that tries grammars out, so that one which takes for ever, all memory or the whole stack ends only it.

Frames on both pipes: four bytes of length, little-endian, then that many bytes. In comes a `VocabularyFacts` as JSON,
then one grammar after the other; after each a `Verdict` as JSON goes out. Ends with its standard input.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import struct
import sys
import threading
from pathlib import Path
from typing import IO, Final

import msgspec
from llguidance import LLTokenizer

from pagefall.text.matchers import UnusableGrammarError, VocabularyFacts, load_vocabulary, make_matcher, rehearse

STACK_BYTES: Final = 1536 * 1024
"""Less than any thread of the server has: what recurses too deeply there has failed here before."""

_SPARE_BYTES: Final = 1 << 30
_LONGEST_SECONDS: Final = 10
"""Where nobody is left to end it, a process that does not come back ends itself."""

_LENGTH: Final = struct.Struct("<I")


class Verdict(msgspec.Struct, frozen=True):
    """Why the grammar cannot be used, None if it can be."""

    reason: str | None


def write_frame(pipe: IO[bytes], payload: bytes) -> None:
    pipe.write(_LENGTH.pack(len(payload)) + payload)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """None at the end of the pipe."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    payload = pipe.read(_LENGTH.unpack(head)[0])
    return payload if len(payload) == _LENGTH.unpack(head)[0] else None


def judge(vocabulary: LLTokenizer, grammar: str) -> Verdict:
    try:
        rehearse(make_matcher(vocabulary, grammar))
    except UnusableGrammarError as error:
        return Verdict(str(error))
    return Verdict(None)


def _serve(cpu_seconds: float) -> None:
    facts = read_frame(sys.stdin.buffer)
    if facts is None:
        return
    try:
        vocabulary = load_vocabulary(msgspec.json.decode(facts, type=VocabularyFacts))
    except UnusableGrammarError as error:
        write_frame(sys.stdout.buffer, msgspec.json.encode(Verdict(str(error))))
        return
    _limit_memory()
    write_frame(sys.stdout.buffer, msgspec.json.encode(Verdict(None)))
    while (grammar := read_frame(sys.stdin.buffer)) is not None:
        signal.setitimer(signal.ITIMER_REAL, _LONGEST_SECONDS)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        verdict = judge(vocabulary, grammar.decode())
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_frame(sys.stdout.buffer, msgspec.json.encode(verdict))


def _limit_memory() -> None:
    """To a gibibyte more than now, where the system says how much that is."""
    with contextlib.suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _SPARE_BYTES, resource.RLIM_INFINITY))


def main() -> None:
    """Everything happens in a thread, whose stack can be made small. The argument: CPU seconds that a grammar may take.
    What takes more ends the process with SIGPROF; other processes on the cores do not count.
    """
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(float(sys.argv[1]),))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
