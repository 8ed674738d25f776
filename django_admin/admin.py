"""The fleet's pages, on Django's own admin site; `register` puts them on another one."""

from __future__ import annotations

from django.contrib import admin

from django_admin import models
from django_admin.events import EventPage
from django_admin.hosts import HostPage
from django_admin.messages import MessagePage
from django_admin.overview import OverviewPage
from django_admin.roots import RootPage
from django_admin.terms import TermPage

PAGES = {
    models.Overview: OverviewPage,
    models.Host: HostPage,
    models.Root: RootPage,
    models.Message: MessagePage,
    models.FleetEvent: EventPage,
    models.Term: TermPage,
}


def register(site: admin.AdminSite) -> None:
    """Put the pages on *site*."""
    for model, page in PAGES.items():
        site.register(model, page)


register(admin.site)
