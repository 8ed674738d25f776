"""Provisioners that come along: the command line of a platform, and this machine.

A provisioner is named by a JSON file (`configuration` says what may stand in it), or by a Python object that has the
methods of `atomic_celery.fleet.provisioner.Provisioner`; `loading` makes it of either.
"""

from __future__ import annotations

from atomic_celery.provisioners.command import CommandProvisioner
from atomic_celery.provisioners.loading import from_mapping, load
from atomic_celery.provisioners.local import LocalProvisioner

__all__ = ["CommandProvisioner", "LocalProvisioner", "from_mapping", "load"]
