"""Which cases `make test` runs (conftest.py)."""

from types import SimpleNamespace

import pytest
from conftest import pytest_collection_modifyitems


class Item:
    def __init__(self, nodeid: str, **marks):
        self.nodeid, self._marks = nodeid, marks

    def get_closest_marker(self, name):
        return SimpleNamespace(args=self._marks[name]) if name in self._marks else None


def run_of(items: list[Item], source=pytest.Config.ArgsSource.TESTPATHS, **options) -> tuple[list[Item], list[Item]]:
    """(What is run, what is told to be left out)."""
    left_out: list[Item] = []
    config = SimpleNamespace(
        option=SimpleNamespace(**{"every_case": False, "keyword": "", **options}), args_source=source,
        hook=SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items)),
    )  # fmt: skip
    run = list(items)
    pytest_collection_modifyitems(config, run)
    return run, left_out


FAMILY = [Item(f"a.py::test_family[{i}]", sampled=(4,)) for i in range(10)]
OTHERS = [Item("a.py::test_alone"), *[Item(f"a.py::test_whole[{i}]") for i in range(3)], Item("b.py::test_one", sampled=(3,))]
THOROUGH = [Item("b.py::test_thorough", thorough=())]


def test_a_family_is_sampled_and_the_others_are_whole():
    run, left_out = run_of([*FAMILY, *OTHERS, *THOROUGH])
    assert sum(item in FAMILY for item in run) == 3 and all(item in run for item in OTHERS)
    assert [item for item in (*FAMILY, *OTHERS, *THOROUGH) if item not in run] == left_out and THOROUGH[0] in left_out


def test_it_is_the_same_sample_in_any_order():
    assert set(run_of(FAMILY)[0]) == set(run_of(FAMILY[::-1])[0])


ASKED = {"every": {"every_case": True}, "-k": {"keyword": "family"}, "files": {"source": pytest.Config.ArgsSource.ARGS}}


@pytest.mark.parametrize("asked", ASKED)
def test_who_asks_for_more_gets_every_case(asked):
    items = [*FAMILY, *OTHERS, *THOROUGH]
    assert run_of(items, **ASKED[asked]) == (items, [])
