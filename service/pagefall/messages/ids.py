"""The ids and small words that all messages share."""

from __future__ import annotations

from typing import Literal, NewType

import numpy as np
import numpy.typing as npt

RequestId = NewType("RequestId", str)
"""Unique among live requests; the `id` of the HTTP answer."""

TokenIds = npt.NDArray[np.uint32]
"""Token ids, `[num_tokens]`."""

PageIds = npt.NDArray[np.int32]
"""Page numbers of one pool, the device's unless said otherwise, in the order of the sequence, `[num_pages]`."""

TransferId = NewType("TransferId", int)
"""Unique among all transfers of a process."""

FinishReason = Literal["stop", "length", "abort"]
Tier = Literal["device", "host", "storage"]
