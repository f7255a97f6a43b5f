"""How colours look with red-green blindness, and how far they are apart.

Machado, Oliveira and Fernandes (2009), full severity, on linear RGB; distances in CIELAB (D65).
"""

import numpy as np
from matplotlib.colors import to_rgb

VISIONS = {
    "common": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
}
TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                   [0.0193339, 0.1191920, 0.9503041]])


def linear(srgb):
    srgb = np.asarray(srgb, float)
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055)**2.4)


def encoded(rgb):
    rgb = np.clip(rgb, 0, 1)
    return np.where(rgb <= 0.0031308, 12.92 * rgb, 1.055 * rgb**(1 / 2.4) - 0.055)


def seen(srgb, vision):
    """sRGB in [0, 1], last axis 3, as someone with this vision sees it."""
    return encoded(linear(srgb) @ VISIONS[vision].T)


def lab(srgb):
    ratio = linear(srgb) @ TO_XYZ.T / TO_XYZ.sum(axis=1)
    f = np.where(ratio > (6 / 29)**3, np.cbrt(ratio), ratio / (3 * (6 / 29)**2) + 4 / 29)
    return np.stack([116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]),
                     200 * (f[..., 1] - f[..., 2])], axis=-1)


def distances(colors):
    """[n, n]: the CIELAB distance of any two colours for the vision that tells them apart least."""
    rgb = np.array([to_rgb(color) for color in colors])
    labs = [lab(seen(rgb, vision)) for vision in VISIONS]
    return np.min([np.linalg.norm(v[:, None] - v[None], axis=-1) for v in labs], axis=0)
