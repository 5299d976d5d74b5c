"""What every page of a source text must do; a test file per source text, so that they run side by side."""

import importlib.util
import json

import equinox as eqx
import pytest

from twolayer.experiment import read_lazy_spec, read_spec
from twolayer.gallery import PageOptions, make, pages

# Made by `scripts/test --all`: at least one page of each source, those that take about half a minute. `--long` makes
# the others as well, and so does `docs/make_gallery.py`.
QUICK = {
    "wasserstein-flow",
    "escape-trajectories",
    "batch-sizes",
    "eigenvector-projections",
    "provable-learning",
    "million-dimensions",
}
# For every page the tests in which a term of its physics is off by a factor, and the page fails: file and function.
ONE_TERM = "test_a_page_fails_with_one_term_twice_as_large"
TWICE = {
    "test_dimensionless_odes": dict.fromkeys(
        ("sgd-to-ode", "wide-students", "mean-field", "wasserstein-flow", "learning-rate-regimes"), ONE_TERM
    ),
    "test_escaping_mediocrity": {
        **dict.fromkeys(("escape-times", "escape-width", "optimal-learning-rate", "second-layer"), ONE_TERM),
        **dict.fromkeys(("escape-trajectories", "risk-floor"), "test_a_page_fails_with_a_noise_twice_as_large"),
    },
    "test_first_order_methods": {
        "staircase": "test_the_staircase_page_fails_when_the_noise_of_a_batch_counts_twice",
        "reused-batches": "test_the_page_on_reused_batches_fails_with_steps_twice_as_large",
        "learnable-targets": "test_the_page_on_learnable_targets_fails_with_leaps_twice_as_large",
        "batch-sizes": "test_the_page_on_batch_sizes_fails_with_steps_twice_as_large",
    },
    "test_fine_grained_analysis": {
        **dict.fromkeys(("lazy-training", "complexity", "provable-learning"), "test_a_factor_of_two_is_seen"),
        "eigenvector-projections": "test_projections_that_are_twice_as_large_are_seen",
    },
    "test_beyond_the_papers": {
        "forgetting": "test_the_page_on_forgetting_fails_with_a_noise_twice_as_large",
        "gaussian-equivalence": "test_the_page_on_data_fails_with_a_noise_twice_as_large",
        "million-dimensions": "test_the_page_on_a_million_dimensions_fails_with_one_term_twice_as_large",
        "optimal-replay": "test_the_page_on_replay_fails_with_a_noise_twice_as_large",
        "optimised-schedule": "test_the_page_on_schedules_fails_with_a_noise_twice_as_large",
        "plateau-lengths": "test_the_page_on_plateaus_fails_with_a_growth_rate_wrong_by_a_thousandth",
        "risk-exponents": "test_the_page_on_exponents_fails_with_a_noise_twice_as_large",
        "emergence": "test_the_page_on_emergence_fails_with_a_target_twice_as_strong",
    },
}


def names_of(source):
    """The pages of a source text as parameters."""
    return [
        pytest.param(page.name, marks=pytest.mark.slow if page.name in QUICK else pytest.mark.long)
        for page in pages()
        if page.source == source
    ]


def check(page, folder):
    """Its claims hold, its folder is whole, its text has an equation and says what to look at."""
    result = make(page, folder, PageOptions())
    assert result.claims and result.holds, "\n".join(map(str, result.claims))
    there = {path.name for path in folder.iterdir()}
    assert {"README.md", "spec.toml", "script.py", "numbers.json", *result.files} == there
    assert any(name.endswith(".png") for name in there)
    assert len(json.loads((folder / "numbers.json").read_text())["claims"]) == len(result.claims)
    text = (folder / "README.md").read_text()
    assert "$$" in text and "**What to look at.**" in text and "| claim |" in text
    tables = (folder / "spec.toml").read_text()
    if "[data]" in tables:  # `twolayer ntk` takes it, here without the files of an image set
        read_lazy_spec(folder / "spec.toml", ["data.source=sphere"])
    elif "[problem" in tables:
        read_spec(folder / "spec.toml")  # `twolayer run` takes it


def double_the_rate(monkeypatch, description):
    """A theory with twice the learning rate, which on its clock doubles the terms of second order in a step."""
    run = description.run

    def wrong(self, problem, training, plan):
        return run(self, problem, eqx.tree_at(lambda method: method.learning_rate, training, replace_fn=twice), plan)

    monkeypatch.setattr(description, "run", wrong)


def twice(number):
    """The double."""
    return 2.0 * number


def script_of(page):
    """The script of a page as a module."""
    where = importlib.util.spec_from_file_location(f"script_of_{page.folder.name}", page.folder / "script.py")
    script = importlib.util.module_from_spec(where)
    where.loader.exec_module(script)
    return script
