"""kvbench's random numbers in NumPy (lib/core/rng.hpp), and what retrieval methods draw with them."""

import numpy as np

WIDTH = 64  # head_dim

def _mix(x):
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9 % 2**64
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb % 2**64
    return x ^ (x >> 31)


def _hash(h, text):
    for c in text.encode():
        h = (h ^ c) * 0x100000001b3 % 2**64
    return _mix(h ^ (len(text) + 0x9e3779b97f4a7c15) % 2**64)


class Stream:
    """Philox4x32-10 as lib/core/rng.hpp has it; seed 0, prompt p0, layer 0."""

    def __init__(self, key, kv_head):
        self.key, self.kv_head, self.position = key, kv_head, 0

    @classmethod
    def of(cls, algorithm, purpose, kv_head):
        base = _hash(_hash(_mix(0xcbf29ce484222325), "p0"), algorithm)
        return cls(_hash(base, purpose), kv_head)

    def words(self, first, count):
        """uint64 [count] from draw `first`."""
        block = np.arange(first // 2, (first + count + 1) // 2, dtype=np.uint64)
        low, shift = np.uint64(0xffffffff), np.uint64(32)
        c = [block & low, block >> shift, np.zeros_like(block), np.full_like(block, self.kv_head)]
        k = [self.key % 2**32, self.key >> 32]
        for _ in range(10):
            one, two = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
            c = [(two >> shift) ^ c[1] ^ np.uint64(k[0]), two & low, (one >> shift) ^ c[3] ^ np.uint64(k[1]), one & low]
            k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
        pairs = np.stack([c[0] | c[1] << shift, c[2] | c[3] << shift], 1).ravel()
        return pairs[first % 2:first % 2 + count]

    def uniforms(self, first, count):
        return (self.words(first, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normals(self, count):
        u = self.uniforms(0, 2 * count)
        return np.sqrt(-2 * np.log1p(-u[::2])) * np.cos(2 * np.pi * u[1::2])

    def below(self, bound):
        """A word above the largest multiple of `bound` would be drawn anew: bound / 2^64 of them."""
        self.position += 1
        return int(self.words(self.position - 1, 1)[0]) % bound

    def below_all(self, bound, count):
        """The first `count` of them."""
        return (self.words(0, count) % np.uint64(bound)).astype(np.int64)

    def uniform(self):
        self.position += 1
        return self.uniforms(self.position - 1, 1)[0]


def directions(kv_head, count):
    """magicpig's [WIDTH, count], float32's numbers."""
    rows = Stream.of("magicpig", "directions", kv_head).normals(count * WIDTH).reshape(count, WIDTH)
    return rows.astype(np.float32).astype(np.float64).T


def first_centroids(x, count, stream):
    """k-means++'s rows of x [m, w]."""
    chosen, nearest, rows = stream.below(len(x)), np.full(len(x), np.inf), []
    for _ in range(count):
        rows.append(chosen)
        nearest = np.minimum(nearest, ((x - x[chosen])**2).sum(1))
        sums = np.cumsum(nearest)
        drawn = stream.uniform() * sums[-1]
        chosen = int(np.argmax(sums > drawn)) if sums[-1] > drawn else int(np.flatnonzero(nearest)[-1])
    return x[rows]
