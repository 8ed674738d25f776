"""Who visits the site: for manage.py shell."""

PASSWORD = "correct horse"
PEOPLE = f"""
from django.contrib.auth.models import Permission, User
User.objects.create_superuser("ann", password={PASSWORD!r})
looker = User.objects.create_user("looker", password={PASSWORD!r}, is_staff=True)
views = Permission.objects.filter(content_type__app_label="atomic_fleet", codename__startswith="view_")
looker.user_permissions.set(views)
User.objects.create_user("nobody", password={PASSWORD!r}, is_staff=True)
"""
