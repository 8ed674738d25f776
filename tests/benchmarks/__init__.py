"""Measure speed beside the peers a user would pick instead.

Run all of it, from the top of the checkout::

    python -m tests.benchmarks                      # everything, every peer found
    python -m tests.benchmarks --quick              # small counts: does it run?
    python -m tests.benchmarks --only drain,pickup --peers redis --json out.json

Servers (PostgreSQL, RabbitMQ, Redis) are private, on free ports, in a temporary
directory, with their default durability; PostgreSQL has ``fsync`` and
``synchronous_commit`` on. A peer that is not installed is named and left out. All
processes share two CPUs, whatever the machine has.

``drain``    rate at which one worker empties a queue of no-op tasks; commits and WAL a task
``publish``  rate of ``delay()`` one by one, of a ``group``, and of a bulk call
``pickup``   from just before ``delay()`` to the first line of the task, worker idle
``bare``     the same work done by bare SQL: what the database itself allows
``claim``    cost of one claim, with few and many ready messages, and under an old snapshot
``fleet``    share of one core the database spends on the renewals and reports of 200 hosts
"""
