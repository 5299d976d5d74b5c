"""One server with the small problem, for all tests of the page in a process."""

import pytest

from tests.explore.served import served


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("page")) as running:
        yield running


@pytest.fixture
def window(browser, server):
    """A function that opens a window; none of them may have raised an error when the test ends."""
    from tests.explore.windows import LONG, Window

    contexts, windows = [], []

    def open_one(link=server.link, **options):
        contexts.append(browser.new_context(**{"viewport": {"width": 1400, "height": 900}} | options))
        contexts[-1].set_default_timeout(LONG)
        windows.append(Window(contexts[-1], link))
        return windows[-1]

    yield open_one
    errors = [error for opened in windows for error in opened.errors]
    for context in contexts:
        context.close()
    assert not errors
