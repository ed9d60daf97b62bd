from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagefall.bench.load.ledger import PrefixLedger
from pagefall.bench.load.shapes import Trace
from pagefall.bench.load.trace import has_messages, load_trace
from pagefall.bench.load.turns import Message
from pagefall.errors import ConfigError


def write(folder: Path, *rows: Any) -> str:
    path = folder / "trace.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def mooncake(timestamp: float, input_length: int, *hash_ids: int, output_length: int = 30) -> dict[str, Any]:
    return {
        "timestamp": timestamp,
        "input_length": input_length,
        "output_length": output_length,
        "hash_ids": list(hash_ids),
    }


def test_mooncakes_blocks_are_pieces_of_512_tokens_and_its_times_milliseconds(tmp_path: Path) -> None:
    path = write(tmp_path, mooncake(27_000, 1_200, 0, 1, 2), "", mooncake(30_000, 1_100, 0, 1, 3, output_length=7))
    first, second = load_trace(Trace(trace=path))
    assert [piece.num_tokens for piece in first.turns[0].pieces] == [512, 512, 176]
    assert (first.at_seconds, second.at_seconds) == (0.0, 3.0)
    assert second.turns[0].output_tokens == 7
    ledger = PrefixLedger()
    assert [ledger.see(session.turns[0].pieces) for session in (first, second, first)] == [0, 1_024, 1_200]


def test_speed_and_scale_make_a_trace_fit(tmp_path: Path) -> None:
    path = write(tmp_path, mooncake(0, 1_024, 0, 1), mooncake(4_000, 512, 0))
    first, second = load_trace(Trace(trace=path, trace_speed=2.0), scale=0.25)
    assert second.at_seconds == 2.0
    assert [piece.num_tokens for piece in first.turns[0].pieces] == [128, 128]
    assert first.turns[0].output_tokens == 8


def test_prompts_and_chats_are_sent_as_they_stand_with_times_in_seconds(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"timestamp": 12.5, "prompt": "Once upon a time", "max_tokens": 9, "user": "someone"},
        {"timestamp": 10, "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    )
    chat, text = load_trace(Trace(trace=path, output_tokens=64))
    assert (chat.at_seconds, text.at_seconds) == (0.0, 2.5), "in the order of their times"
    assert chat.turns[0].literal == (Message(role="user", content="Hi"),)
    assert (chat.turns[0].output_tokens, text.turns[0].output_tokens) == (64, 9)
    assert has_messages([chat, text])
    assert not has_messages([text])


def test_what_literal_prompts_share_is_known_to_64_characters(tmp_path: Path) -> None:
    head = "x" * 200
    path = write(tmp_path, *({"timestamp": 0, "prompt": head + tail} for tail in ("a" * 100, "b" * 100)))
    ledger = PrefixLedger()
    seen = [ledger.see(session.turns[0].pieces) for session in load_trace(Trace(trace=path))]
    assert seen == [0, 3 * 16]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{not json", "JSON is malformed"),
        ("[1]", "Expected `object`"),
        ({"timestamp": 1}, "wants hash_ids and input_length, or one of messages and prompt"),
        ({"timestamp": 1, "prompt": "x", "messages": []}, "wants hash_ids"),
        ({"timestamp": 1, "messages": []}, "messages: empty"),
        ({"timestamp": 1, "prompt": ""}, "prompt: empty"),
        ({"timestamp": -1, "prompt": "x"}, "timestamp: -1.0 is no time"),
        ({"prompt": "x"}, "no timestamp; with --concurrency or --request-rate it may be without"),
        ({"timestamp": "soon", "prompt": "x"}, "Expected `float"),
        ({"timestamp": 1, "prompt": "x", "max_tokens": 0}, "max_tokens: 0 is too small"),
        ({"timestamp": 1, "hash_ids": [1]}, "hash_ids without input_length"),
        (mooncake(1, 0), "input_length: 0 is too small"),
        (mooncake(1, 513, 1), "hash_ids: 1 for 513 tokens, which are 2 blocks of 512"),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, row: Any, message: str) -> None:
    path = write(tmp_path, {"timestamp": 0, "prompt": "x"}, row)
    with pytest.raises(ConfigError) as error:
        load_trace(Trace(trace=path))
    assert str(error.value).startswith(f"--trace: {path}, line 2: {message}")


def test_two_forms_in_one_file_are_a_mistake(tmp_path: Path) -> None:
    path = write(tmp_path, {"timestamp": 0, "prompt": "x"}, mooncake(1, 10, 1))
    with pytest.raises(ConfigError, match="line 2: has another form than the lines before"):
        load_trace(Trace(trace=path))


def test_times_may_lack_where_others_are_given(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "x"})
    (session,) = load_trace(Trace(trace=path), needs_times=False)
    assert session.at_seconds is None


def test_an_empty_trace_and_none_at_all_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no requests"):
        load_trace(Trace(trace=write(tmp_path)))
    with pytest.raises(ConfigError, match=r"absent\.jsonl: No such file"):
        load_trace(Trace(trace=str(tmp_path / "absent.jsonl")))
