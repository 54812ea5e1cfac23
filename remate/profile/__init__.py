"""What every operation costs: measured on a device, or estimated for a named one."""
