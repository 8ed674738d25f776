"""Measure speed beside the peers a user would pick instead.

Run all of it, from the top of the checkout::

    python -m tests.benchmarks                      # everything, every peer found
    python -m tests.benchmarks --quick              # small counts: does it run?
    python -m tests.benchmarks --only drain,pickup --peers redis --json out.json

Servers (PostgreSQL, RabbitMQ, Redis) are private, on free ports, in a temporary
directory, with their default durability; PostgreSQL has ``fsync`` and
``synchronous_commit`` on. A peer that is not installed is named and left out. All
processes share two CPUs, whatever the machine has. Linux only.

``drain``    rate at which one worker empties a queue of no-op tasks; commits and WAL a task
``publish``  rate of ``delay()`` one by one, of a ``group``, and of a bulk call
``pickup``   from just before ``delay()`` to the first line of the task, worker idle
``bare``     the same work in bare SQL: what the database itself allows; ``…/bare`` is the ratio
"""
