"""Faults at random: hosts that are killed, frozen, cut off and drained, children that die, a server that restarts."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psutil

from tests.faults.scene import Scene
from tests.support.freezing import freeze
from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxy
from tests.support.workers import WorkerProcess
from tests.worker.test_losing import gone


class Chaos:
    """Hosts on one server, each behind a network of its own, and what is wrong with them at the moment.

    Args:
        luck: Decides what happens, to whom and for how long.
        longest_s: Of freezes and cuts: longer than a lease, so that some cost one and some do not.
    """

    def __init__(self, scene: Scene, server: PostgresServer, luck: random.Random, *, longest_s: float) -> None:
        self._scene, self._server, self._luck, self._longest_s = scene, server, luck, longest_s
        self._hosts: list[WorkerProcess] = []
        self._networks: dict[str, Proxy] = {}
        self._hurt: dict[str, str] = {}
        self._mending: list[tuple[float, int, Callable[[], Any]]] = []
        self._number = itertools.count()
        self.done: Counter[str] = Counter()

    def add_host(self, name: str, **options: Any) -> None:
        """Start a host behind a network of its own."""
        proxy = self._networks[name] = Proxy.before(self._scene.fleet.broker)
        proxy.start()
        env = {"TEST_BROKER": proxy.url(self._scene.fleet.broker)}
        self._hosts.append(self._scene.worker(name, env=env, **options))

    def turn(self) -> None:
        """Mend what is due, and break something that is whole."""
        self._mend(time.monotonic())
        whole = [host for host in self._hosts if host.name not in self._hurt and self._is_up(host)]
        if not whole:
            return
        faults = [self._kill, self._kill_child, self._freeze, self._freeze, self._cut_off, self._cut_off]
        faults += [self._stop_at_once, self._drain, self._restart_server]
        fault = self._luck.choice(faults)
        fault(self._luck.choice(whole))
        self.done[fault.__name__.strip("_").replace("_", " ")] += 1

    def calm(self) -> None:
        """Mend everything, and wait until every host is there."""
        while self._mending:
            self._mend(float("inf"))
        for host in self._hosts:
            self._scene.wait_until(lambda host=host: self._is_up(host), f"{host.name} is up")

    def close(self) -> None:
        """Close the networks."""
        for network in self._networks.values():
            network.close()

    @staticmethod
    def _is_up(host: WorkerProcess) -> bool:
        """Whether a host is ready; one that ended is started again, as whatever runs it would do."""
        if gone(host.pid):
            host.wait()
            host.start()
        return bool(host.events("ready"))

    # What can happen

    def _kill(self, host: WorkerProcess) -> None:
        host.signal(signal.SIGKILL)
        host.wait()
        self._hurt_for(host, self._luck.uniform(0, 2), host.start)

    def _kill_child(self, host: WorkerProcess) -> None:
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            self._luck.choice(psutil.Process(host.pid).children()).kill()

    def _freeze(self, host: WorkerProcess) -> None:
        freeze(host.pid)
        self._hurt_for(host, self._luck.uniform(0.5, self._longest_s), lambda: host.signal(signal.SIGCONT))

    def _cut_off(self, host: WorkerProcess) -> None:
        network = self._networks[host.name]
        getattr(network, self._luck.choice(["drop", "pause", "blackhole"]))()
        self._hurt_for(host, self._luck.uniform(0.5, self._longest_s), network.restore)

    def _stop_at_once(self, host: WorkerProcess) -> None:
        host.signal(signal.SIGTERM)
        host.signal(signal.SIGINT)
        self._hurt_until_ended(host)

    def _drain(self, host: WorkerProcess) -> None:
        host.signal(signal.SIGTERM)
        self._hurt_until_ended(host)

    def _restart_server(self, _: WorkerProcess) -> None:
        how = self._luck.choice([signal.SIGINT, signal.SIGQUIT, signal.SIGKILL])  # fast, immediate, and worse
        if how is signal.SIGKILL:
            self._server.kill()
        else:
            self._server.stop(how)
        time.sleep(self._luck.choice([0, 1]))
        self._server.start()

    # And how it ends

    def _hurt_until_ended(self, host: WorkerProcess) -> None:
        def restart() -> None:
            assert host.wait(60) in (0, 2), f"it did not end as it should\n{host}"
            host.start()

        self._hurt_for(host, 1.0, restart)

    def _hurt_for(self, host: WorkerProcess, for_s: float, mend: Callable[[], Any]) -> None:
        def mended() -> None:
            mend()
            del self._hurt[host.name]

        self._hurt[host.name] = mend.__qualname__
        heapq.heappush(self._mending, (time.monotonic() + for_s, next(self._number), mended))

    def _mend(self, now_s: float) -> None:
        while self._mending and self._mending[0][0] <= now_s:
            heapq.heappop(self._mending)[2]()
