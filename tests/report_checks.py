"""What holds of every `PrefixReport`."""

from __future__ import annotations

from pagefall.messages import PrefixReport


def check_report(report: PrefixReport) -> None:
    """Sources add up to the prompt; misses are in order and cover what was not cached, each page once."""
    sources, page_size = report.num_tokens_by_source, report.page_size
    assert set(sources) == {"device", "host", "storage", "computed", "unreached"}
    assert all(count >= 0 for count in sources.values())
    assert sum(sources.values()) == report.num_prompt_tokens
    num_missed = sources["computed"] + sources["unreached"]
    assert sum(miss.num_tokens for miss in report.misses) == num_missed
    assert num_missed > 0, "the last token is always computed"
    end = 0
    for miss in report.misses:
        assert miss.first_page >= end
        assert miss.num_pages > 0
        end = miss.first_page + miss.num_pages
        assert miss.num_tokens == min(end * page_size, report.num_prompt_tokens) - miss.first_page * page_size
    assert end == -(-report.num_prompt_tokens // page_size), "the last page is never cached"
    num_cached = report.num_prompt_tokens - num_missed
    assert num_cached <= report.num_known_tokens <= (report.num_prompt_tokens - 1) // page_size * page_size
    divergence = report.divergence
    if divergence is not None:
        assert 0 < divergence.token_index < report.num_prompt_tokens
        assert divergence.window_start <= divergence.token_index
        num_after = divergence.window_start + len(divergence.other_token_ids) - divergence.token_index
        assert (num_after > 0) is divergence.has_other
        reasons = {miss.reason for miss in report.misses}
        assert divergence.has_other or "diverged" not in reasons
    else:
        assert "diverged" not in {miss.reason for miss in report.misses}
    assert report.queue_seconds >= 0
    assert report.saved_seconds >= 0
