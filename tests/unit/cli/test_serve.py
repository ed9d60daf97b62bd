from __future__ import annotations

from pathlib import Path

import pytest

from pagefall.cli.serve import parse_serve
from pagefall.config import CacheConfig, HttpConfig, ModelConfig, SchedulerConfig, ServeConfig
from pagefall.errors import ConfigError


def parse(*argv: str, **environ: str) -> ServeConfig:
    return parse_serve(argv, environ)


def complaint(*argv: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(*argv, **environ)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_no_flags_give_the_defaults() -> None:
    assert parse() == ServeConfig()


def test_every_flag_reaches_its_field() -> None:
    config = parse(
        *("--model-path", "org/model", "--served-model-name", "m", "--tokenizer-path", "tok", "--revision", "v1"),
        *("--trust-remote-code", "--device", "cpu", "--dtype", "float32", "--context-length", "4096"),
        *("--compile", "off", "--chat-template", "{{ messages }}", "--page-size", "32", "--max-total-tokens", "8192"),
        *("--radix-eviction-policy", "slru", "--max-running-requests", "8", "--max-queued-requests", "0"),
        *("--chunked-prefill-size", "256", "--schedule-policy", "fcfs", "--host", "0.0.0.0", "--port", "8000"),
        *("--api-key", "secret", "--admin-api-key", "more secret", "--log-level", "warning"),
        *("--max-body-bytes", "1000"),
        *("--shutdown-grace-seconds", "2.5"),
    )
    assert config == ServeConfig(
        model=ModelConfig(
            model_path="org/model",
            served_model_name="m",
            tokenizer_path="tok",
            revision="v1",
            trust_remote_code=True,
            device="cpu",
            dtype="float32",
            context_length=4096,
            compile="off",
            chat_template="{{ messages }}",
        ),
        cache=CacheConfig(page_size=32, max_total_tokens=8192, radix_eviction_policy="slru"),
        scheduler=SchedulerConfig(
            max_running_requests=8, max_queued_requests=0, chunked_prefill_size=256, schedule_policy="fcfs"
        ),
        http=HttpConfig(
            host="0.0.0.0",
            port=8000,
            api_key="secret",
            admin_api_key="more secret",
            log_level="warning",
            max_body_bytes=1000,
            shutdown_grace_seconds=2.5,
        ),
    )
    assert parse("--disable-radix-cache").cache.disable_radix_cache
    assert parse("--disable-answer-memory").cache.disable_answer_memory
    assert parse("--mem-fraction-static=0.85").cache.mem_fraction_static == 0.85


def test_the_connection_check_of_sglang_users_parses() -> None:
    flags = "--model-path Qwen/Qwen2.5-0.5B-Instruct --host 127.0.0.1 --port 30000 --context-length 4096"
    config = parse(*flags.split(), "--max-running-requests", "1")
    assert config.scheduler.max_running_requests == 1


def test_cache_report_and_metrics_are_accepted_and_change_nothing() -> None:
    assert parse("--enable-cache-report", "--enable-metrics") == ServeConfig()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--prot", "1"], "--prot: unknown; did you mean --port?"),
        (["--page-siz=1"], "--page-siz: unknown; did you mean --page-size?"),
        (["--model", "x"], "--model: unknown; did you mean --model-path?"),
        (["--enable-metric"], "--enable-metric: unknown; did you mean --enable-metrics?"),
        (["--confg", "x"], "--confg: unknown; did you mean --config?"),
        (["--xyzzy"], "--xyzzy: unknown; see pagefall serve --help"),
        (["some/model"], "unexpected argument 'some/model'"),
        (["--port"], "--port: expected one argument"),
        (["--kv-cache-dtype", "fp8"], "--kv-cache-dtype: not supported in this version"),
        (["--disable-hicache-numa-detect"], "--disable-hicache-numa-detect: not supported in this version"),
        (["--hicache-rato", "2"], "--hicache-rato: unknown; did you mean --hicache-ratio?"),
    ],
)
def test_an_unknown_flag_is_one_line_that_names_the_nearest(argv: list[str], words: str) -> None:
    assert words in complaint(*argv)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--port", "http"], "--port: 'http' is not a whole number"),
        (["--port", "65536"], "--port: 65536 is too large; use 65535 or less"),
        (["--port", "-1"], "--port: -1 is too small; use 0 or more"),
        (["--page-size", "0"], "--page-size: 0 is too small; use 1 or more"),
        (["--chunked-prefill-size", "0"], "--chunked-prefill-size: 0 is too small; use 1 or more"),
        (["--mem-fraction-static", "0"], "--mem-fraction-static: 0.0 is too small; use more than 0"),
        (["--mem-fraction-static", "1.5"], "--mem-fraction-static: 1.5 is too large; use 1 or less"),
        (["--mem-fraction-static", "nan"], "--mem-fraction-static: nan is too small"),
        (["--dtype", "fp16"], "--dtype: 'fp16' is not one of auto, bfloat16, float16, float32"),
        (["--api-key", ""], "--api-key: the value is empty"),
    ],
)
def test_a_value_out_of_range_names_the_flag_and_the_range(argv: list[str], words: str) -> None:
    assert words in complaint(*argv)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ["--disable-radix-cache", "--radix-eviction-policy", "lru"],
            "--radix-eviction-policy contradicts --disable-radix-cache: there is nothing to evict",
        ),
        (
            ["--max-total-tokens", "4096", "--mem-fraction-static", "0.5"],
            "--mem-fraction-static contradicts --max-total-tokens: both size the device pool",
        ),
        (["--max-total-tokens", "15"], "--max-total-tokens: 15 tokens hold no page of 16"),
        (
            ["--max-total-tokens", "4096", "--context-length", "8192"],
            "--context-length: 8192 tokens never fit into --max-total-tokens 4096",
        ),
        (["--revision", "v1"], "--revision: needs --model-path"),
        (["--revision", "v1", "--model-path", "."], "--revision: . is local and has no revisions"),
    ],
)
def test_contradictions_name_the_flags_and_the_fix(argv: list[str], words: str) -> None:
    assert words in complaint(*argv)


