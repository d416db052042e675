"""Which parameters forces can tell, and the motions that tell them best."""
