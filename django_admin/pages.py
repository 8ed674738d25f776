"""What all pages of the fleet have in common: who may look, a part that stays up to date, and how actions are done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote, unquote
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseNotAllowed, JsonResponse
from django.shortcuts import redirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.http import url_has_allowed_host_and_scheme, urlencode

from atomic_celery import errors, payload
from atomic_celery.store.store import Store
from django_admin import actions, models, project
from django_admin.actions import Action, Asked, Field
from django_admin.apps import LABEL

REFRESH_MS = 5000
MOST_COUNTED = 10_000
"""Where counting the messages of a queue stops: a page that is looked at every few seconds is no load."""
MOST_TARGETS = 500
_DIGITS = 19

Context = dict[str, Any]


class FleetPage(admin.ModelAdmin):
    """A page of many things, each of which may have a page of its own.

    Its template is ``atomic_fleet/<name>.html`` and includes ``atomic_fleet/<name>_live.html``, which is also sent by
    itself to pages that are open.
    """

    name: ClassVar[str]
    one_name: ClassVar[str | None] = None
    noun: ClassVar[str] = ""
    title: ClassVar[str]
    steers: ClassVar[tuple[Action, ...]] = ()

    def look(self, request: HttpRequest, store: Store) -> Context:
        """Read what the page shows."""
        raise NotImplementedError

    def look_at(self, request: HttpRequest, store: Store, key: str) -> Context | None:
        """Read what the page of one thing shows; None: there is none."""
        raise NotImplementedError

    # What Django's admin asks

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Nobody adds anything."""
        return False

    has_change_permission = has_delete_permission = has_add_permission

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Whether this user may look; who may do something may look, too."""
        user: Any = request.user
        return user.has_perm(f"{LABEL}.view_{self.opts.model_name}") or any(map(self._allows(request), self.steers))

    def get_urls(self) -> list[Any]:
        """Return the pages' addresses, under the names that Django's admin gives them."""
        address = f"{LABEL}_{self.opts.model_name}"
        view = self.admin_site.admin_view
        urls = [
            path("", view(self.changelist_view), name=f"{address}_changelist"),
            path("~live/", view(self.live_view), name=f"{address}_live"),
            path("~act/", view(self.act_view), name=f"{address}_act"),
        ]
        if self.one_name is not None:
            urls += [
                path("<path:object_id>/~live/", view(self.live_view), name=f"{address}_one_live"),
                path("<path:object_id>/", view(self.change_view), name=f"{address}_change"),
            ]
        return urls

    def changelist_view(self, request: HttpRequest, extra_context: Context | None = None) -> HttpResponse:
        """Show the page."""
        return self._page(request, None, extra_context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Context | None = None
    ) -> HttpResponse:
        """Show the page of one thing."""
        return self._page(request, unquote(object_id), extra_context)

    # Pages

    def address(self, what: str, key: str | None = None) -> str:
        """Return the address of one of this page's views."""
        name = f"{self.admin_site.name}:{LABEL}_{self.opts.model_name}_{what}"
        return str(reverse(name, args=() if key is None else (quote(key),)))

    def address_of(self, request: HttpRequest, model: Any, key: str | None = None) -> str | None:
        """Return the address of another of the fleet's pages; None: it is not here, or not for this user."""
        page = self.admin_site._registry.get(model)
        if not isinstance(page, FleetPage) or not page.has_view_permission(request):
            return None
        return page.address("changelist") if key is None else page.address("change", key)

    def live_view(self, request: HttpRequest, object_id: str | None = None) -> HttpResponse:
        """Send the part of a page that changes, as JSON."""
        key = None if object_id is None else unquote(object_id)
        context, trouble = self._looked(request, key)
        if trouble is not None:
            return JsonResponse({"trouble": trouble}, status=503)
        html = render_to_string(f"atomic_fleet/{self._template(key)}_live.html", context, request)
        return JsonResponse({"html": html})

    def _page(self, request: HttpRequest, key: str | None, extra: Context | None) -> HttpResponse:
        context, trouble = self._looked(request, key)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": self.title if key is None else f"{self.title}: {key}",
            "page": self,
            "tabs": self._tabs(request),
            "key": key,
            "refresh_ms": REFRESH_MS,
            "query": request.GET.urlencode(),
            "live_url": self.address("live") if key is None else self.address("one_live", key),
            "act_url": self.address("act") if self.steers else None,
            "here": request.get_full_path(),
            "trouble": trouble,
            "live_template": f"atomic_fleet/{self._template(key)}_live.html",
            **context,
            **(extra or {}),
        }
        template = f"atomic_fleet/{self._template(key)}.html" if trouble is None else "atomic_fleet/trouble.html"
        request.current_app = self.admin_site.name
        return TemplateResponse(request, template, context, status=200 if trouble is None else 503)

    def _tabs(self, request: HttpRequest) -> list[tuple[str, str, bool]]:
        """List the fleet's pages that this user may see: title, address, and whether it is this one."""
        pages = [page for page in self.admin_site._registry.values() if isinstance(page, FleetPage)]
        seen = [page for page in pages if page.has_view_permission(request)]
        return [(page.title, page.address("changelist"), page is self) for page in seen]

    def _template(self, key: str | None) -> str:
        return self.name if key is None else str(self.one_name)

    def _looked(self, request: HttpRequest, key: str | None) -> tuple[Context, str | None]:
        """Read what a page shows, or say why it cannot be read."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        look = self.look if key is None else self._look_at(key)
        try:
            with project.looking() as store:
                context = look(request, store)
        except (errors.AtomicError, DatabaseError) as error:
            return {}, explained(error)
        shared = {
            "steers": [action for action in self.steers if action.allowed(request)],
            "page_url": self.address("changelist"),
            "messages_url": self.address_of(request, models.Message),
        }
        return {**shared, **context}, None

    def _look_at(self, key: str) -> Callable[[HttpRequest, Store], Context]:
        def look(request: HttpRequest, store: Store) -> Context:
            context = None if "\0" in key else self.look_at(request, store, key)
            if context is None:
                raise Http404(f"there is no {self.noun} {key} any more")
            return context

        return look

    # Actions

    def act_view(self, request: HttpRequest) -> HttpResponse:
        """Do what was asked, after a question if it destroys something."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        action = next((action for action in self.steers if action.name == request.POST.get("action")), None)
        if action is None:
            return HttpResponseBadRequest("There is no such action.")
        if not action.allowed(request):
            raise PermissionDenied
        targets = tuple(dict.fromkeys(key for key in request.POST.getlist("selected") if key and "\0" not in key))
        back = self._back(request)
        if not targets or len(targets) > MOST_TARGETS:
            wrong = f"Select at most {MOST_TARGETS}." if targets else "Nothing was selected, so nothing was done."
            messages.warning(request, wrong)
            return redirect(back)
        if action.asks and "confirmed" not in request.POST:
            return self._ask(request, action, targets, back)
        answers = {field.name: request.POST.get(field.name, "")[:500] for field in action.fields}
        self._do(request, action, Asked(targets, request.user.get_username(), answers))
        if action.destroys and back.partition("?")[0] != self.address("changelist"):
            back = self.address("changelist")  # the page of one thing may be gone with it
        return redirect(back)

    def _back(self, request: HttpRequest) -> str:
        there = request.POST.get("next", "")
        hosts = {request.get_host()}
        is_here = url_has_allowed_host_and_scheme(there, allowed_hosts=hosts, require_https=request.is_secure())
        return there if is_here else self.address("changelist")

    def _ask(self, request: HttpRequest, action: Action, targets: tuple[str, ...], back: str) -> HttpResponse:
        try:
            fields = _filled(action, targets)
        except (errors.AtomicError, DatabaseError) as error:
            messages.error(request, f"Nothing was done: {explained(error)}")
            return redirect(back)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": f"{action.label}?",
            "fields": fields,
            "page": self,
            "action": action,
            "targets": targets,
            "listed": targets[:50],
            "back": back,
            "act_url": self.address("act"),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "atomic_fleet/confirm.html", context)

    def _do(self, request: HttpRequest, action: Action, asked: Asked) -> None:
        try:
            with project.changing() as store:
                outcome = action.run(store, asked)
                self._log(request, outcome)
        except (errors.AtomicError, DatabaseError) as error:
            messages.error(request, f"Nothing was done: {explained(error)}")
            return
        if outcome.done:
            messages.success(request, actions.sentence(outcome, self.noun))
        if outcome.left:
            messages.warning(request, actions.remainder(outcome, self.noun))

    def _log(self, request: HttpRequest, outcome: actions.Outcome) -> None:
        content_type = ContentType.objects.get_for_model(self.model)
        LogEntry.objects.bulk_create(
            LogEntry(
                user_id=request.user.pk,
                content_type_id=content_type.pk,
                object_id=target,
                object_repr=f"{self.noun} {target}"[:200],
                action_flag=CHANGE,
                change_message=outcome.verb.capitalize() + ".",
            )
            for target in outcome.done
        )

    @staticmethod
    def _allows(request: HttpRequest) -> Callable[[Action], bool]:
        return lambda action: action.allowed(request)


