from django.contrib import messages
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from shop import orders, pictures
from shop.models import Item, Order, Picture


def front(request):
    return render(
        request,
        "shop/front.html",
        {
            "items": Item.objects.order_by("name"),
            "orders": Order.objects.select_related("item").order_by("-pk")[:20],
            "pictures": Picture.objects.prefetch_related("thumbnails").order_by("-pk")[:20],
        },
    )


@require_POST
def order(request):
    try:
        orders.buy(request.POST.get("item", ""), request.POST.get("customer", "somebody"))
    except Item.DoesNotExist:
        messages.error(request, "There is no such item.")
    except orders.SoldOut:
        messages.error(request, "Sold out: nothing was ordered, and nothing will be paid.")
    return redirect("front")


@require_POST
def picture(request):
    if "file" in request.FILES:
        pictures.add(request.FILES["file"])
    return redirect("front")
