"""A small comparison with an installed package: theory, both simulations and a file. Used by scripts/release."""

import importlib.util

import twolayer as tl

problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), tl.Gaussian(200), noise=0.01)
descriptions = [tl.DirectSGD(), tl.OverlapSGD(), tl.SaadSolla()]
tree = tl.compare(problem, tl.SGD(1.0), descriptions, until=2.0, save=5, replicas=16)
print(tree.attrs["verdict"])
assert tree.attrs["outcome"] in ("agrees", "consistent"), tree.attrs["outcome"]
assert importlib.util.find_spec("numba"), "native code must be there by default"

tl.save(tree, "comparison.nc")
assert tl.load("comparison.nc").attrs["outcome"] == tree.attrs["outcome"]
