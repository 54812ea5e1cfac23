"""A model with a schedule in the loops of other libraries, beside the same loop without one."""
