"""Stop strings over streamed text, in one pass (Aho and Corasick, "Efficient string matching", CACM 18(6), 1975).

The law of this file: however the text is cut into pushes, the same text comes out and the same string is found.
"""

from __future__ import annotations

from collections import deque


class StopMatcher:
    """Passes text through up to the first stop string.

    The first string to be *complete* wins, and of those that end at the same character the longest; neither it nor
    anything after it is ever returned. Text that could still become part of one is held back. A push takes time
    linear in its length, whatever was pushed before.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        """`stop` may be empty. Raises `ValueError` if one of the strings is."""
        if "" in stop:
            raise ValueError("a stop string must have at least one character")
        self._next, self._fallback, self._depth, self._match_length = _automaton(stop)
        self._state = 0
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that was found, or None as long as there is none."""
        return self._matched

    def push(self, text: str) -> str:
        """The text that is now safe to send: all of it but what could begin a stop string, or what precedes one.

        After a match it is always empty.
        """
        if self._matched is not None:
            return ""
        if not self._next[0]:
            return text
        pending = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            self._advance(character)
            if length := self._match_length[self._state]:
                self._matched = pending[end - length : end]
                self._held = ""
                return pending[: end - length]
        safe = len(pending) - self._depth[self._state]
        self._held = pending[safe:]
        return pending[:safe]

    def flush(self) -> str:
        """The text held back, once no more will come. Empty after a match."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _advance(self, character: str) -> None:
        state = self._state
        while state and character not in self._next[state]:
            state = self._fallback[state]
        self._state = self._next[state].get(character, 0)


def _automaton(stop: tuple[str, ...]) -> tuple[list[dict[str, int]], list[int], list[int], list[int]]:
    """Per state (a prefix of a stop string; 0 is the empty one): children, the state of its longest proper suffix
    that is a prefix too, its length, and the length of the longest stop string it ends with (0 for none).
    """
    children: list[dict[str, int]] = [{}]
    depth = [0]
    match_length = [0]
    for string in stop:
        state = 0
        for character in string:
            if character not in children[state]:
                children[state][character] = len(children)
                children.append({})
                depth.append(depth[state] + 1)
                match_length.append(0)
            state = children[state][character]
        match_length[state] = len(string)

    fallback = [0] * len(children)
    queue = deque(children[0].values())
    while queue:  # breadth first: a suffix is shorter, so it is done before
        parent = queue.popleft()
        for character, state in children[parent].items():
            suffix = fallback[parent]
            while suffix and character not in children[suffix]:
                suffix = fallback[suffix]
            fallback[state] = children[suffix].get(character, 0)
            match_length[state] = match_length[state] or match_length[fallback[state]]
            queue.append(state)
    return children, fallback, depth, match_length
