"""The pages, seen by Django's test client."""
