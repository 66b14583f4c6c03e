"""Shamir's secret sharing: any `threshold` shares give the secret, fewer tell nothing about it.

Shamir, "How to share a secret", Communications of the ACM, 1979. A secret of 32 bytes is two numbers below a prime;
each is the value at zero of a polynomial with random coefficients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

PRIME = 2**130 - 5
"""Larger than every number of 16 bytes."""
HALF = 16
SHARE = 34
"""Bytes of a share: two numbers below the prime."""
MOST_SHARES = 1 << 20


class NoSecret(ValueError):
    """Shares that give no secret."""


def split(secret: bytes, threshold: int, points: Sequence[int], draw: Callable[[int], bytes]) -> list[bytes]:
    """The shares of a secret of 32 bytes, one for each point above 0.

    `draw(n)` gives 32 random bytes for every n below twice the threshold; they must not be used elsewhere.
    """
    if not 1 <= threshold <= len(points) or len(set(points)) != len(points):
        raise ValueError(f"{len(points)} shares, of which {threshold} give the secret")
    if any(not 0 < point < MOST_SHARES for point in points) or len(secret) != 2 * HALF:
        raise ValueError("a point or a secret that is not in range")
    halves = []
    for half in range(2):
        start = int.from_bytes(secret[half * HALF : (half + 1) * HALF], "little")
        # 32 random bytes modulo a prime of 17: nobody can tell this from uniform numbers.
        more = (int.from_bytes(draw(half * threshold + n), "little") % PRIME for n in range(1, threshold))
        halves.append([start, *more])
    return [b"".join(_value(half, point).to_bytes(SHARE // 2, "little") for half in halves) for point in points]


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from as many shares as it needs, by their points."""
    if not shares or any(len(share) != SHARE for share in shares.values()):
        raise NoSecret("a share of another length")
    factors = _factors(tuple(sorted(shares)))
    halves = []
    for half in (slice(0, SHARE // 2), slice(SHARE // 2, SHARE)):
        total = sum(int.from_bytes(shares[point][half], "little") * factor for point, factor in factors.items())
        halves.append(total % PRIME)
    if any(half >= 1 << (8 * HALF) for half in halves):
        raise NoSecret("shares that do not belong together")
    return b"".join(half.to_bytes(HALF, "little") for half in halves)


def _value(coefficients: Sequence[int], point: int) -> int:
    found = 0
    for each in reversed(coefficients):
        found = (found * point + each) % PRIME
    return found


@lru_cache(maxsize=1024)
def _factors(points: tuple[int, ...]) -> dict[int, int]:
    """What each share counts in the value at zero (Lagrange)."""
    found = {}
    for point in points:
        up, down = 1, 1
        for other in points:
            if other != point:
                up = up * other % PRIME
                down = down * (other - point) % PRIME
        found[point] = up * pow(down, -1, PRIME) % PRIME
    return found
