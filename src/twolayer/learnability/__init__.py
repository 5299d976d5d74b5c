"""What can be learned, how fast, and in which order: exponents and staircases of targets, with certificates.

The module can be called: ``twolayer.learnability("he2(z1) + z1*z2")`` analyses a target.
"""

import sys
import types

from twolayer.core.types import NumbersLike
from twolayer.learnability.analysis import Learnability as Learnability
from twolayer.learnability.analysis import TargetLike
from twolayer.learnability.analysis import analyse as analyse
from twolayer.learnability.certificate import Certificate as Certificate
from twolayer.learnability.certificate import Verdict as Verdict
from twolayer.learnability.library import NamedTarget as NamedTarget
from twolayer.learnability.library import named_targets as named_targets


class _Room(types.ModuleType):
    """A module that can be called, since the analysis and the package that computes it have the same public name."""

    def __call__(self, target: TargetLike, P: NumbersLike | None = None) -> Learnability:
        """Analyse a target; see `analyse`."""
        return analyse(target, P)


sys.modules[__name__].__class__ = _Room
