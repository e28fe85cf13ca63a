"""A small chat for the browser in front of the gateway."""
