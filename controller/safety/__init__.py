"""What may be sent, what is wrong, and what follows: no mechanism, no motion, no I/O."""
