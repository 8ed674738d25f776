"""Work that waits in a child can be taken back, and then nobody runs it; else it runs once."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from billiard.exceptions import Terminated

from atomic_celery.concurrency.errand import Errand, State
from tests.pool import tasks
from tests.pool.bench import Bench, Told
from tests.pool.conftest import OpenBench


def runs(directory: Path, name: str) -> int:
    path = directory / name
    return len(path.read_text().splitlines()) if path.exists() else 0


def hold_one(bench: Bench, name: str = "held") -> Told:
    """Occupy a child."""
    held = bench.apply(tasks.hold, str(bench.directory), name)
    bench.run_until(lambda: held.began)
    return held


def queue_behind(bench: Bench, count: int) -> list[Told]:
    """Send errands to the busy child itself, however long its task takes."""
    told = [bench.apply(tasks.mark, str(bench.directory), f"m{number}") for number in range(count)]
    [link] = [link for link in bench.pool._crew.links if link.running]
    for one in told:
        assert one.errand is not None
        bench.pool._ledger.backlog._errands.remove(one.errand)
        link.give(one.errand, 0, 1e12)
    bench.pool._crew.flush(link)
    assert [one.errand.state for one in told if one.errand] == [State.SENT] * count
    return told


def test_what_waits_behind_a_running_task_is_taken_back(bench: Bench, tmp_path: Path) -> None:
    held = hold_one(bench)
    waiting = queue_behind(bench, 3)
    taken = bench.pool.recall_all()
    assert taken == [one.errand for one in waiting]
    bench.let_go("held")
    after = bench.apply(tasks.mark, str(tmp_path), "after")
    bench.run(held, after)
    assert [runs(tmp_path, f"m{number}") for number in range(3)] == [0, 0, 0]
    assert runs(tmp_path, "after") == 1
    assert not any(one.over or one.began for one in waiting)


def test_one_is_taken_back_and_the_others_still_run_in_order(bench: Bench, tmp_path: Path) -> None:
    held = hold_one(bench)
    first, second, third = queue_behind(bench, 3)
    assert second.errand is not None
    assert bench.pool.take_back(second.errand)
    assert not bench.pool.take_back(second.errand)
    bench.let_go("held")
    bench.run(held, first, third)
    assert [runs(tmp_path, f"m{number}") for number in range(3)] == [1, 0, 1]


def test_a_running_errand_cannot_be_taken_back(bench: Bench) -> None:
    held = hold_one(bench)
    assert held.errand is not None
    assert not bench.pool.take_back(held.errand)
    bench.let_go("held")
    bench.run(held)


def test_a_cancelled_errand_that_waits_fails_as_terminated(bench: Bench, tmp_path: Path) -> None:
    held = hold_one(bench)
    in_child = queue_behind(bench, 1)[0]
    in_host = bench.apply(tasks.mark, str(tmp_path), "host")
    for one in (in_child, in_host):
        assert one.errand is not None
        one.errand.terminate(15)
        assert isinstance(one.error, Terminated)
    bench.let_go("held")
    bench.run(held)
    assert runs(tmp_path, "m0") == runs(tmp_path, "host") == 0


def test_a_waiting_errand_goes_to_the_child_that_is_free_first(open_bench: OpenBench, tmp_path: Path) -> None:
    """Both were given two; the one with the long task loses its second to the other."""
    bench = open_bench(2)
    long = bench.apply(tasks.hold, str(tmp_path), "long")
    others = [bench.apply(tasks.mark, str(tmp_path), f"m{number}") for number in range(3)]
    bench.run(*others)
    assert long.began
    assert not long.over
    assert {pid for one in others for pid in one.began}.isdisjoint(long.began)
    bench.let_go("long")
    bench.run(long)


def test_with_o_fast_an_errand_stays_where_it_is(open_bench: OpenBench, tmp_path: Path) -> None:
    bench = open_bench(1, sched_strategy="fast")
    held = hold_one(bench)
    [waiting] = queue_behind(bench, 1)
    assert waiting.errand is not None
    waiting.errand.given_s = 0.0
    seen: list[State] = []
    bench.hub.call_later(0.3, lambda: seen.append(waiting.errand.state if waiting.errand else State.OVER))
    bench.run_until(lambda: seen)
    assert seen == [State.SENT]
    bench.let_go("held")
    bench.run(held, waiting)


def test_nothing_is_lost_or_run_twice_while_work_is_taken_back_all_the_time(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    """Thousands of tasks, taken back at random moments: each runs once, or is taken back once and never runs."""
    bench = open_bench(2)
    dice = random.Random(11)
    told: list[Told] = []
    by_errand: dict[Errand | None, Told] = {}
    taken: list[Told] = []
    recalls = 0

    def give_more(count: int) -> None:
        given = [bench.apply(tasks.mark, str(tmp_path), f"{number % 16}") for number in range(count)]
        told.extend(given)
        by_errand.update((one.errand, one) for one in given)

    def recall_some() -> bool:
        nonlocal recalls
        for link in bench.pool._crew.links:
            if dice.random() < 0.5:
                bench.pool._ledger.recall(link)
                recalls += 1
        sent = [errand for errand in by_errand if errand is not None and errand.state is State.SENT]
        some = dice.sample(sent, min(len(sent), 2))
        taken.extend(by_errand[errand] for errand in some if bench.pool.take_back(errand))
        if len(taken) + sum(one.over for one in told) < len(told):
            return False
        if recalls > 100 and len(taken) > 100:
            return True
        give_more(500)  # they were done before there was time to take much of it back
        return False

    give_more(4000)
    bench.run_until(recall_some, deadline_s=100)
    assert Counter(id(one) for one in taken).most_common(1)[0][1] == 1
    ran = [one for one in told if one.over]
    assert [one.value for one in ran] == ["None"] * len(ran)
    assert not {id(one) for one in ran} & {id(one) for one in taken}
    assert sum(runs(tmp_path, str(name)) for name in range(16)) == len(ran)
