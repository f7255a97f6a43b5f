"""How far apart colours are for the eye: CIELAB (CIE 1976, white of sRGB) for common vision,
protanopia and deuteranopia as Machado, Oliveira and Fernandes (2009) simulate them at severity 1."""

import numpy as np

# Of linear RGB; 10.1109/TVCG.2009.113, table of severities.
VISIONS = {
    "common": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
}
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                [0.0193339, 0.1191920, 0.9503041]])


def parts(color):
    """Red, green and blue of #RRGGBB, 0 to 255."""
    return [int(color[i:i + 2], 16) for i in (1, 3, 5)]


def cielab(colors):
    """[number, vision, 3]: L*, a*, b* of colours #RRGGBB, visions in the order of VISIONS."""
    rgb = np.array([parts(color) for color in colors]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.stack([np.clip(linear @ matrix.T, 0, 1) for matrix in VISIONS.values()], axis=1)
    xyz = seen @ XYZ.T / XYZ.sum(axis=1)
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    x, y, z = np.moveaxis(f, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def distances(colors, others):
    """[colors, others]: the smallest distance of the visions."""
    apart = cielab(colors)[:, None] - cielab(others)[None]
    return np.linalg.norm(apart, axis=-1).min(axis=-1)