def _filled(action: Action, targets: tuple[str, ...]) -> list[tuple[Field, object]]:
    """Return an action's fields with what stands in them at first."""
    said: Mapping[str, object] = {}
    if action.prefill is not None and len(targets) == 1:
        with project.looking() as store:
            said = action.prefill(store, targets[0])
    return [(field, "" if (there := said.get(field.name, field.default)) is None else there) for field in action.fields]


def explained(error: Exception) -> str:
    """Say what is wrong with the fleet's database, and what to do; no secret is in it."""
    if isinstance(error, DatabaseError):
        try:
            project.store().schema.require()
        except errors.AtomicError as mismatch:
            return payload.without_passwords(str(mismatch))
        except DatabaseError:
            pass
        return payload.without_passwords(f"the database does not answer: {error}")
    return payload.without_passwords(str(error))


def pager(wanted: Mapping[str, str], **place: object) -> Context:
    """Return the queries of a list's first page and, where there is a *place* to go on from, of its next one."""
    there = {name: at for name, at in place.items() if at is not None}
    return {
        "filters": wanted,
        "first_query": urlencode(wanted),
        "next_query": urlencode({**wanted, **there}) if there else None,
    }


def filters(request: HttpRequest, names: Iterable[str]) -> dict[str, str]:
    """Return what the address filters by; empty is no filter."""
    found = {name: request.GET.get(name, "").strip()[:500].replace("\0", "") for name in names}
    return {name: value for name, value in found.items() if value}


def is_number(text: str) -> bool:
    """Whether *text* can be the id of a row."""
    return text.isascii() and text.isdigit() and len(text) < _DIGITS
