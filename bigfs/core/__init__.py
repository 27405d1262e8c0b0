"""What every room needs and that needs none of them."""
