"""THE visibility rule: which key position a query position may attend to in a packed row of forests.

The dense mask, the FlexAttention block mask and the inspector's picture are readers of `visible` and hold no rule of
their own. For one example with trunk ``a b c d``, a branch of two predictors behind ``b`` and the isolated copy of
``c d`` as target (q down, k across):

    ```
              a b c d  p p  c d      segment  order  attach
        a     1 . . .  . .  . .         0       0      -1
        b     1 1 . .  . .  . .         0       1      -1
        c     1 1 1 .  . .  . .         0       2      -1
        d     1 1 1 1  . .  . .         0       3      -1
        p1    1 1 . .  1 .  . .         1       0       1
        p2    1 1 . .  1 1  . .         1       1       1
        c'    . . . .  . .  1 .         2       0      -1
        d'    . . . .  . .  1 1         2       1      -1
    ```

The `inline` form puts the predictors and the isolated view into one sequence. Everything is trunk there, and the view
is isolated by a further number, `floor`: the first place that a query sees. It is 0 but for the isolated tokens, so
what stands behind them sees everything, them included:

    ```
              a b  p p  c d  e       segment  order  attach  floor
        b     1 1  . .  . .  .         0       1      -1       0
        p2    1 1  1 1  . .  .         0       3      -1       0
        c     . .  . .  1 .  .         0       4      -1       4
        d     . .  . .  1 1  .         0       5      -1       4
        e     1 1  1 1  1 1  1         0       6      -1       0
    ```
"""

from __future__ import annotations

from typing import Any

from stepjepa.data.types import TRUNK


def visible(
    example_q: Any,
    example_k: Any,
    segment_q: Any,
    segment_k: Any,
    order_q: Any,
    order_k: Any,
    attach_q: Any,
    floor_q: Any = 0,
) -> Any:
    """Whether query q sees key k.

    same example AND ( same segment AND floor[q] <= order[k] <= order[q]  OR  k on the trunk AND order[k] <= attach[q] )

    The arguments are integers, or integer tensors or arrays that broadcast against each other; the result is a boolean
    of their broadcast shape.

    Args:
        example_q, example_k: which example a position belongs to.
        segment_q, segment_k: 0 for the trunk, 1 and up for branches and targets.
        order_q, order_k: index inside the segment.
        attach_q: index on the trunk up to which q sees it: p for a branch behind token p, -1 for an isolated target
            (and for the trunk itself, which is causal by its own segment).
        floor_q: first index of its own segment that q sees; 0 everywhere but in isolated stretches of `inline`.
    """
    own = (segment_q == segment_k) & (order_k <= order_q) & (order_k >= floor_q)
    trunk = (segment_k == TRUNK) & (order_k <= attach_q)
    return (example_q == example_k) & (own | trunk)


def in_window(position_q: Any, position_k: Any, window: int) -> Any:
    """The further condition of a sliding-window layer: k is less than `window` positions behind q."""
    return position_q - position_k < window
