"""What becomes of tasks that are revoked when this worker has claimed them already, and no child has begun them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery.utils.functional import maybe_list
from celery.worker import state

if TYPE_CHECKING:
    from atomic_celery.worker.host import Host
    from atomic_celery.worker.requests import HeldRequest


def withdraw_all(host: Host) -> None:
    """End what is revoked and waits in the pool for a child; what a child has begun goes on."""
    for request in host.roll.all():
        withdraw(host, request)


def withdraw(host: Host, request: HeldRequest) -> None:
    """Do so with one request."""
    if request.phase != "with the pool" or request.errand is None or not host.is_contained:
        return
    if _is_flagged(request) and host.pool.take_back(request.errand):
        request.phase = "waiting"
        request.revoked()


def _is_flagged(request: HeldRequest) -> bool:
    """Whether `Request.revoked` would say so, which acts on it, too."""
    return request.id in state.revoked or any(
        value in maybe_list(state.revoked_stamps.get(header) or ())
        for header, values in request.stamps.items()
        for value in maybe_list(values or ())
    )
