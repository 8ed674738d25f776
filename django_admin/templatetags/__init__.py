"""What the templates say things with."""
