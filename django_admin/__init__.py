"""The Django app of the fleet: pages that show it and steer it, its tables by ``manage.py migrate``, and commands.

It knows of the package only what needs no Celery. Everything that changes something goes through
`atomic_celery.operations`.
"""
