"""Ways of using several devices."""
