from django.contrib import admin
from django.urls import path
from shop import views

urlpatterns = [
    path("", views.front, name="front"),
    path("orders/", views.order, name="order"),
    path("pictures/", views.picture, name="picture"),
    path("admin/", admin.site.urls),
]
