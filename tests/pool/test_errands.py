"""What comes of an errand that nothing goes wrong with, or that goes wrong by itself."""

from __future__ import annotations

from pathlib import Path

from billiard.pool import MaybeEncodingError

from atomic_celery.concurrency.errand import State
from tests.pool import tasks
from tests.pool.bench import ALWAYS, Bench, Told
from tests.pool.conftest import OpenBench

MEBIBYTE = 1024 * 1024


def test_an_errand_is_accepted_and_tells_its_result(bench: Bench) -> None:
    told = bench.apply(tasks.add, 2, 3)
    bench.run(told)
    assert told.value == "5"
    assert told.began == bench.pids
    assert told.errand is not None
    assert told.errand.ready()


def test_errands_begin_in_the_order_they_came(bench: Bench, tmp_path: Path) -> None:
    told = [bench.apply(tasks.note, str(tmp_path), str(number)) for number in range(200)]
    bench.run(*told)
    assert (tmp_path / "notes").read_text().split() == [str(number) for number in range(200)]


def test_two_children_work_at_the_same_time(open_bench: OpenBench, tmp_path: Path) -> None:
    bench = open_bench(2)
    held = [bench.apply(tasks.hold, str(tmp_path), name) for name in ("a", "b")]
    bench.run_until(lambda: bench.exists("a.began") and bench.exists("b.began"))
    assert bench.pool.busy_count == 2
    assert bench.pool.free_slots() == 0
    bench.let_go("a")
    bench.let_go("b")
    bench.run(*held)
    bench.run_until(lambda: bench.pool.busy_count == 0)


def test_a_task_that_raises_tells_so_through_the_trace(bench: Bench) -> None:
    told = bench.apply(tasks.fail, "no")
    bench.run(told)
    assert repr(told.raised) == "ValueError('no')"


def test_an_argument_of_64_mebibytes_passes(bench: Bench) -> None:
    small, big = bench.apply(tasks.add, 1, 1), bench.apply(tasks.size_of, "x" * (64 * MEBIBYTE))
    after = bench.apply(tasks.add, 1, 2)
    bench.run(small, big, after)
    assert [small.value, big.value, after.value] == ["2", str(64 * MEBIBYTE), "3"]


def test_a_big_argument_does_not_stop_the_loop_while_the_child_is_busy(open_bench: OpenBench, tmp_path: Path) -> None:
    bench = open_bench(2)
    held = bench.apply(tasks.hold, str(tmp_path), "a")
    bench.run_until(lambda: held.began)
    link = next(link for link in bench.pool._crew.links if link.running)
    big = bench.apply(tasks.size_of, "x" * (8 * MEBIBYTE))
    assert big.errand is not None
    bench.pool._ledger.backlog.remove(big.errand)
    link.give(big.errand, 0, 0.0)
    bench.pool._crew.flush(link)  # the stream takes a part of it; the child reads nothing now
    other = bench.apply(tasks.add, 1, 1)
    bench.run(other)
    bench.let_go("a")
    bench.run(held, big)
    assert big.value == str(8 * MEBIBYTE)


def test_a_result_of_16_mebibytes_passes(bench: Bench) -> None:
    told = bench.apply(tasks.blob, 16 * MEBIBYTE)
    bench.run(told)
    assert len(str(told.raised)) == 16 * MEBIBYTE


def test_what_cannot_be_pickled_is_told_as_such(bench: Bench) -> None:
    """The pool is given a plain function: a trace makes every exception picklable by itself."""
    told = Told("raw")
    bench.pool.apply_async(open, ("/dev/null",), callback=told.results.append, error_callback=told.failures.append)
    bench.run(told)
    assert isinstance(told.error, MaybeEncodingError)
    after = bench.apply(tasks.add, 1, 1)
    bench.run(after)
    assert after.value == "2"


def test_a_plain_function_that_raises_fails_its_errand(bench: Bench) -> None:
    told = Told("raw")
    bench.pool.apply_async(int, ("x",), callback=told.results.append, error_callback=told.failures.append)
    bench.run(told)
    assert isinstance(told.error, ValueError)


def test_a_callback_that_raises_does_not_stop_the_pool(bench: Bench, caplog: object) -> None:
    def refuse(value: object) -> None:
        raise RuntimeError("no")

    bench.pool.apply_async(int, ("1",), callback=refuse)
    after = bench.apply(tasks.add, 1, 1)
    bench.run(after)
    assert after.value == "2"


def test_the_task_knows_its_message_and_sends_writes_back(bench: Bench) -> None:
    bench.pool.deadlines.trusted_until = ALWAYS
    bench.pool.journal = "a database"
    told, plain = bench.apply(tasks.whose, lease=(7, 3)), bench.apply(tasks.add, 1, 1)
    bench.run(told, plain)
    assert told.value == f"[7, 3, '{told.task_id}', True]"
    assert told.errand is not None
    assert told.errand.lease == (7, 3)
    assert told.errand.outbox == [("published by", 7)]
    assert plain.errand is not None
    assert plain.errand.outbox is None


def test_without_a_carrier_there_is_no_outbox(bench: Bench) -> None:
    bench.pool.deadlines.trusted_until = ALWAYS
    told = bench.apply(tasks.whose, lease=(7, 3))
    bench.run(told)
    assert repr(told.raised).startswith("AssertionError")


def test_the_pool_describes_itself(bench: Bench, tmp_path: Path) -> None:
    held = bench.apply(tasks.hold, str(tmp_path), "a")
    bench.run_until(lambda: held.began)
    info = bench.pool.info
    [slot] = info["slots"]
    assert slot["running"] == held.task_id
    assert slot["pid"] == info["processes"][0] == held.began[0]
    assert info["max-concurrency"] == bench.pool.num_processes == 1
    bench.let_go("a")
    bench.run(held)
    assert held.errand is not None
    assert held.errand.state is State.OVER
