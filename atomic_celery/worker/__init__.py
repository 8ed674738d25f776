"""What is added to Celery's worker when its broker is one of ours."""
