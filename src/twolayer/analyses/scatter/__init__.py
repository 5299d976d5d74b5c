"""How runs scatter around their limit, without drawing any of them."""
