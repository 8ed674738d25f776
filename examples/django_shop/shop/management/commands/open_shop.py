"""Start a worker and the site, and let some customers in."""

import io
import os
import signal
import subprocess
import sys
import time

from django.contrib.auth.models import User
from django.core.files.base import ContentFile
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from PIL import Image

from shop import deliveries, orders, pictures
from shop.models import Item, Order, Payment, Picture, Thumbnail

IN_STOCK, CUSTOMERS, PICTURES, CHAIRS = 8, 12, 3, 6


class Command(BaseCommand):
    help = "Open the shop: a worker, some customers, and the site."

    def add_arguments(self, parser):
        parser.add_argument("--once", action="store_true", help="No site: wait until all is done, check it, and end.")
        parser.add_argument("--address", default="127.0.0.1:8000")

    def handle(self, once, address, **options):
        if not User.objects.filter(username="ann").exists():
            User.objects.create_superuser("ann", password="shop")
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "site_of_the_shop", "worker", "-P", "atomic", "-c", "2"],
            cwd=os.path.dirname(os.path.abspath(sys.argv[0])),
            stdout=subprocess.DEVNULL,
            stderr=None if options["verbosity"] > 1 else subprocess.DEVNULL,
        )
        try:
            served = self.serve()
            if once:
                self.wait(worker, served)
            else:
                self.stdout.write(
                    f"The shop: http://{address}/   Its fleet: http://{address}/admin/atomic_fleet/overview/"
                )
                self.stdout.write("Log in as ann, password shop. Ctrl-C closes the shop.")
                call_command("runserver", address, use_reloader=False)
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait()

    def serve(self):
        """Let customers in: more of them than there are lamps."""
        item, _ = Item.objects.get_or_create(name="lamp", defaults={"in_stock": 0})
        item.in_stock = IN_STOCK
        item.save()
        before = Order.objects.count()
        sold_out = 0
        for number in range(CUSTOMERS):
            try:
                orders.buy("lamp", f"customer {number}")
            except orders.SoldOut:
                sold_out += 1
        for number in range(PICTURES):
            image = io.BytesIO()
            Image.new("RGB", (600, 400), (40 * number, 90, 120)).save(image, "PNG")
            pictures.add(ContentFile(image.getvalue(), name=f"lamp-{number}.png"))
        deliveries.receive("of chairs", [f"chair {number}" for number in range(CHAIRS)])
        self.stdout.write(f"{Order.objects.count() - before} lamps ordered, {sold_out} customers came too late")
        return sold_out

    def wait(self, worker, sold_out):
        until = time.monotonic() + 120
        while self.unfinished():
            if worker.poll() is not None:
                raise CommandError(f"the worker ended with {worker.returncode}")
            if time.monotonic() > until:
                raise CommandError("not everything was done within two minutes")
            time.sleep(0.1)
        counts = {
            "payments": (Payment.objects.count(), Order.objects.count()),
            "thumbnails": (Thumbnail.objects.count(), Picture.objects.count() * len(pictures.WIDTHS)),
            "chairs": (Item.objects.filter(name__startswith="chair").count(), CHAIRS),
            "customers too late": (sold_out, CUSTOMERS - IN_STOCK),
        }
        for what, (found, expected) in counts.items():
            self.stdout.write(f"{what}: {found} of {expected}")
        if any(found != expected for found, expected in counts.values()):
            raise CommandError("something is missing, or was done twice")

    def unfinished(self):
        return (
            Order.objects.filter(paid=False).exists()
            or Picture.objects.filter(ready=False).exists()
            or Item.objects.filter(name__startswith="chair").count() < CHAIRS
        )
