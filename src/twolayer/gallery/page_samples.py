"""The data sets of the pages on lazy training: MNIST and CIFAR-10 if their files exist, two Gaussians otherwise."""

from collections.abc import Sequence

import numpy as np

from twolayer.core.errors import InvalidInput
from twolayer.data import load_samples
from twolayer.gallery.page import PageOptions
from twolayer.problem import Samples

IMAGES = {"mnist": "MNIST, 0 and 1", "cifar10": "CIFAR-10, airplanes and automobiles"}
SYNTHETIC = "two Gaussians on the sphere"
DIMENSION, SEPARATION = 30, 2.0  # of the Gaussians; half the distance of their means, in units of their deviation


def two_classes(
    ask: PageOptions, n: int, held_out: int = 1, names: Sequence[str] = tuple(IMAGES)
) -> dict[str, tuple[Samples, Samples]]:
    r"""Training and test samples of two classes, by the name of the set.

    The two classes of each image set of these names whose files are in the given folder or in the default ones;
    where there is none, :math:`x \propto s y e_1 + \xi` with :math:`\xi \sim N(0, I_d)` and labels :math:`y = \pm 1`.
    """
    sets, missing = {}, []
    for name in names:
        try:
            parts = [load_samples(name, split=split, data_dir=ask.data_dir) for split in ("train", "test")]
        except InvalidInput as reason:
            missing.append(reason)
            continue
        sizes = (min(n, parts[0].n), min(held_out, parts[1].n))
        sets[IMAGES[name]] = tuple(
            Samples(part.X[:size], part.y[:size]) for part, size in zip(parts, sizes, strict=True)
        )
    if ask.data_dir is not None and not sets:  # a folder given explicitly is never replaced by another one
        raise missing[0]
    return sets or {SYNTHETIC: (gaussians(n), gaussians(held_out, 1))}


def gaussians(n: int, seed: int = 0) -> Samples:
    """Samples of the two Gaussians."""
    rng = np.random.default_rng([seed, 20])
    y = rng.choice([-1.0, 1.0], n)
    X = rng.standard_normal((n, DIMENSION))
    X[:, 0] += SEPARATION * y
    return load_samples((X, y))
