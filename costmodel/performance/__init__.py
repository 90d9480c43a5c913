"""Graph and machine together: seconds, and what follows from them."""
