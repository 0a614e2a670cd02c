"""Mistral: LLaMA with a sliding window.

A. Q. Jiang et al., "Mistral 7B" (2023), arXiv:2310.06825.

    wiring    Q, K and V from the text itself; a token sees itself and the window - 1 before it. After n layers it has
              heard of n·(window - 1) earlier ones: each layer passes on what its window held.
"""

from __future__ import annotations

from typing import Any

from .llama import LLaMA


class Mistral(LLaMA):
    """Predicts each token from the ``window`` tokens before it; parameters as of `LLaMA`.

    Examples
    --------
    >>> model = Mistral(11, d_model=8, num_heads=2, num_layers=2, d_ff=16, num_kv_heads=1, window=2)
    >>> ids = mg.asarray([[3, 4, 5, 6]])
    >>> other = mg.asarray([[9, 4, 5, 6]])  # the last token hears of two before it, not of the third
    >>> bool(mg.all(model(ids)[:, -1, :] == model(other)[:, -1, :]))
    True
    """

    def __init__(self, vocab_size: int, *, window: int | None = 4096, tied: bool = False, **options: Any) -> None:
        super().__init__(vocab_size, window=window, tied=tied, **options)
