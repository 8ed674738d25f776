"""One page for each way a request can end."""

from django.urls import path
from shop import views

urlpatterns = [
    path("order/", views.order),
    path("order/fail/", views.fail),
    path("order/outside/", views.outside),
]