def test_the_api_key_may_come_from_the_environment_and_the_flag_wins() -> None:
    assert parse(PAGEFALL_API_KEY="from env").http.api_key == "from env"
    assert parse("--api-key", "from flag", PAGEFALL_API_KEY="from env").http.api_key == "from flag"
    assert parse(PAGEFALL_API_KEY="").http.api_key is None
    assert parse(PAGEFALL_ADMIN_API_KEY="admin").http == HttpConfig(admin_api_key="admin")


def test_a_chat_template_is_text_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "chat.jinja"
    path.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert parse("--chat-template", str(path)).model.chat_template == path.read_text()
    assert parse("--chat-template", "{{ 1 }}").model.chat_template == "{{ 1 }}"
    assert "is no template, and as a file: no such file" in complaint("--chat-template", str(tmp_path / "absent"))


def test_help_lists_every_flag_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--help")
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in ("--config FILE", "--port N", "(default: 30000)", "--enable-metrics", "[env: PAGEFALL_API_KEY]"):
        assert words in text


class TestConfigFile:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "pagefall.toml"

    def test_flags_win_over_the_environment_and_that_over_the_file(self, path: Path) -> None:
        path.write_text('port = 1000\nhost = "::1"\napi-key = "file"')
        config = parse("--config", str(path), "--port", "2000", PAGEFALL_API_KEY="env")
        assert config.http == HttpConfig(host="::1", port=2000, api_key="env")

    def test_tables_are_optional(self, path: Path) -> None:
        path.write_text('model-path = "m"\nenable-metrics = true\n[http]\nport = 1\n[cache]\nmem-fraction-static = 1')
        config = parse("--config", str(path))
        assert (config.model.model_path, config.http.port, config.cache.mem_fraction_static) == ("m", 1, 1.0)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("prot = 1", "prot in FILE: unknown; did you mean port?"),
            ("[http]\nprot = 1", "prot in FILE: unknown; did you mean port?"),
            ('config = "x"', "config in FILE: unknown"),
            (
                "[htpt]\nport = 1",
                "[htpt] in FILE: unknown table; the tables are [model], [cache], [tiers], [scheduler], [http]",
            ),
            ("[cache]\nport = 1", "port in FILE: belongs in [http], not in [cache]"),
            ("port = 1\n[http]\nport = 2", "port in FILE: set twice"),
            ('port = "1"', "port in FILE: '1' is not a whole number"),
            ("port = true", "port in FILE: True is not a whole number"),
            ("port = 70000", "port in FILE: 70000 is too large"),
            ("trust-remote-code = 1", "trust-remote-code in FILE: 1 is not true or false"),
            ("enable-metrics = false", "enable-metrics in FILE: always on"),
            ("kv-cache-dtype = 'fp8'", "kv-cache-dtype in FILE: not supported in this version"),
            ("port = ", "--config FILE: not valid TOML"),
            ("disable-radix-cache = true\nradix-eviction-policy = 'lru'", "radix-eviction-policy in FILE contradicts"),
        ],
    )
    def test_a_mistake_names_the_key_and_the_file(self, path: Path, text: str, words: str) -> None:
        path.write_text(text)
        assert words.replace("FILE", str(path)) in complaint("--config", str(path))

    def test_a_missing_file_is_named(self, path: Path) -> None:
        assert complaint("--config", str(path)) == f"--config {path}: no such file or directory"
