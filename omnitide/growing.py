"""Arrays that grow at the end, shared by the values that hold a prefix of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def append_rows(buffer: NDArray[Any], count: int, rows: NDArray[Any]) -> NDArray[Any]:
    """Write `rows` behind the first `count` rows of `buffer`.

    Changes `buffer` beyond `count` if it is long enough, else copies to one of twice the size, so
    that appending n rows costs O(n) in all.

    Returns:
        The buffer that now holds `count + len(rows)` rows.
    """
    if rows.dtype.names:
        # As plain bytes: record by record, field by field, takes twenty times as long.
        plain = f"V{rows.dtype.itemsize}"
        return append_rows(buffer.view(plain), count, rows.view(plain)).view(buffer.dtype)
    total = count + len(rows)
    if total > len(buffer):
        grown = np.empty((max(2 * total, 256), *buffer.shape[1:]), buffer.dtype)
        grown[:count] = buffer[:count]
        buffer = grown
    buffer[count:total] = rows
    return buffer
