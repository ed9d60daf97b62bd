"""What `pagefall bench load` is asked for."""

from __future__ import annotations

import msgspec

from pagefall.bench.load.client import Endpoint
from pagefall.bench.load.presets import PresetName
from pagefall.bench.load.shapes import AnswerKind, ShapeName


class ServersConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Running servers, `url` and a `peer_url` to compare with, or one of our own: `serve`, flags of `pagefall serve`.

    `model` None: the first that the server lists. `endpoint` None: chat for a trace of chats, else completions.
    """

    url: str = "http://127.0.0.1:30000"
    peer_url: str | None = None
    model: str | None = None
    peer_model: str | None = None
    api_key: str | None = None
    peer_api_key: str | None = None
    endpoint: Endpoint | None = None
    serve: str | None = None
    restart_command: str | None = None


class WorkloadConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Either `workload` or `preset`, and sizes that differ from its own. None: as the workload has it."""

    workload: ShapeName | None = None
    preset: PresetName | None = None
    scale: float = 1.0
    groups: int | None = None
    prompts_per_group: int | None = None
    system_tokens: int | None = None
    question_tokens: int | None = None
    users: int | None = None
    active_users: int | None = None
    turns: int | None = None
    first_tokens: int | None = None
    turn_tokens: int | None = None
    think_seconds: float | None = None
    answers: AnswerKind | None = None
    documents: int | None = None
    questions: int | None = None
    document_tokens: int | None = None
    evict_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    length_spread: float | None = None
    trace: str | None = None
    trace_speed: float | None = None


class TrafficConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A closed loop of `concurrency`, or an open one of `request_rate`. None: the preset's, or the trace's times."""

    concurrency: int | None = None
    request_rate: float | None = None
    burstiness: float | None = None
    max_concurrency: int | None = None
    num_requests: int | None = None
    duration: float | None = None
    warm_up: int = 2
    timeout: float = 600.0


class ResultsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`repeats` None: 1, with a peer 3. `seed` None draws one, so that a second command meets nothing of the first."""

    repeats: int | None = None
    rest_seconds: float = 1.0
    seed: int | None = None
    slo: str | None = None
    json: str | None = None
    png: str | None = None


class LoadConfig(msgspec.Struct, frozen=True, kw_only=True):
    servers: ServersConfig = ServersConfig()
    workload: WorkloadConfig = WorkloadConfig()
    traffic: TrafficConfig = TrafficConfig()
    results: ResultsConfig = ResultsConfig()
