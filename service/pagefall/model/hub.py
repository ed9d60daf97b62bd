"""Whether the model hub answers, found out once and fast: its own client retries for half a minute, for every file."""

from __future__ import annotations

from typing import Final

from huggingface_hub import get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError

_TIMEOUT_SECONDS: Final = 5.0
"""For connecting, and again for the answer."""


def why_unreachable(model_id: str, revision: str) -> str | None:
    """One line, or None if the hub answers. That it has no such model, or shows it to nobody, is an answer too."""
    try:
        get_hf_file_metadata(hf_hub_url(model_id, "config.json", revision=revision), timeout=_TIMEOUT_SECONDS)
    except HfHubHTTPError:
        return None
    except Exception as error:  # noqa: BLE001 - whatever the HTTP library raises, there was no answer
        return (str(error).strip().splitlines() or [repr(error)])[0]
    return None
