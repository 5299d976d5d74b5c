"""The pages of this source text are made at their small size, and their claims hold."""

import pytest

from tests.gallery.pages import check, names_of
from twolayer.gallery import find_page


@pytest.mark.parametrize("name", names_of("first_order_methods"))
def test_claims_hold(name, tmp_path):
    check(find_page(name), tmp_path / name)
