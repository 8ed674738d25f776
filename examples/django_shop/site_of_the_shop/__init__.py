from site_of_the_shop.celery import app

__all__ = ["app"]
