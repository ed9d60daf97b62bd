"""The calls of a decode step, run by torch's script interpreter where that works.

A token alone is a thousand torch calls of a few microseconds each, and Python's share of each call is as long as the
call's work: measured on 2 Zen 4 cores, 14.6 ms a token in Python, 12.3 ms as script. Scripting takes milliseconds and
needs no C++ compiler. torch calls it deprecated in favour of `torch.compile`, which was tried here: each compiled
function costs 15 to 25 us a call in guards, more than the calls it replaces. The functions are ordinary Python and
run as such with `--compile off`, or where torch no longer scripts them.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch

from pagefall.config import CompileMode
from pagefall.errors import ModelError
from pagefall.model.decode_attention import attend_tokens
from pagefall.model.fused_layers import decode_layers

logger = logging.getLogger(__name__)


class Scripted(NamedTuple):
    """The functions that are called once a layer or once a step while decoding."""

    attend_tokens: Callable[..., None]
    decode_layers: Callable[..., torch.Tensor]


def script(mode: CompileMode) -> Scripted:
    """Scripted unless `mode` is off. Raises `ModelError` if that fails and `mode` is on; `auto` goes on in Python."""
    plain = Scripted(attend_tokens, decode_layers)
    if mode == "off":
        return plain
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return Scripted(*(torch.jit.script(function) for function in plain))
    except (RuntimeError, TypeError, OSError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        if mode == "on":
            raise ModelError(f"--compile on: this torch does not script the decode step ({reason}).") from error
        logger.warning("decode: in Python, because this torch does not script it (%s)", reason)
        return plain
