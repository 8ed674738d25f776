"""The fleet: how many hosts the work wants, and the controller that adds and removes them."""
